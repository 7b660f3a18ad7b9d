"""A process whose script left torch's process group open leaves it at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# What is registered first runs last.
SCRIPT = """
import atexit, sys, time
from pathlib import Path
import torch.distributed as dist

def name_of(thread):
    try:
        return (thread / "comm").read_text()
    except OSError:
        return ""  # it has just ended

def end():
    give_up_at = time.monotonic() + 30
    while True:
        threads = sum("gloo_runloop" in name_of(thread) for thread in Path("/proc/self/task").iterdir())
        # A thread names itself, once it gets to run.
        if threads or not dist.is_initialized() or time.monotonic() > give_up_at:
            break
        time.sleep(0.01)
    print("open" if dist.is_initialized() else "left", "with threads" if threads else "without threads", flush=True)

atexit.register(end)
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
    [("", 0, "left without threads"), (OWN_END, 0, "left without threads"), (BLOCK_THAT_FAILS, 1, "open with threads")],
    ids=["left open", "left by the script", "after an exception"],
)
def test_the_group_is_left_at_the_end(tmp_path: Path, more: str, code: int, printed: str) -> None:
    # After an exception it stays: other ranks would fail too, and perhaps be reported first.
    command = [sys.executable, "-c", SCRIPT + more, str(tmp_path / "store")]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == code, ended.stderr
    # A script that has left the group by itself sees no error of a second time.
    assert "process group" not in ended.stderr.lower()
    assert ended.stdout.split("\n")[:2] == ["between: open", printed], ended.stderr
