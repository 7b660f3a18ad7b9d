"""A forked process's output goes to its pipes, whatever the fork server's own output was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from gangline.launch import child
print("before", flush=True)
reading, writing = os.pipe()
if os.fork() == 0:
    os.close(reading)
    child.take_output(os.dup(writing), writing)
    print("ranks say \\u2713")
    print("and err \\udcff", file=sys.stderr)
    child.leave(0)
os.close(writing)
os.wait()
heard = b"".join(iter(lambda: os.read(reading, 4096), b""))
assert heard == "ranks say \\u2713\\nand err \\\\udcff\\n".encode(), heard
"""


def test_output_moves_from_a_log_file_to_a_pipe(tmp_path: Path) -> None:
    """An agent's log may be a file, in which a stream can seek; the pipe that replaces it cannot."""
    with (tmp_path / "log").open("wb") as log:
        done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=log, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "log").read_text() == "before\n"
