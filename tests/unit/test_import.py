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
        ("gangline.client", {"torch", "services", "numpy", "pandas", "pydantic", "rich", "yaml"}),
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


def test_the_client_that_blocks_loads_nothing_of_the_other() -> None:
    program = (
        "import sys, gangline.client; print([name for name in sys.modules if name.startswith('gangline.client.async')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_gangline_has_the_names_of_the_sdk_and_loads_it_with_the_first_one() -> None:
    program = """
import sys, gangline
assert {"Client", "AsyncClient", "Experiment"} <= set(dir(gangline)) and "grpc" not in sys.modules
assert gangline.Client is gangline.client.Client and gangline.AsyncClient.__module__.endswith("async_session")
assert not hasattr(gangline, "Cluent")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
