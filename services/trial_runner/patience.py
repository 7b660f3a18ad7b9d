"""PURE: when each living rank is to be killed, from what is known of all of them.

A failure ends everybody within a second, but not before the real cause has had a moment to show itself; a rank that
has finished its training gets a bounded time for its teardown. The crew asks after every event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.trial_runner.outcome import RankEnd, failure_of

# A rank that has said why it fails may still print its traceback.
LAST_WORDS_SECONDS = 0.5
# A rank that only noticed that another has gone, or ended without a word: the cause may arrive a moment later.
SETTLE_SECONDS = 0.25
# gloo ranks were seen to hang on exit after finished training.
TEARDOWN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RankView:
    """finished_at, failed_at: when the runner heard of it, 0 before. is_alive: its process has not ended yet.

    end: how it ended, or would count if it ended now.
    """

    end: RankEnd
    is_alive: bool
    finished_at: float = 0.0
    failed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Orders:
    """Times from which nobody here may live on; None where nothing is ordered."""

    peer_failed_at: float | None = None
    stop_at: float | None = None


def plan_kills(views: Sequence[RankView], orders: Orders) -> dict[int, float]:
    """For each living rank that must not live for ever: when it is killed."""
    kill_at = {}
    for view in views:
        if view.is_alive:
            deadlines = [*_common_deadlines(views, orders), *_deadlines_by_others(view, views)]
            if view.failed_at:
                deadlines.append(view.failed_at + LAST_WORDS_SECONDS)
            if deadlines:
                kill_at[view.end.rank] = min(deadlines)
    return kill_at


def _common_deadlines(views: Sequence[RankView], orders: Orders) -> list[float]:
    deadlines = [at for at in (orders.peer_failed_at, orders.stop_at) if at is not None]
    # A script ends without a word of having finished; its end says it.
    finished = [view.finished_at or (0.0 if view.is_alive else view.end.ended_at) for view in views]
    if all(finished) and all(view.end.is_success for view in views):
        deadlines.append(max(finished) + TEARDOWN_SECONDS)
    return deadlines


def _deadlines_by_others(view: RankView, views: Iterable[RankView]) -> list[float]:
    others = (other for other in views if other.end.rank != view.end.rank)
    return [at for at in map(_deadline_set_by, others) if at is not None]


def _deadline_set_by(view: RankView) -> float | None:
    """By this rank for the others."""
    failure = failure_of(view.end)
    if view.failed_at:
        return view.failed_at + (SETTLE_SECONDS if failure is not None and failure.is_consequence else 0.0)
    if view.is_alive or view.end.is_success:
        return None
    return view.end.ended_at + (0.0 if view.end.signal is not None else SETTLE_SECONDS)
