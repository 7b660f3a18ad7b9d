"""Nothing stays of the ranks of a test process that was killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.source import ROOT

_PROGRAM = """
import sys, time
from pathlib import Path
from tests.support.gang import start_gang

(rank,) = start_gang(1, Path(sys.argv[1]), time.sleep, 1000.0)
print(rank.pid, flush=True)
time.sleep(1000.0)
"""


def test_a_rank_and_its_fork_server_end_with_a_killed_test_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "gang")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        rank = int(process.stdout.readline())
        server = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
        ends = [os.pidfd_open(pid) for pid in (rank, server)]
        process.kill()
    try:
        for end in ends:
            assert select.select([end], [], [], 60.0)[0]
    finally:
        for end in ends:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(end, signal.SIGKILL)
            os.close(end)
