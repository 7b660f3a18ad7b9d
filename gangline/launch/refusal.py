"""How a refusal of Gangline's ends a process that no entrypoint of ours runs: by its one line, in place of a traceback.

Owns the hook for exceptions that nobody catches; other exceptions than ours go on to the hook that was there. In a rank
of the cluster gangline.launch.entrypoint tells how it ended; the hook is for what a rank starts, and off the cluster.
Called by gangline.core.init.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import TracebackType

from gangline.cluster_info import ENVIRONMENT_KEY
from gangline.errors import GanglineError
from gangline.launch.failure import cause_in_user_code

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], None]


class RefusalHook:
    """A sys.excepthook. before: what everything else is passed to."""

    def __init__(self, before: _Hook) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, GanglineError):
            self._before(kind, error, trace)
            return
        # The cluster's log knows whose lines these are.
        rank = None if ENVIRONMENT_KEY in os.environ else os.environ.get("RANK")
        who = "" if rank is None else f"rank {rank}: "
        sys.stdout.flush()
        # In one piece: other ranks write to the same terminal.
        sys.stderr.write(f"{cause_in_user_code(error)}error: {who}{error.message}\n")
        sys.stderr.flush()


def install() -> None:
    """From now on in this process; it then ends with exit code 1, as after any exception. May be called twice."""
    if not isinstance(sys.excepthook, RefusalHook):
        sys.excepthook = RefusalHook(sys.excepthook)
