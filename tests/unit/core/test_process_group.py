"""A process whose script left torch's process group open leaves it at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# What is registered first runs last.
SCRIPT = """
import atexit, sys
import torch.distributed as dist
atexit.register(lambda: print("open" if dist.is_initialized() else "left", flush=True))
from gangline import core
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
for _ in range(2):
    with core.init(distributed=core.DistributedContext.from_torch_distributed()):
        pass
print("between:", "open" if dist.is_initialized() else "left")
"""
BLOCK_THAT_FAILS = """
with core.init(distributed=core.DistributedContext.from_torch_distributed()):
    raise ValueError("odd")
"""
OWN_END = "dist.destroy_process_group()"


@pytest.mark.parametrize(
    ("more", "code", "printed"),
    [("", 0, "left"), (OWN_END, 0, "left"), (BLOCK_THAT_FAILS, 1, "open")],
    ids=["left open", "left by the script", "after an exception"],
)
def test_the_group_is_left_at_the_end(tmp_path: Path, more: str, code: int, printed: str) -> None:
    # After an exception it stays: other ranks would fail too, and perhaps be reported first.
    command = [sys.executable, "-c", SCRIPT + more, str(tmp_path / "store")]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout.split("\n")[:2] == ["between: open", printed]
