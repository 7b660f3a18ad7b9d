"""Finds sessions of torch's profilers in this process that are not the trainer's own.

A process has one session at a time. A second one takes the place of the first, and the end of the first then ends the
process by a signal. The module changes nothing in torch while no watch runs.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler, profiler_legacy

# Methods that begin each kind of session. torch.profiler.profile uses the first one.
_BEGINNINGS: tuple[tuple[type, str], ...] = (
    (profiler.profile, "_prepare_trace"),
    (profiler.emit_itt, "__enter__"),
    (profiler.emit_nvtx, "__enter__"),
    (profiler_legacy.profile, "__enter__"),
)


def is_open() -> bool:
    """Returns whether another session is open, also one that only warms up, or that another thread began. A session
    that waits by its schedule does not count yet. Takes some ten milliseconds."""
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # there, but not in torch's own list
        return True
    # torch has no list of them, but each instance refers to its class.
    sessions = (session for session in gc.get_referrers(profiler.profile) if isinstance(session, profiler.profile))
    if any(getattr(session, "entered", False) and session.kineto_results is None for session in sessions):
        return True
    return any(_warms_up_again(referrer) for referrer in gc.get_referrers(torch.profiler.profile))


def watch(on_begin: Callable[[], None]) -> Callable[[], None]:
    """Calls `on_begin` before another session begins in this thread, from now on. Returns a function that ends the
    watch. A version of torch that begins sessions in another way is not watched."""
    restore = [
        _wrap(profiler_class, name, on_begin, threading.get_ident())
        for profiler_class, name in _BEGINNINGS
        if name in vars(profiler_class)
    ]

    def end() -> None:
        for put_back in restore:
            put_back()

    return end


def _warms_up_again(referrer: Any) -> bool:
    """Returns whether a profiler warms up in a later cycle. It keeps one session for all cycles, which has results from
    the second cycle on."""
    return (
        isinstance(referrer, torch.profiler.profile)
        and getattr(referrer, "acc_events", False)
        and referrer.current_action is torch.profiler.ProfilerAction.WARMUP
    )


def _wrap(profiler_class: type, name: str, on_begin: Callable[[], None], thread: int) -> Callable[[], None]:
    original = vars(profiler_class)[name]
    is_over = False

    @functools.wraps(original)
    def begin(self: Any, *arguments: Any, **options: Any) -> Any:
        # The trainer's session must end in the thread that began it, so it cannot end for a session of another thread.
        if not is_over and threading.get_ident() == thread:
            on_begin()
        return original(self, *arguments, **options)

    def restore() -> None:
        nonlocal is_over
        is_over = True
        # Other code may have wrapped the method again since.
        if vars(profiler_class)[name] is begin:
            setattr(profiler_class, name, original)

    setattr(profiler_class, name, begin)
    return restore
