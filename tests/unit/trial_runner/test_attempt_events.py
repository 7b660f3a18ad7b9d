"""What happens to an attempt ends its ranks, from the moment at which they can be ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from gangline.domain.state import ExitKind, LogLevel
from gangline.v1 import runner_pb2, types_pb2
from services.common.state_folder import SharedFolder
from services.trial_runner.attempt_events import AttemptEvents
from services.trial_runner.gang.gang_plan import Place
from services.trial_runner.gang.outcome import FailureRecord

PLACE = Place("a1", 0, ("a1", "a2"), first_rank=0, local_world_size=1, world_size=2)
GRACE_SECONDS = 60.0


class Ranks:
    """The ranks, their link and the trial's log. calls: in their order."""

    connected = frozenset({0})

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.has_begun = False
        self.living_pids = [0, 12]

    def on_peer_failure(self) -> None:
        self.calls.append("peer failure")

    def stop(self, deadline_at: float, has_link: frozenset[int]) -> None:
        self.calls.append(("stop", has_link))

    def preempt(self, reason: str, grace_seconds: float) -> None:
        assert 0 < grace_seconds <= GRACE_SECONDS
        self.calls.append(("preempt", reason))

    def note(self, text: str, level: LogLevel) -> None:
        self.calls.append((level, text))


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


@pytest.fixture
async def events(ranks: Ranks, tmp_path: Path) -> AttemptEvents:
    return AttemptEvents(SharedFolder(tmp_path), PLACE, GRACE_SECONDS, cast(Any, ranks), cast(Any, ranks))


def _failure(message: str, at: float) -> FailureRecord:
    return FailureRecord(ExitKind.USER_ERROR, message, 1, "a2", at)


async def test_an_order_during_the_start_reaches_the_ranks_once_they_are_up(
    events: AttemptEvents, ranks: Ranks
) -> None:
    events.on_ranks_start(cast(Any, ranks))
    events.stop.ask(ExitKind.PREEMPTED, "a pause")
    assert ranks.calls == []
    assert events.stop.came.is_set()
    events.on_ranks_up()
    assert ranks.calls == [("preempt", "a pause"), ("stop", {0})]
    events.stop.ask(ExitKind.KILLED, "no more")
    assert ranks.calls[2:] == [("stop", {0})], "a kill asks for no checkpoint"


async def test_a_failure_elsewhere_ends_ranks_that_still_start(events: AttemptEvents, ranks: Ranks) -> None:
    events.on_peer_failure(_failure("Connection closed by peer", 0.0))
    assert events.peer_told.is_set()
    events.on_ranks_start(cast(Any, ranks))
    assert ranks.calls == []
    events.on_peer_failure(_failure("the cause", 1.0))
    assert ranks.calls == ["peer failure"]
    events.on_ranks_up()
    assert ranks.calls == ["peer failure", "peer failure"]
    assert events.peer == _failure("the cause", 1.0)


async def test_a_hang_of_an_own_rank_is_no_failure_elsewhere(events: AttemptEvents, ranks: Ranks) -> None:
    events.on_ranks_start(cast(Any, ranks))
    events.on_own_hang(_failure("hangs", 1.0))
    assert ranks.calls == ["peer failure"]
    assert (events.hang, events.peer) == (_failure("hangs", 1.0), None)


async def test_a_cut_is_in_the_trials_log_and_kills(events: AttemptEvents, ranks: Ranks) -> None:
    events.on_ranks_start(cast(Any, ranks))
    events.on_ranks_up()
    events.on_cut("cut off")
    assert ranks.calls == [(LogLevel.ERROR, "cut off"), ("stop", {0})]
    assert events.cut is not None
    assert (events.cut.kind, events.cut.agent_id) == (ExitKind.NETWORK, "a1")
    assert events.stop.stop is not None
    assert (events.stop.stop.kind, events.stop.stop.reason) == (ExitKind.KILLED, "cut off")


async def test_an_attempt_that_is_over_elsewhere_is_killed(events: AttemptEvents, ranks: Ranks) -> None:
    events.on_over("it has ended")
    assert ranks.calls == []
    assert events.cut is not None
    assert events.cut.message == "this attempt is over: it has ended"
    assert events.stop.stop is not None
    assert events.stop.stop.kind is ExitKind.KILLED


async def test_the_schedulers_order_counts_once_and_a_stricter_one_again(events: AttemptEvents, ranks: Ranks) -> None:
    events.on_ranks_start(cast(Any, ranks))
    events.on_ranks_up()
    preempt = runner_pb2.AttemptStop(kind=types_pb2.EXIT_KIND_PREEMPTED, reason="drain", grace_seconds=5)
    for _ in range(2):
        events.on_stop_order(preempt)
    assert ranks.calls == [("preempt", "drain"), ("stop", {0})]
    assert 0 < events.stop.grace_seconds <= 5
    # A kind of a later version counts as a kill.
    events.on_stop_order(runner_pb2.AttemptStop(reason="gone"))
    assert events.stop.grace_seconds == 0
    events.on_stop_order(preempt)
    assert events.stop.stop is not None
    assert events.stop.stop.reason == "gone"


async def test_the_lease_protects_the_startup_hook_and_then_the_ranks(events: AttemptEvents, ranks: Ranks) -> None:
    assert events.pids() == []
    events.on_hook(11)
    assert events.pids() == [11]
    events.on_ranks_start(cast(Any, ranks))
    assert events.pids() == [12]


async def test_an_attempt_has_begun_with_the_first_program_of_the_users(events: AttemptEvents, ranks: Ranks) -> None:
    events.on_ranks_start(cast(Any, ranks))
    seen = [events.has_begun]
    ranks.has_begun = True
    seen.append(events.has_begun)
    ranks.has_begun = False
    events.on_begin()
    assert [*seen, events.has_begun] == [False, True, True]
