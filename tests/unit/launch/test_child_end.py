"""Whether a process is on its way out, as the kernel has it."""

from __future__ import annotations

import os
import subprocess

from gangline.launch.child import is_exiting


def test_a_process_that_was_killed_is_exiting_before_anybody_has_buried_it() -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        assert not is_exiting(process.pid)
    finally:
        process.kill()
    # Returns when it is dead, and leaves it to be waited for.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_exiting(process.pid)
    process.wait()
    assert is_exiting(process.pid)
