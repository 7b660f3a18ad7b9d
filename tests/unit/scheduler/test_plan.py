"""The planner: fits, order, determinism, and the reasons it gives."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gangline.domain.state import ReasonCode
from services.scheduler.placement import AgentRoom, PendingRequest, Plan, PoolConfig, Running, Snapshot, plan
from services.scheduler.placement.request.snapshot import default_pool
from services.scheduler.placement.request.snapshot_change import AddAgents, apply_change
from tests.support.work import calls_of

POOL = PoolConfig("default")


def _request(number: int, slots: int, **fields: object) -> PendingRequest:
    base = PendingRequest(f"{number}.1", str(number), "default", slots, submitted_at=float(number))
    return replace(base, **fields)  # type: ignore[arg-type]  # any field


def _plan(agents: list[AgentRoom], requests: list[PendingRequest], running: list[Running] | None = None) -> Plan:
    return plan(Snapshot((POOL,), tuple(agents), tuple(requests), tuple(running or ())), now=100.0)


def _room(agent_id: str, slots: int, used: int = 0, **fields: object) -> AgentRoom:
    return replace(AgentRoom(agent_id, "default", slots, used), **fields)  # type: ignore[arg-type]  # any field


def _assigned(decided: Plan) -> dict[str, dict[str, int]]:
    return {assignment.trial_id: dict(assignment.slots_by_agent) for assignment in decided.assignments}


def test_a_gang_that_fits_one_agent_goes_to_the_fullest() -> None:
    agents = [_room("a1", 8), _room("a2", 8, used=5), _room("a3", 4)]
    assert _assigned(_plan(agents, [_request(1, 3)])) == {"1.1": {"a2": 3}}


def test_worst_takes_the_emptiest() -> None:
    snapshot = Snapshot(
        (replace(POOL, fitting="worst"),), (_room("a1", 4, used=2), _room("a2", 8, used=2)), (_request(1, 2),)
    )
    assert _assigned(plan(snapshot, 0.0)) == {"1.1": {"a2": 2}}


def test_a_larger_gang_takes_whole_idle_agents_of_one_size() -> None:
    agents = [_room("a1", 4), _room("a2", 4), _room("a3", 2), _room("a4", 2), _room("a5", 4, used=1)]
    assert _assigned(_plan(agents, [_request(1, 8)])) == {"1.1": {"a1": 4, "a2": 4}}


def test_the_fewest_agents_that_do() -> None:
    agents = [_room(f"b{number}", 2) for number in range(8)] + [_room("a1", 8), _room("a2", 8)]
    assert _assigned(_plan(agents, [_request(1, 16)])) == {"1.1": {"a1": 8, "a2": 8}}


def test_unequal_agents_are_not_mixed() -> None:
    decided = _plan([_room("a1", 4), _room("a2", 2)], [_request(1, 6)])
    assert decided.reasons["1.1"].code is ReasonCode.NEVER_FITS


def test_single_agent_requests_are_never_split() -> None:
    decided = _plan([_room("a1", 2), _room("a2", 2)], [_request(1, 4, is_single_agent=True)])
    assert not decided.assignments
    assert decided.reasons["1.1"].code is ReasonCode.NEVER_FITS


def test_agents_on_the_blocklist_are_left_out() -> None:
    agents = [_room("a1", 2), _room("a2", 2)]
    assert _assigned(_plan(agents, [_request(1, 2, blocklist=("a1",))])) == {"1.1": {"a2": 2}}
    waiting = _plan(agents, [_request(1, 2), _request(2, 2, blocklist=("a1",)), _request(3, 2, blocklist=("a1",))])
    assert waiting.reasons["3.1"].message.startswith("needs 2 slots, but not on a1; ")
    decided = _plan(agents, [_request(1, 2, blocklist=("a1", "a2"))])
    assert "blocklist" in decided.reasons["1.1"].message


def test_urgent_first_then_by_submission() -> None:
    requests = [_request(1, 2), _request(2, 2), _request(3, 2, priority=1)]
    decided = _plan([_room("a1", 2), _room("a2", 2)], requests)
    assert [assignment.trial_id for assignment in decided.assignments] == ["3.1", "1.1"]


def test_what_fits_behind_a_gang_that_waits_starts() -> None:
    decided = _plan([_room("a1", 2, used=1)], [_request(1, 2), _request(2, 1)])
    assert _assigned(decided) == {"2.1": {"a1": 1}}
    assert list(decided.reasons) == ["1.1"]


def test_promised_slots_are_gone() -> None:
    decided = _plan([_room("a1", 2)], [_request(1, 1), _request(2, 1), _request(3, 1)])
    assert len(decided.assignments) == 2
    assert decided.reasons["3.1"].code is ReasonCode.NO_CAPACITY


def test_work_without_slots_takes_an_auxiliary_place() -> None:
    agents = [_room("a1", 1, used=1), _room("a2", 1, used=1, max_zero_slot=1, used_zero_slot=1)]
    assert _assigned(_plan(agents, [_request(1, 0)])) == {"1.1": {"a1": 0}}
    full = [_room("a1", 1, max_zero_slot=1, used_zero_slot=1)]
    assert _plan(full, [_request(1, 0)]).reasons["1.1"].code is ReasonCode.NO_CAPACITY


def test_no_capacity_names_what_would_have_to_end() -> None:
    running = [
        Running("7.1.1", "7.1", "7", "default", {"a1": 1}, started_at=1.0),
        Running("8.1.1", "8.1", "8", "default", {"a1": 1}, started_at=2.0),
    ]
    decided = _plan([_room("a1", 2, used=2)], [_request(9, 1)], running)
    reason = decided.reasons["9.1"]
    assert reason.code is ReasonCode.NO_CAPACITY
    assert reason.message == "needs 1 slot; 0 of 2 are free in pool 'default'"
    assert reason.blocking_ids == ("8.1.1",)
    assert reason.would_start_if == "these end: trial 8.1 (attempt 1)"


def test_fragmented_when_enough_is_free_but_spread() -> None:
    running = [Running(f"{n}.1.1", f"{n}.1", str(n), "default", {f"a{n}": 1}) for n in (1, 2)]
    decided = _plan([_room("a1", 2, used=1), _room("a2", 2, used=1)], [_request(9, 2)], running)
    reason = decided.reasons["9.1"]
    assert reason.code is ReasonCode.FRAGMENTED
    assert "2 are free, but spread over agents (a1: 1 of 2, a2: 1 of 2)" in reason.message
    assert len(reason.blocking_ids) == 1


def test_agents_unhealthy_names_them() -> None:
    agents = [_room("a1", 2), _room("a2", 2, is_usable=False, problem="not connected")]
    reason = _plan(agents, [_request(1, 4)]).reasons["1.1"]
    assert reason.code is ReasonCode.AGENTS_UNHEALTHY
    assert "a2 (not connected)" in reason.message
    assert reason.blocking_ids == ("a2",)


def test_agents_that_an_administrator_switched_off_have_a_reason_of_their_own() -> None:
    drained = _room("a2", 2, is_usable=False, problem="drained", switched_off="draining")
    reason = _plan([_room("a1", 2), drained], [_request(1, 4)]).reasons["1.1"]
    assert (reason.code, reason.blocking_ids) == (ReasonCode.AGENTS_DISABLED, ("a2",))
    assert reason.message == (
        "needs 4 slots; a2 is being drained by an administrator; enable it with: gangline agent enable a2"
    )
    slots = _room("a1", 1, disabled=1, switched_off_slots=1)
    reason = _plan([slots, drained], [_request(1, 4)]).reasons["1.1"]
    assert (reason.code, reason.message) == (
        ReasonCode.AGENTS_DISABLED,
        "needs 4 slots; a1 has 1 of 2 slots drained or disabled by an administrator, a2 is being drained by an "
        "administrator; enable them with: gangline agent enable a2, gangline slot enable a1/SLOT",
    )


def test_an_administrators_setting_is_not_blamed_where_enabling_is_not_enough() -> None:
    drained = _room("a2", 2, is_usable=False, problem="drained by an administrator", switched_off="draining")
    lost = _room("a3", 2, is_usable=False, problem="not connected")
    reason = _plan([_room("a1", 2), drained, lost], [_request(1, 6)]).reasons["1.1"]
    assert reason.code is ReasonCode.AGENTS_UNHEALTHY
    assert "a2 (drained by an administrator), a3 (not connected)" in reason.message
    half = _room("a1", 1, disabled=1)
    assert _plan([half, drained], [_request(1, 4)]).reasons["1.1"].code is ReasonCode.AGENTS_UNHEALTHY


def test_backoff_ends_by_itself() -> None:
    request = _request(1, 1, not_before_at=104.0)
    reason = _plan([_room("a1", 2)], [request]).reasons["1.1"]
    assert (reason.code, reason.eta_at) == (ReasonCode.BACKOFF_AFTER_FAILURE, 104.0)
    assert "4.0 s" in reason.message


def test_pools_without_agents_and_pools_that_are_gone() -> None:
    assert _plan([], [_request(1, 1)]).reasons["1.1"].code is ReasonCode.NO_MATCHING_POOL
    reason = _plan([], [_request(1, 1, pool="gone")]).reasons["1.1"]
    assert reason.message == "there is no pool 'gone'; the pools are default"


def test_ties_do_not_always_fall_on_one_agent() -> None:
    agents = [_room(f"a{number}", 8) for number in range(8)]
    picks = {next(iter(_assigned(_plan(agents, [_request(n, 1)]))[f"{n}.1"])) for n in range(1, 40)}
    assert len(picks) > 3


rooms = st.builds(
    lambda number, slots, used, usable: _room(f"a{number}", slots, min(used, slots), is_usable=usable),
    st.integers(0, 9),
    st.integers(1, 4),
    st.integers(0, 4),
    st.booleans(),
)


@given(
    agents=st.lists(rooms, max_size=6, unique_by=lambda room: room.id),
    sizes=st.lists(st.integers(0, 9), max_size=8),
    data=st.data(),
)
def test_plans_are_sound_and_depend_on_nothing_but_their_input(
    agents: list[AgentRoom], sizes: list[int], data: st.DataObject
) -> None:
    requests = [_request(number + 1, slots) for number, slots in enumerate(sizes)]
    decided = _plan(agents, requests)
    free = {agent.id: agent.free for agent in agents if agent.is_usable}
    for assignment in decided.assignments:
        for agent_id, slots in assignment.slots_by_agent.items():
            free[agent_id] -= slots
        wanted = next(request.slots for request in requests if request.trial_id == assignment.trial_id)
        assert sum(assignment.slots_by_agent.values()) == wanted
    assert all(left >= 0 for left in free.values())
    assert {assignment.trial_id for assignment in decided.assignments} | set(decided.reasons) == {
        r.trial_id for r in requests
    }
    shuffled = _plan(data.draw(st.permutations(agents)), data.draw(st.permutations(requests)))
    assert _assigned(shuffled) == _assigned(decided)
    assert {key: reason.code for key, reason in shuffled.reasons.items()} == {
        key: reason.code for key, reason in decided.reasons.items()
    }


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    wanted=st.integers(1, 9),
    held=st.lists(st.integers(0, 4), max_size=5),
)
def test_the_named_end_of_running_work_starts_the_request(sizes: list[int], wanted: int, held: list[int]) -> None:
    """The counterfactual is true: with the blocking work gone, the same planner places it."""
    agents, running = [], []
    for number, slots in enumerate(sizes):
        used = min(slots, held[number] if number < len(held) else 0)
        agents.append(_room(f"a{number}", slots, used))
        if used:
            running.append(Running(f"{number + 1}.1.1", f"{number + 1}.1", "g", "default", {f"a{number}": used}))
    reason = _plan(agents, [_request(99, wanted)], running).reasons.get("99.1")
    if reason is None or reason.code not in (ReasonCode.NO_CAPACITY, ReasonCode.FRAGMENTED):
        return
    assert reason.blocking_ids
    freed = {
        agent_id for work in running if work.allocation_id in reason.blocking_ids for agent_id in work.slots_by_agent
    }
    after = [replace(agent, used=0) if agent.id in freed else agent for agent in agents]
    assert _plan(after, [_request(99, wanted)]).assignments


@pytest.mark.parametrize("num_agents", [8, 64])
def test_twice_as_many_pending_are_at_most_twice_the_work(num_agents: int) -> None:
    agents = [_room(f"a{number}", 8, used=8 - number % 8) for number in range(num_agents)]
    requests = [_request(number, (1, 2, 4, 8, 16)[number % 5]) for number in range(1, 1001)]
    decided = _plan(agents, requests)
    assert len(decided.assignments) + len(decided.reasons) == 1000
    assert calls_of(lambda: _plan(agents, requests)) < 2 * calls_of(lambda: _plan(agents, requests[:500]))


def test_agents_of_a_pool_that_no_setting_describes_come_with_the_defaults_of_pools() -> None:
    """Counterfactuals plan as the pool would once its agents were there."""
    grown = apply_change(Snapshot((), ()), AddAgents("lab", 1, 4))
    assert grown.pools == (default_pool("lab"),)
