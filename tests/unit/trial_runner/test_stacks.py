"""The parts of a dump of all threads that go into a failure's last lines."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.launch.beat_file import PID, BeatFile, map_cells, stack_signal
from services.trial_runner.watchdog import stacks
from services.trial_runner.watchdog.stacks import Stacks

DUMP = """\
Thread 0x1 (most recent call first):
  File "link.py", line 258 in _serve
  File "threading.py", line 1002 in _bootstrap

Current thread 0x2 (most recent call first):
  File "model_def.py", line 29 in train_batch
  File "loop.py", line 129 in _train
  File "forkserver.py", line 241 in <module>"""


def test_the_main_thread_ends_where_it_stands() -> None:
    assert Stacks(tuple(DUMP.splitlines())).main_thread == (
        '  File "forkserver.py", line 241 in <module>',
        '  File "loop.py", line 129 in _train',
        '  File "model_def.py", line 29 in train_batch',
    )


def test_a_rank_without_a_dump_has_no_lines() -> None:
    assert Stacks(problem="it is stopped").main_thread == ()


def test_a_process_without_the_file_of_its_dump_has_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may write its own pid into its beat file although nothing in it makes the dump."""
    monkeypatch.setattr(stacks, "DUMP_SECONDS", 0.1)
    ignoring = f"import signal; signal.signal({stack_signal()}, signal.SIG_IGN); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", ignoring], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        file = BeatFile(tmp_path / "rank0.beat")
        map_cells(file.path)[PID] = child.pid
        dumped = asyncio.run(stacks.dump_stacks({0: file}, [child.pid]))
        child.kill()
    assert dumped[0].lines == ()
    assert dumped[0].problem == "its dump cannot be read: No such file or directory"


def test_a_dump_that_a_script_has_replaced_by_a_pipe_or_a_link_holds_nothing_up(tmp_path: Path) -> None:
    file, own = BeatFile(tmp_path / "rank0.beat"), os.getpid()
    os.mkfifo(file.stacks_path)
    assert stacks.read_dump(file, own).problem == "its dump cannot be read: it is no file"
    file.stacks_path.unlink()
    file.stacks_path.symlink_to("/etc/passwd")
    assert stacks.read_dump(file, own).problem.startswith("its dump cannot be read: Too many levels of symbolic links")
