"""PURE: when each living rank must be killed, from what is known of all of them.

A failure ends all ranks within a second, but only after the real cause had time to be reported. A rank that has
finished its training has a bounded time for its teardown. The rank group calls this after every event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.trial_runner.gang.outcome import RankEnd, failure_of

# Grace of a rank that has reported its failure: it may still print its traceback.
LAST_WORDS_SECONDS = 0.5
# Grace of the others, if a rank only noticed the loss of another or ended without a report: the cause may arrive a
# moment later.
SETTLE_SECONDS = 0.25
# Grace for the exit after finished training, at which gloo ranks were seen to hang.
TEARDOWN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RankView:
    """The state of one rank."""

    end: RankEnd  # how the rank ended, or what would count if it ended now
    is_alive: bool  # whether its process has not ended yet
    finished_at: float = 0.0  # time at which the runner received the message that training is over; 0 before
    failed_at: float = 0.0  # time at which the runner received the message of a failure; 0 before


@dataclass(frozen=True, slots=True)
class Orders:
    """Times after which no rank of this machine may live; None without such an order."""

    peer_failed_at: float | None = None
    stop_at: float | None = None


def plan_kills(views: Sequence[RankView], orders: Orders) -> dict[int, float]:
    """Returns the time at which each living rank is killed; ranks without a deadline are absent."""
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
    # A plain script sends no `finished` message; its end is the message.
    finished = [view.finished_at or (0.0 if view.is_alive else view.end.ended_at) for view in views]
    if all(finished) and all(view.end.is_success for view in views):
        deadlines.append(max(finished) + TEARDOWN_SECONDS)
    return deadlines


def _deadlines_by_others(view: RankView, views: Iterable[RankView]) -> list[float]:
    others = (other for other in views if other.end.rank != view.end.rank)
    return [at for at in map(_deadline_set_by, others) if at is not None]


def _deadline_set_by(view: RankView) -> float | None:
    """Returns the deadline that this rank's failure sets for the others."""
    failure = failure_of(view.end)
    if view.failed_at:
        return view.failed_at + (SETTLE_SECONDS if failure is not None and failure.is_consequence else 0.0)
    if view.is_alive or view.end.is_success:
        return None
    # A rank that ended by a signal is a cause of its own. One that exited with a code may only have noticed another.
    return view.end.ended_at + (0.0 if view.end.signal is not None else SETTLE_SECONDS)
