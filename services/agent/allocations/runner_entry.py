"""The entrypoint of a forked trial runner: sends its output to its allocation's runner.log and calls the runner's own
code.

It runs in a process forked from the runner template, so it imports only the standard library and the fork server.
"""

from __future__ import annotations

import os
from typing import Any

from gangline.launch import child

TARGET = "services.agent.allocations.runner_entry:enter"


def enter(arguments: dict[str, Any], fds: list[int]) -> int:
    """Runs the target with its arguments, and returns its exit code.

    fds: the runner's log, and the flock'ed `alive` file, which stays open until this process ends.
    """
    log, *held = fds
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    return child.call(arguments["target"], arguments["arguments"], held)
