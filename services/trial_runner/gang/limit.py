"""PURE: names the limit of the agent that a rank has hit, from how the rank failed.

The kernel does not report which limit made a call fail. So a shortage of memory or processes counts as the limit's work
if the agent has set such a limit, and if the error is one that this limit causes. outcome.py calls this.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gangline.domain.state import ExitKind

# The words of Python, torch, the C++ runtime, shells and tools for memory of the host that they did not get.
_HOST_MEMORY = re.compile(
    r"\bMemoryError\b|DefaultCPUAllocator|std::bad_alloc|cannot allocate memory|out of virtual memory|memory exhausted"
    r"|unable to allocate .* for an array",
    re.IGNORECASE,
)
_THREAD = re.compile(r"can't start new thread|pthread_create|thread constructor failed", re.IGNORECASE)
_FORK = re.compile(r"fork", re.IGNORECASE)
_REFUSED = "resource temporarily unavailable"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of each rank of one agent; 0 for none."""

    agent_id: str = ""
    memory_mb: int = 0
    processes: int = 0


def name_limit(
    kind: ExitKind, message: str, lines: Sequence[str], limits: Limits, *, exceeded_memory: bool, remark: str = ""
) -> tuple[ExitKind, str]:
    """Returns kind and message of a failure, which name the limit if the rank has hit one.

    lines: the rank's last lines and its traceback. remark: follows the message. Only the limit of processes is
    inferred from it, which changes no kind. exceeded_memory: whether the kernel has counted a kill in the rank's
    own control group.
    """
    whole = "; ".join(filter(None, (message, remark)))
    if limits.memory_mb and (exceeded_memory or _lacked_memory(kind, message)):
        text = f"the rank exceeded {limits.memory_mb} MiB of memory, its limit on {limits.agent_id} (rank_memory_mb)"
        return ExitKind.OUT_OF_MEMORY, f"{text}: {whole}"
    if limits.processes and _lacked_processes(whole, lines):
        text = f"the limit of a rank on {limits.agent_id} is {limits.processes} processes and threads (rank_processes)"
        return kind, f"{whole}; {text}"
    return kind, whole


def _lacked_memory(kind: ExitKind, message: str) -> bool:
    """Whether the host's memory ran short; the memory of a GPU has no such limit."""
    may_be = kind in (ExitKind.OUT_OF_MEMORY, ExitKind.USER_ERROR, ExitKind.SIGNAL)
    return may_be and "CUDA" not in message and bool(_HOST_MEMORY.search(message))


def _lacked_processes(message: str, lines: Sequence[str]) -> bool:
    if _THREAD.search(message):
        return True
    return _REFUSED in message.lower() and any(map(_FORK.search, (message, *lines)))
