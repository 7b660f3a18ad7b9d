"""How old an answer of the leader may be, and how many callers share one call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline.domain.allocation import Reason, Request
from gangline.domain.state import ReasonCode
from gangline.errors import unavailable
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2
from services.gateway.usecase.shared import pending
from services.gateway.usecase.shared.pending import Pending


class StandInLeader:
    """waiting: the trials of its next answers. paused: those of them that are paused."""

    def __init__(self) -> None:
        self.waiting = ["1.1"]
        self.paused: list[str] = []
        self.num_calls = 0
        self.is_away = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def call_once(self, _method: Any, _request: Any, _seconds: float) -> scheduler_pb2.ListPendingResponse:
        self.num_calls += 1
        await self.may_answer.wait()
        await asyncio.sleep(0)
        if self.is_away:
            raise unavailable("gateway.no_leader", "no scheduler leads this cluster")
        return scheduler_pb2.ListPendingResponse(
            pending=[
                scheduler_pb2.PendingRequest(
                    request=wire.to_proto(Request(trial_id, 1, "default", 1)),
                    reason=wire.to_proto(
                        Reason(ReasonCode.PAUSED if trial_id in self.paused else ReasonCode.NO_CAPACITY, "it waits")
                    ),
                )
                for trial_id in self.waiting
            ]
        )


@pytest.fixture
def leader() -> StandInLeader:
    return StandInLeader()


@pytest.fixture
def made(leader: StandInLeader) -> Pending:
    return Pending(leader)  # type: ignore[arg-type]  # it has the one method that is called


async def test_a_trial_that_was_submitted_after_the_last_answer_gets_its_reason(
    made: Pending, leader: StandInLeader
) -> None:
    for number in range(1, 5):
        leader.waiting = [f"{each}.1" for each in range(1, number + 1)]
        assert set(await made.standings(leader.waiting)) == set(leader.waiting)
    assert leader.num_calls == 4


async def test_a_paused_trial_has_no_place_and_takes_none_from_others(made: Pending, leader: StandInLeader) -> None:
    leader.waiting, leader.paused = ["1.1", "2.1", "3.1"], ["1.1", "2.1"]
    standings = await made.standings(leader.waiting)
    assert {trial_id: standing.queue_place for trial_id, standing in standings.items()} == {
        "1.1": 0, "2.1": 0, "3.1": 1,
    }  # fmt: skip


async def test_callers_share_a_call_also_for_a_trial_that_no_answer_has(
    made: Pending, leader: StandInLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "FRESH_SECONDS", 600.0)
    await made.standings(["1.1"])
    await made.standings(["1.1"])
    assert leader.num_calls == 1
    answers = await asyncio.gather(*(made.standings(["1.1", "9.1"]) for _ in range(50)))
    assert all(set(answer) == {"1.1"} for answer in answers)
    # Callers who came after the begin of the shared call share the one after it.
    assert leader.num_calls in (2, 3)


async def test_without_a_leader_nobody_waits_for_the_next_call(made: Pending, leader: StandInLeader) -> None:
    leader.is_away = True
    assert [await made.standings(["1.1"]) for _ in range(3)] == [{}, {}, {}]
    assert leader.num_calls == 1


async def test_views_do_not_wait_for_a_leader_that_hangs_and_share_its_late_answer(
    made: Pending, leader: StandInLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "FRESH_SECONDS", 600.0)
    leader.may_answer.clear()
    explaining = asyncio.create_task(made.standings(["1.1"], 60.0))
    clock = asyncio.get_running_loop().time
    begin = clock()
    assert await asyncio.gather(*(made.standings(["1.1"], 0.2) for _ in range(10))) == [{}] * 10
    # The call has run for longer than a view can afford, so views that come now do not wait at all.
    for _ in range(1000):
        assert await made.standings(["1.1"], 0.2) == {}
    assert clock() - begin < 60.0
    leader.may_answer.set()
    assert set(await explaining) == {"1.1"}
    assert set(await made.standings(["1.1"])) == {"1.1"}
    assert leader.num_calls == 1
