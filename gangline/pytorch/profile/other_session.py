"""Sessions of torch's profilers in this process that are not the trainer's own.

Owns how they are found and noticed. A process has one session at a time: a second one takes the first one's place, and
the end of the first then ends the process by a signal. Nothing of torch is touched while nobody watches.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler, profiler_legacy

# What each kind of session goes through as it begins; torch.profiler.profile through the first one.
_BEGINNINGS: tuple[tuple[type, str], ...] = (
    (profiler.profile, "_prepare_trace"),
    (profiler.emit_itt, "__enter__"),
    (profiler.emit_nvtx, "__enter__"),
    (profiler_legacy.profile, "__enter__"),
)


def is_open() -> bool:
    """Also one that only warms up, or that another thread began; one that waits by its schedule is none yet. Takes some
    ten milliseconds."""
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # there, but not in torch's own list
        return True
    # torch has no list of them, but each instance refers to its class.
    sessions = (one for one in gc.get_referrers(profiler.profile) if isinstance(one, profiler.profile))
    if any(getattr(one, "entered", False) and one.kineto_results is None for one in sessions):
        return True
    return any(_warms_up_again(one) for one in gc.get_referrers(torch.profiler.profile))


def watch(on_begin: Callable[[], None]) -> Callable[[], None]:
    """From now on `on_begin` is called before another session begins in this thread; what is returned ends that. A
    version of torch that begins them in another way is not watched."""
    restore = [_wrap(kind, name, on_begin, threading.get_ident()) for kind, name in _BEGINNINGS if name in vars(kind)]

    def end() -> None:
        for one in restore:
            one()

    return end


def _warms_up_again(one: Any) -> bool:
    """It keeps one session for all cycles, which has results from the second cycle on."""
    return (
        isinstance(one, torch.profiler.profile)
        and getattr(one, "acc_events", False)
        and one.current_action is torch.profiler.ProfilerAction.WARMUP
    )


def _wrap(kind: type, name: str, on_begin: Callable[[], None], thread: int) -> Callable[[], None]:
    original = vars(kind)[name]
    is_over = False

    @functools.wraps(original)
    def begin(self: Any, *arguments: Any, **options: Any) -> Any:
        # What another thread begins cannot be given way to: a session ends in the thread that began it.
        if not is_over and threading.get_ident() == thread:
            on_begin()
        return original(self, *arguments, **options)

    def restore() -> None:
        nonlocal is_over
        is_over = True
        # Somebody may have wrapped it once more since.
        if vars(kind)[name] is begin:
            setattr(kind, name, original)

    setattr(kind, name, begin)
    return restore
