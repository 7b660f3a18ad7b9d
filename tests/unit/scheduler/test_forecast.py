"""When something that waits is to be expected to start: room over time, backfill beside a reservation, run times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.scheduler.placement import AgentRoom, PendingRequest, Plan, PoolConfig, Running, Snapshot, plan
from services.scheduler.placement.capacity.free_slots import FreeSlots

POOL = "default"
NOW = 1000.0


def _work(name: str, agent: str, slots: int, end_at: float) -> Running:
    return Running(name, name, name, POOL, {agent: slots}, started_at=NOW - 500, estimated_end_at=end_at)


def _request(name: str, slots: int, seconds: float = 0.0, at: float = 1.0) -> PendingRequest:
    return PendingRequest(name, name, POOL, slots, submitted_at=at, estimated_seconds=seconds)


def _plan(
    works: tuple[Running, ...], requests: tuple[PendingRequest, ...], typical: float = 0.0, backfill: bool = True
) -> Plan:
    """Two agents of four slots."""
    used = {agent: sum(work.slots_by_agent.get(agent, 0) for work in works) for agent in ("a1", "a2")}
    agents = tuple(AgentRoom(agent, POOL, 4, slots) for agent, slots in used.items())
    config = PoolConfig(POOL, backfill=backfill)
    return plan(Snapshot((config,), agents, requests, works, typical_run_seconds={POOL: typical}), NOW)


def _etas(decided: Plan) -> dict[str, float | None]:
    return {name: reason.eta_at for name, reason in decided.reasons.items()}


# a1 is busy for long, a2 for a short while; the gang needs both.
BUSY = (_work("long", "a1", 4, 9000), _work("short", "a2", 4, 1200))


def test_the_head_is_expected_when_its_reservation_says() -> None:
    assert _etas(_plan(BUSY, (_request("gang", 8),))) == {"gang": 9000}


def test_what_is_over_in_time_is_expected_before_the_head() -> None:
    requests = (_request("gang", 8, 500, at=1), _request("quick", 4, 100, at=2), _request("slow", 4, 9000, at=3))
    works = tuple(replace(work, is_bounded=True) for work in BUSY)
    etas = _etas(_plan(works, tuple(replace(request, is_bounded=True) for request in requests)))
    assert etas["quick"] == 1200
    assert etas["slow"] == 9500
    # A guess that it will be over in time is not enough.
    assert _etas(_plan(BUSY, requests))["quick"] == 9500


def test_who_may_be_late_is_expected_after_the_head() -> None:
    etas = _etas(_plan(BUSY, (_request("gang", 8, 500, at=1), _request("unknown", 4, at=2))))
    assert etas == {"gang": 9000, "unknown": 9500}


def test_without_backfill_nobody_is_expected_before_the_head() -> None:
    requests = (_request("gang", 8, 500, at=1), _request("quick", 4, 100, at=2))
    assert _etas(_plan(BUSY, requests, backfill=False)) == {"gang": 9000, "quick": 9500}


def test_beside_the_slots_of_the_reservation_anybody_may_start() -> None:
    """The head waits for a2 alone; what a1 frees later is of no use to it."""
    works = (_work("short", "a2", 4, 1200), *(_work(f"w{n}", "a1", 1, 1100 + n) for n in range(4)))
    etas = _etas(_plan(works, (_request("gang", 4, at=1), _request("single", 1, at=2))))
    assert etas["gang"] == 1103
    assert etas["single"] == 1200


def test_a_bound_on_an_unknown_run_time_is_none() -> None:
    """Others took 100 s, which would be over in time. A request without an estimate may take longer."""
    works = tuple(replace(work, is_bounded=True) for work in BUSY)
    requests = (_request("gang", 8, 500, at=1), replace(_request("unknown", 4, at=2), is_bounded=True))
    assert _etas(_plan(works, requests, typical=100.0)) == {"gang": 9000, "unknown": 9500}


def test_an_agent_with_more_spare_than_free_slots_keeps_none_of_them() -> None:
    """Once the first work has ended, two slots are free, and two are spare in every order of ends."""
    works = (_work("first", "a1", 2, 1200), _work("second", "a1", 6, 9000))
    requests = (_request("head", 4, at=1), _request("pair", 2, at=2))
    snapshot = Snapshot((PoolConfig(POOL),), (AgentRoom("a1", POOL, 8, 8),), requests, works)
    assert _etas(plan(snapshot, NOW)) == {"head": 9000, "pair": 1200}


@pytest.mark.parametrize(("typical", "expected"), [(0.0, 9000 + 3600), (250.0, 9250.0)])
def test_where_nothing_is_known_it_takes_as_long_as_others_did(typical: float, expected: float) -> None:
    etas = _etas(_plan(BUSY, (_request("first", 8, at=1), _request("second", 8, at=2)), typical))
    assert etas == {"first": 9000, "second": expected}


@pytest.mark.parametrize(("blocklist", "eta"), [((), 1200.0), (("a1",), 1300.0), (("a3",), 1200.0)])
def test_whole_agents_that_a_request_avoids_open_nothing_to_it(blocklist: tuple[str, ...], eta: float) -> None:
    works = tuple(_work(f"w{n}", f"a{n}", 4, NOW + 100.0 * n) for n in (1, 2, 3))
    agents = tuple(AgentRoom(f"a{n}", POOL, 4, 4) for n in (1, 2, 3))
    gang = replace(_request("gang", 8), blocklist=blocklist)
    assert _etas(plan(Snapshot((PoolConfig(POOL),), agents, (gang,), works), NOW)) == {"gang": eta}


def test_an_eta_does_not_depend_on_what_waits_behind() -> None:
    requests = tuple(_request(f"r{n}", 1 + n % 4, 100 * (n % 3), at=float(n)) for n in range(20))
    few, many = _etas(_plan(BUSY, requests[:10])), _etas(_plan(BUSY, requests))
    assert few == {name: many[name] for name in few}
    assert all(eta is not None and eta > NOW for eta in many.values())


def test_steps_of_a_profile() -> None:
    profile = FreeSlots(NOW, 2, [(1010.0, 3), (5000.0, 1)])
    assert [profile.free[profile.step_at(at)] for at in (NOW, 1010.0, 2000.0, 5000.0)] == [2, 5, 5, 6]
    assert profile.time_of(profile.step_at(1010.0)) == 1010.0
    steps = [profile.step_at(NOW + 15 * 1.1**n) for n in range(50)]
    assert steps == list(range(1, 51))
    assert profile.step_at(1e12) == len(profile.free) - 1
    assert FreeSlots(NOW, 2, [(NOW, 3)]).free[0] == 5
    assert FreeSlots(NOW, 2, []).time_of(0) == NOW


def test_a_run_within_one_step_gives_its_slots_back_in_the_next() -> None:
    profile = FreeSlots(NOW, 4, [])
    profile.take(0, NOW, 1)
    assert profile.free[:3] == [3, 4, 4]


def test_slots_that_come_back_in_an_earlier_step_are_waited_for() -> None:
    """A step lasts longer than a short run, so the slot of this run comes back one step late, under its own time."""
    profile = FreeSlots(NOW, 1, [(NOW + 1000, 1)])
    step = profile.step_at(NOW + 1000)
    profile.take(step, NOW + 1010, 1)
    assert profile.time_of(step + 1) == NOW + 1010
    profile.take(0, NOW + 1080, 1)
    assert profile.step_at(NOW + 1080) == step
    assert profile.find(2, 1, True, 0) == step + 1
    assert profile.time_of(step + 1) == NOW + 1080
    assert profile.time_of(step + 2) == NOW + 15 * 1.1 ** (step + 1)


def test_room_for_a_whole_run() -> None:
    profile = FreeSlots(NOW, 4, [])
    later = profile.step_at(NOW + 1000)
    profile.take(later, NOW + 2000, 3)
    assert profile.find(4, 100, True, 0) == 0
    assert profile.find(2, 1500, True, 0) == profile.step_at(NOW + 2000)
    assert profile.find(5, 1, True, 0) is None


def test_kept_slots_are_for_who_is_sure_to_be_over() -> None:
    profile = FreeSlots(NOW, 4, [])
    due = profile.step_at(NOW + 1000)
    profile.keep([4] * due)
    assert profile.find(1, 500, True, 0) == 0
    assert profile.find(1, 1000, True, 0) == 0
    assert profile.find(1, 500, False, 0) == due
    assert profile.find(1, 5000, True, 0) == due


def test_a_snapshot_keeps_what_is_typical_to_its_pool() -> None:
    snapshot = Snapshot((PoolConfig(POOL),), (AgentRoom("a1", POOL, 1, 1),), (_request("a", 1), _request("b", 1, at=2)))
    work = _work("w", "a1", 1, 1100.0)
    elsewhere = replace(snapshot, running=(work,), typical_run_seconds={"other": 5.0})
    assert _etas(plan(elsewhere, NOW)) == {"a": 1100.0, "b": 4700.0}
