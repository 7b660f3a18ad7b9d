"""The cost of an import: the client stays free of torch, training code of the services, the warm process of threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

_REPORT = """
import sys, threading
assert threading.active_count() == 1, threading.enumerate()
loaded = sorted(set(name.split(".")[0] for name in sys.modules) & {forbidden})
assert not loaded, loaded
"""


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("gangline", {"torch", "grpc", "services", "numpy", "pydantic"}),
        ("gangline.core", {"torch", "grpc", "services"}),
        ("gangline.rank.entrypoint", {"torch", "grpc", "services"}),
        ("gangline.pytorch", {"grpc", "services"}),
    ],
)
def test_import_loads_only_what_it_needs(module: str, forbidden: set[str]) -> None:
    program = f"import {module}" + _REPORT.replace("{forbidden}", repr(forbidden))
    if module == "gangline.pytorch":
        program += "import torch; assert not torch.cuda.is_initialized()\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
