"""The store: order, batches, and what a failing commit leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from gangline.domain.resource import Agent, Counter
from gangline.errors import Effect, GanglineError, conflict, unavailable
from gangline.protocol import wire
from services.common.election import Deposed, Leadership
from services.common.etcd import Delete, Put
from services.common.etcd.transaction import MAX_OPERATIONS, check_limits
from services.scheduler.state.records import SINGLETON, Records, SchedulerState, StateChange
from services.scheduler.state.state_store import Store, Transition


class StandInLeadership:
    """Accepts what it is given, after raising what it was told to. gate: what a commit waits for. heard: whether etcd
    answers."""

    epoch = 7

    def __init__(self, *errors: Exception) -> None:
        self.transactions: list[Sequence[Put | Delete]] = []
        self._errors = list(errors)
        self.is_unsettled = False
        self.silent_seconds = 0.0
        self.heard = True
        self.problem = "etcd has no quorum"
        self.gate = asyncio.Event()
        self.gate.set()

    async def is_heard(self, seconds: float) -> bool:
        return self.heard

    async def explain_silence(self) -> str:
        return self.problem

    async def commit(self, operations: Sequence[Put | Delete]) -> int:
        await asyncio.sleep(0)
        await self.gate.wait()
        check_limits(operations, ())
        if self._errors:
            raise self._errors.pop(0)
        self.transactions.append(operations)
        return len(self.transactions)


@asynccontextmanager
async def _running(leadership: StandInLeadership) -> AsyncIterator[tuple[Store, list[StateChange]]]:
    seen: list[StateChange] = []
    store = Store(cast("Leadership", leadership), SchedulerState(), seen.append)
    task = asyncio.create_task(store.run())
    try:
        yield store, seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _count_up(records: Records) -> StateChange:
    counter = records.find(Counter, SINGLETON) or Counter(0)
    return StateChange(puts=(Counter(counter.next_value + 1), Agent(f"a{counter.next_value}")))


async def test_what_waits_together_is_one_transaction_in_order() -> None:
    leadership = StandInLeadership()
    async with _running(leadership) as (store, seen):
        changes = await asyncio.gather(*(store.commit(_count_up) for _ in range(10)))
    assert [next(change.all_of(Agent)).id for change in changes] == [f"a{number}" for number in range(10)]
    assert store.state.find(Counter, SINGLETON) == Counter(10)
    assert len(leadership.transactions) == len(seen) == 1
    keys = [operation.key for operation in leadership.transactions[0]]
    assert len(keys) == len(set(keys)) == 11


async def test_a_transaction_stays_within_etcds_limit() -> None:
    leadership = StandInLeadership()
    async with _running(leadership) as (store, _):
        await asyncio.gather(*(store.commit(_count_up) for _ in range(300)))
    assert store.state.count(Agent) == 300
    assert max(len(operations) for operations in leadership.transactions) <= MAX_OPERATIONS
    assert len(leadership.transactions) == 3


def _adds(agent_id: str, num_bytes: int) -> Transition:
    return lambda _: StateChange(puts=(Agent(agent_id, hostname="h" * num_bytes),))


async def test_a_transaction_stays_within_its_bytes() -> None:
    leadership = StandInLeadership()
    async with _running(leadership) as (store, _):
        await asyncio.gather(*(store.commit(_adds(f"a{number}", 60_000)) for number in range(10)))
    assert store.state.count(Agent) == 10
    assert len(leadership.transactions) == 2


async def test_a_record_that_several_changes_of_a_transaction_touch_is_encoded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[object] = []
    encode = wire.encode

    def note(record: object) -> bytes:
        encoded.append(record)
        return encode(record)

    monkeypatch.setattr(wire, "encode", note)
    async with _running(StandInLeadership()) as (store, _):
        await asyncio.gather(*(store.commit(_count_up) for _ in range(10)))
    assert sorted(type(record).__name__ for record in encoded) == ["Agent"] * 10 + ["Counter"]


async def test_what_no_transaction_holds_is_refused_and_the_leader_goes_on() -> None:
    def adds_many(_: Records) -> StateChange:
        return StateChange(puts=tuple(Agent(f"m{number}") for number in range(MAX_OPERATIONS + 1)))

    async with _running(StandInLeadership()) as (store, _):
        results = await asyncio.gather(
            store.commit(_adds("a1", 10)),
            store.commit(_adds("a2", 600_000)),
            store.commit(adds_many),
            store.commit(_adds("a3", 10)),
            return_exceptions=True,
        )
    refused = [result for result in results if isinstance(result, GanglineError)]
    assert [error.code for error in refused] == ["state.too_large"] * 2
    assert "600" in refused[0].message
    assert sorted(agent.id for agent in store.state.all_of(Agent)) == ["a1", "a3"]


async def test_nothing_to_do_writes_nothing() -> None:
    leadership = StandInLeadership()
    async with _running(leadership) as (store, _):
        assert not await store.commit(lambda _: StateChange())
    assert leadership.transactions == []


async def test_one_that_is_refused_does_not_touch_the_others() -> None:
    def refuse(_: Records) -> StateChange:
        raise conflict("some.code", "no")

    async with _running(StandInLeadership()) as (store, _):
        results = await asyncio.gather(
            store.commit(_count_up), store.commit(refuse), store.commit(_count_up), return_exceptions=True
        )
    assert isinstance(results[1], GanglineError)
    assert store.state.count(Agent) == 2


async def test_an_outage_of_etcd_is_waited_out() -> None:
    leadership = StandInLeadership(unavailable("etcd.unreachable", "away"))
    async with _running(leadership) as (store, _):
        assert await store.commit(_count_up)
    assert len(leadership.transactions) == 1


async def test_a_stall_is_told_before_the_next_transition_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.scheduler.state.state_store.STALLED_SECONDS", 0.0)
    told: list[str] = []

    def look(_: Records) -> StateChange:
        told.append("transition")
        return StateChange()

    store = Store(
        cast("Leadership", StandInLeadership()), SchedulerState(), lambda _: None, lambda: told.append("stalled")
    )
    task = asyncio.create_task(store.run())
    first = asyncio.create_task(store.commit(_count_up))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await store.commit(look)
    assert await first
    assert told == ["stalled", "transition"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_deposed_leader_answers_so_and_its_memory_stays() -> None:
    async with _running(StandInLeadership(Deposed("over"))) as (store, seen):
        for _ in range(2):
            with pytest.raises(GanglineError) as caught:
                await store.commit(_count_up)
            assert caught.value.code == "scheduler.not_leader"
    assert store.state.count(Agent) == 0
    assert seen == []


async def _effect_of(work: Awaitable[object]) -> Effect:
    with pytest.raises(GanglineError) as caught:
        await work
    assert caught.value.code in ("state.unwritable", "scheduler.not_leader")
    return caught.value.effect


async def test_a_change_is_not_sent_while_etcd_is_silent() -> None:
    leadership = StandInLeadership()
    leadership.heard = False
    async with _running(leadership) as (store, _):
        assert await _effect_of(store.commit_asked(_count_up)) is Effect.NONE
        leadership.heard = True
        await store.commit(_count_up)
    assert store.state.count(Agent) == 1
    assert len(leadership.transactions) == 1


def _paused(*errors: Exception) -> StandInLeadership:
    """Etcd was silent for long, and answers now."""
    leadership = StandInLeadership(*errors)
    leadership.heard, leadership.problem = False, ""
    return leadership


async def test_a_leader_that_was_paused_writes_where_etcd_answers_now() -> None:
    leadership = _paused()
    async with _running(leadership) as (store, _):
        await store.commit_asked(_count_up)
    assert len(leadership.transactions) == 1


async def test_a_leader_that_was_paused_and_deposed_says_that_it_does_not_lead() -> None:
    async with _running(_paused(Deposed("over"))) as (store, _):
        with pytest.raises(GanglineError) as caught:
            await store.commit_asked(_count_up)
    assert caught.value.code == "scheduler.not_leader"


async def test_a_change_behind_a_stuck_write_is_withdrawn_and_the_stuck_one_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.scheduler.state.state_store.ASKED_SECONDS", 0.1)
    leadership = StandInLeadership()
    leadership.gate.clear()
    async with _running(leadership) as (store, _):
        sent = asyncio.create_task(_effect_of(store.commit_asked(_count_up)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting = asyncio.create_task(_effect_of(store.commit_asked(_count_up)))
        assert (await sent, await waiting) == (Effect.UNKNOWN, Effect.NONE)
        # By now it is known that etcd is stuck, so the next one is not even queued.
        with monkeypatch.context() as during:
            during.setattr(store, "_enqueue", lambda _: pytest.fail("queued behind a write that is stuck"))
            assert await _effect_of(store.commit_asked(_count_up)) is Effect.NONE
        leadership.gate.set()
        await store.commit(_count_up)
    # The one that was sent, and the last one.
    assert store.state.count(Agent) == 2


async def test_a_caller_that_leaves_before_its_change_is_sent_has_withdrawn_it() -> None:
    leadership = StandInLeadership()
    leadership.gate.clear()
    async with _running(leadership) as (store, _):
        first = asyncio.create_task(store.commit(_count_up))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        leaving = asyncio.create_task(store.commit(_count_up))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        leadership.gate.set()
        await first
        await store.commit(lambda _: StateChange())
    assert store.state.count(Agent) == 1


async def test_after_a_refusal_of_etcd_a_change_may_be_withdrawn_but_not_while_a_write_is_unsettled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.scheduler.state.state_store.ASKED_SECONDS", 0.1)
    full = unavailable("etcd.no_space", "its database is at its quota", Effect.NONE)
    for is_unsettled, effect, num_agents in ((False, Effect.NONE, 1), (True, Effect.UNKNOWN, 2)):
        leadership = StandInLeadership(full, full)
        leadership.is_unsettled = is_unsettled
        async with _running(leadership) as (store, _):
            with pytest.raises(GanglineError) as caught:
                await store.commit_asked(_count_up)
            assert (caught.value.effect, caught.value.message) == (effect, "its database is at its quota")
            await store.commit(_count_up)
        assert store.state.count(Agent) == num_agents


async def test_a_term_that_ends_says_which_changes_the_next_leader_cannot_find() -> None:
    leadership = StandInLeadership()
    leadership.gate.clear()
    async with _running(leadership) as (store, _):
        sent = asyncio.create_task(_effect_of(store.commit(_count_up)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting = asyncio.create_task(_effect_of(store.commit(_count_up)))
        await asyncio.sleep(0)
    assert (await sent, await waiting) == (Effect.UNKNOWN, Effect.NONE)
    assert await _effect_of(store.commit(_count_up)) is Effect.NONE
