"""Reports an uncaught exception in a process that no entrypoint of Gangline runs.

Owns the hook for it. A GanglineError is printed as one line in place of a traceback. Other exceptions go on to the hook
that was installed before. Both are reported to the trial runner where a rank has started this process. In the rank
itself gangline.rank.entrypoint reports the end. Called by gangline.core.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import TracebackType

from gangline.cluster_info import ENVIRONMENT_KEY
from gangline.core.link import Link
from gangline.errors import GanglineError
from gangline.launch.failure import cause_in_user_code, describe

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], None]


class RefusalHook:
    """A sys.excepthook. before: the hook that gets all exceptions but GanglineErrors. link: to the trial runner, if
    any."""

    def __init__(self, before: _Hook, link: Link) -> None:
        self._before = before
        self._link = link

    def __call__(self, error_type: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        failure = describe(error)
        self._link.send_worker_failure(failure.kind, failure.message, failure.traceback, failure.error_code)
        self._link.flush()
        if not isinstance(error, GanglineError):
            self._before(error_type, error, trace)
            return
        # The cluster's log already marks each line with its rank.
        rank = None if ENVIRONMENT_KEY in os.environ else os.environ.get("RANK")
        who = "" if rank is None else f"rank {rank}: "
        sys.stdout.flush()
        # One write, because other ranks write to the same terminal.
        sys.stderr.write(f"{cause_in_user_code(error)}error: {who}{error.message}\n")
        sys.stderr.flush()


def install(link: Link) -> None:
    """Installs the hook in this process, which then ends with exit code 1, as after any exception. It may be called
    twice."""
    if not isinstance(sys.excepthook, RefusalHook):
        sys.excepthook = RefusalHook(sys.excepthook, link)
