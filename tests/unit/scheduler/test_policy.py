"""The pools' policies: preemption, reservations and backfill, shares, turns, quotas, networks and draining agents."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.domain.state import ReasonCode
from services.scheduler.placement import AgentRoom, Group, PendingRequest, Plan, PoolConfig, Running, Snapshot, plan
from services.scheduler.placement.capacity.exact import find_sizes
from services.scheduler.placement.capacity.outlook import expected_end
from tests.support.work import calls_of

NOW = 1000.0
POOL = PoolConfig("default")
PREEMPTIVE = replace(POOL, is_preemption_on=True)
ON_CALL = replace(PREEMPTIVE, backfill="on_call")


def _request(number: int, slots: int, **fields: object) -> PendingRequest:
    base = PendingRequest(f"{number}.1", str(number), "default", slots, submitted_at=float(number))
    return replace(base, **fields)  # type: ignore[arg-type]  # any field


def _work(number: int, agent: str, slots: int, **fields: object) -> Running:
    base = Running(f"{number}.1.1", f"{number}.1", str(number), "default", {agent: slots}, started_at=500.0)
    return replace(base, **fields)  # type: ignore[arg-type]  # any field


def _plan(
    config: PoolConfig,
    sizes: dict[str, int],
    requests: list[PendingRequest],
    running: list[Running] | None = None,
    groups: tuple[Group, ...] = (),
) -> Plan:
    used = dict.fromkeys(sizes, 0)
    for work in running or []:
        for agent_id, slots in work.slots_by_agent.items():
            used[agent_id] += slots
    agents = tuple(AgentRoom(agent_id, "default", slots, used[agent_id]) for agent_id, slots in sizes.items())
    return plan(
        Snapshot((config,), agents, tuple(requests), tuple(running or ()), {group.id: group for group in groups}), NOW
    )


def _assigned(decided: Plan) -> dict[str, dict[str, int]]:
    return {assignment.trial_id: dict(assignment.slots_by_agent) for assignment in decided.assignments}


def _stopped(decided: Plan) -> list[str]:
    return [preemption.allocation_id for preemption in decided.preemptions]


def test_unequal_agents_by_exact_search() -> None:
    config = replace(POOL, allow_heterogeneous_fits=True)
    decided = _plan(config, {"a": 8, "b": 6, "c": 5, "d": 1}, [_request(1, 11)])
    assert _assigned(decided) == {"1.1": {"b": 6, "c": 5}}


def test_exact_search_on_many_sizes_does_not_branch() -> None:
    counts = dict.fromkeys(range(1, 65), 1)
    results = [find_sizes(slots, counts) for slots in range(65, 1065, 100)]
    assert calls_of(lambda: find_sizes(965, counts)) < 2_000
    assert [sum(sizes or ()) for sizes in results] == list(range(65, 1065, 100))
    assert [len(sizes or ()) for sizes in results][:3] == [2, 3, 5]


def test_a_gang_keeps_to_one_rack_where_it_can() -> None:
    agents = tuple(AgentRoom(f"a{n}", "default", 4, labels={"rack": f"r{n % 3}"}) for n in range(8))
    snapshot = Snapshot((POOL,), agents, (_request(1, 8), _request(2, 12)))
    decided = _assigned(plan(snapshot, NOW))
    racks = {agent.id: agent.labels["rack"] for agent in agents}
    # r2 has two agents, so the pair takes just that rack; the three then find a whole one.
    assert {racks[agent_id] for agent_id in decided["1.1"]} == {"r2"}
    assert len({racks[agent_id] for agent_id in decided["2.1"]}) == 1


def test_preemption_takes_the_least_urgent_and_newest() -> None:
    running = [
        _work(10, "a", 2, priority=50, started_at=900.0),
        _work(11, "a", 2, priority=60, started_at=100.0),
        _work(12, "b", 2, priority=60, started_at=200.0),
        _work(13, "b", 2, priority=42, started_at=999.0),
    ]
    decided = _plan(PREEMPTIVE, {"a": 4, "b": 4}, [_request(1, 2)], running)
    assert _stopped(decided) == ["12.1.1"]
    assert decided.reasons["1.1"].code is ReasonCode.WAITING_FOR_PREEMPTION
    assert decided.reasons["1.1"].blocking_ids == ("12.1.1",)


def test_among_equals_the_freshest_checkpoint_goes() -> None:
    running = [
        _work(10, "a", 2, priority=60, checkpoint_age_seconds=300.0),
        _work(11, "a", 2, priority=60, checkpoint_age_seconds=20.0),
        _work(12, "a", 2, priority=60),
    ]
    assert _stopped(_plan(PREEMPTIVE, {"a": 6}, [_request(1, 2)], running)) == ["11.1.1"]


def test_needless_victims_are_spared() -> None:
    """The newest is swept first, but stopping it does not help: the gang needs the whole of b."""
    running = [_work(10, "a", 1, priority=60, started_at=900.0), _work(11, "b", 4, priority=60, started_at=100.0)]
    running += [_work(12, "a", 3, is_preemptible=False)]
    assert _stopped(_plan(PREEMPTIVE, {"a": 4, "b": 4}, [_request(1, 4)], running)) == ["11.1.1"]


def test_nobody_is_stopped_in_vain() -> None:
    running = [_work(10, "a", 2, priority=60), _work(11, "a", 2, is_preemptible=False, priority=60)]
    decided = _plan(PREEMPTIVE, {"a": 4}, [_request(1, 4)], running)
    assert _stopped(decided) == []
    assert decided.reasons["1.1"].code is ReasonCode.NO_CAPACITY


def test_equal_priority_is_not_stopped_and_without_preemption_nobody_is() -> None:
    assert _stopped(_plan(PREEMPTIVE, {"a": 4}, [_request(1, 4)], [_work(10, "a", 4)])) == []
    assert _stopped(_plan(POOL, {"a": 4}, [_request(1, 4, priority=1)], [_work(10, "a", 4)])) == []


def test_slots_that_are_about_to_be_free_are_kept_for_the_one_who_asked() -> None:
    running = [_work(10, "a", 3, priority=60, is_stopping=True)]
    decided = _plan(PREEMPTIVE, {"a": 4}, [_request(1, 4), _request(2, 1)], running)
    assert (_stopped(decided), _assigned(decided)) == ([], {})
    assert decided.reasons["1.1"].code is ReasonCode.WAITING_FOR_PREEMPTION


def test_short_work_backfills_and_long_work_waits() -> None:
    running = [_work(10, "a", 3, estimated_end_at=NOW + 100)]
    running[0] = replace(running[0], is_bounded=True)
    short = _request(2, 1, estimated_seconds=90.0, is_bounded=True)
    long_ = _request(3, 1, estimated_seconds=200.0, is_bounded=True)
    decided = _plan(POOL, {"a": 4}, [_request(1, 4), long_], running)
    assert _assigned(decided) == {}
    assert decided.reservations["default"].at == NOW + 100
    reason = decided.reasons["3.1"]
    assert (reason.code, reason.blocking_ids) == (ReasonCode.BEHIND_RESERVATION, ("1.1",))
    assert reason.would_start_if == "it is moved to the front of the queue"
    assert _assigned(_plan(POOL, {"a": 4}, [_request(1, 4), short], running)) == {"2.1": {"a": 1}}
    assert _assigned(_plan(replace(POOL, backfill=False), {"a": 4}, [_request(1, 4), short], running)) == {}


def test_a_request_is_not_said_to_wait_for_a_reservation_once_the_pool_is_full() -> None:
    """The one in front would have fitted without the reservation, until a short one took the last slot."""
    running = [_work(10, "a", 3, estimated_end_at=NOW + 100, is_bounded=True)]
    short = _request(4, 1, estimated_seconds=90.0, is_bounded=True)
    decided = _plan(POOL, {"a": 4}, [_request(1, 4), _request(2, 1), _request(3, 1), short], running)
    assert _assigned(decided) == {"4.1": {"a": 1}}
    for trial_id in ("2.1", "3.1"):
        reason = decided.reasons[trial_id]
        assert reason.code is ReasonCode.NO_CAPACITY
        assert reason.message == "needs 1 slot; 0 of 4 are free in pool 'default'"
        assert reason.would_start_if == "it is moved to the front of the queue"


def _on_call(number: int, agent: str, slots: int, **fields: object) -> Running:
    return _work(number, agent, slots, is_on_call=True, submitted_at=float(number), **fields)


def test_in_a_pool_on_call_everybody_passes_and_is_marked() -> None:
    running = [_work(10, "a", 3, estimated_end_at=NOW + 100, is_bounded=True)]
    waiting = [_request(1, 4), _request(2, 1, estimated_seconds=200.0)]
    decided = _plan(ON_CALL, {"a": 4}, waiting, running)
    [started] = decided.assignments
    assert (started.trial_id, started.is_on_call) == ("2.1", True)
    assert _plan(ON_CALL, {"a": 5}, [_request(2, 1)], running).assignments[0].is_on_call is False
    # Who cannot be stopped passes only where it delays nobody, in time or in place.
    fixed = [_request(1, 4), _request(2, 1, is_preemptible=False, estimated_seconds=200.0, is_bounded=True)]
    assert _assigned(_plan(ON_CALL, {"a": 4}, fixed, running)) == {}
    [short] = _plan(ON_CALL, {"a": 4}, [fixed[0], replace(fixed[1], estimated_seconds=90.0)], running).assignments
    assert (short.trial_id, short.is_on_call) == ("2.1", False)


def test_who_is_on_call_leaves_the_slots_of_the_reservation_where_there_are_others() -> None:
    running = [_work(10, "a", 3, estimated_end_at=NOW + 100), _work(11, "b", 3, estimated_end_at=NOW + 900)]
    decided = _plan(ON_CALL, {"a": 4, "b": 4}, [_request(1, 4), _request(2, 1)], running)
    assert _assigned(decided) == {"2.1": {"b": 1}}


def test_who_is_on_call_is_stopped_at_the_first_instant_at_which_that_helps() -> None:
    first = _request(1, 4)
    own, passed = _work(10, "a", 1), [_on_call(11, "a", 1, started_at=700.0), _on_call(12, "a", 2, started_at=800.0)]
    waits = _plan(ON_CALL, {"a": 4}, [first], [own, *passed])
    assert _stopped(waits) == []
    helped = _plan(ON_CALL, {"a": 4}, [first], passed)
    assert sorted(_stopped(helped)) == ["11.1.1", "12.1.1"]
    assert helped.reasons["1.1"].code is ReasonCode.WAITING_FOR_PREEMPTION
    # The newest goes first, and no more than needed.
    assert _stopped(_plan(ON_CALL, {"a": 4}, [_request(1, 3)], passed)) == ["12.1.1"]


@pytest.mark.parametrize(
    ("request_fields", "work_fields"),
    [
        ({"submitted_at": 20.0}, {}),
        ({"queue_position": 20.0}, {"queue_position": 11.0}),
        ({"priority": 43}, {}),
        ({}, {"is_on_call": False}),
        ({}, {"is_preemptible": False}),
    ],
)
def test_nobody_else_of_its_priority_is_stopped(
    request_fields: dict[str, object], work_fields: dict[str, object]
) -> None:
    """Not preempted: work that came first, is more urgent, started in its turn or cannot be stopped."""
    request, work = _request(1, 4, **request_fields), replace(_on_call(11, "a", 4), **work_fields)  # type: ignore[arg-type]  # any field
    assert _stopped(_plan(ON_CALL, {"a": 4}, [request], [work])) == []
    assert _stopped(_plan(ON_CALL, {"a": 4}, [_request(1, 4)], [_on_call(11, "a", 4)])) == ["11.1.1"]


def test_only_the_first_that_waits_has_others_stopped_for_it() -> None:
    running = [_work(10, "a", 1), _on_call(13, "a", 3)]
    decided = _plan(ON_CALL, {"a": 4}, [_request(1, 4), _request(2, 2)], running)
    assert _stopped(decided) == []
    assert decided.reasons["2.1"].code is ReasonCode.NO_CAPACITY


def test_in_a_pool_that_is_not_on_call_the_mark_changes_nothing() -> None:
    for config in (PREEMPTIVE, POOL, replace(ON_CALL, policy="round_robin"), replace(ON_CALL, is_preemption_on=False)):
        assert _stopped(_plan(config, {"a": 4}, [_request(1, 4)], [_on_call(11, "a", 4)])) == []
        running = [_work(10, "a", 3, estimated_end_at=NOW + 100)]
        assert _assigned(_plan(config, {"a": 4}, [_request(1, 4), _request(2, 1)], running)) == {}


def test_the_head_waits_for_those_alone_whom_it_may_not_have_stopped() -> None:
    running = [_work(10, "a", 1, estimated_end_at=NOW + 100), _on_call(11, "a", 2, estimated_end_at=NOW + 5000)]
    decided = _plan(ON_CALL, {"a": 4}, [_request(1, 4)], running)
    assert (decided.reservations["default"].at, decided.reasons["1.1"].eta_at) == (NOW + 100, NOW + 100)
    assert decided.reasons["1.1"].blocking_ids == ("10.1.1",)
    said = "needs 4 slots; 1 of 4 are free in pool 'default'; 2 more will be freed for it as soon as that is enough"
    assert decided.reasons["1.1"].message == said


def test_the_head_is_told_when_and_after_whom() -> None:
    running = [_work(10, "a", 2, estimated_end_at=NOW + 50), _work(11, "a", 2, estimated_end_at=NOW + 80)]
    reason = _plan(POOL, {"a": 4}, [_request(1, 4)], running).reasons["1.1"]
    assert (reason.eta_at, set(reason.blocking_ids)) == (NOW + 80, {"10.1.1", "11.1.1"})


def test_what_overruns_its_estimate_is_estimated_anew() -> None:
    assert expected_end(_work(1, "a", 1, started_at=0.0, estimated_end_at=100.0), NOW) == NOW + 250.0
    assert expected_end(_work(1, "a", 1, started_at=900.0, estimated_end_at=905.0), NOW) == NOW + 60.0
    assert expected_end(_work(1, "a", 1, started_at=990.0, estimated_end_at=995.0), NOW) == NOW + 5.0
    assert expected_end(_work(1, "a", 1, started_at=600.0), NOW) == NOW + 400.0


def test_what_never_fits_blocks_nobody() -> None:
    decided = _plan(POOL, {"a": 4}, [_request(1, 7, priority=1), _request(2, 4)])
    assert _assigned(decided) == {"2.1": {"a": 4}}
    assert decided.reasons["1.1"].code is ReasonCode.NEVER_FITS
    assert not decided.reservations


def test_queue_position_comes_after_priority_and_before_submission() -> None:
    requests = [_request(1, 1), _request(2, 1, queue_position=2.0), _request(3, 1, queue_position=1.0)]
    requests.append(_request(4, 1, priority=50, queue_position=0.0))
    assert list(_assigned(_plan(POOL, {"a": 4}, requests))) == ["3.1", "2.1", "1.1", "4.1"]


def test_max_slots_is_respected_and_named() -> None:
    requests = [_request(number, 2, group="g") for number in (1, 2)]
    decided = _plan(POOL, {"a": 8}, requests, groups=(Group("g", max_slots=3),))
    assert list(_assigned(decided)) == ["1.1"]
    assert decided.reasons["2.1"].code is ReasonCode.QUOTA_EXCEEDED
    assert "max_slots 3" in decided.reasons["2.1"].message


def test_two_requests_larger_than_their_shares_do_not_wait_for_one_another() -> None:
    config = replace(POOL, policy="fair_share")
    decided = _plan(config, {"a": 1, "b": 1}, [_request(1, 2, group="x"), _request(2, 2, group="y")])
    assert _assigned(decided) == {"1.1": {"a": 1, "b": 1}}


def test_slots_go_by_weight() -> None:
    requests = [_request(n, 1, group="x" if n % 2 else "y") for n in range(1, 17)]
    groups = (Group("x", weight=3.0), Group("y", weight=1.0))
    decided = _plan(replace(POOL, policy="fair_share"), {"a": 8}, requests, groups=groups)
    assert sum(1 for trial_id in _assigned(decided) if int(trial_id[:-2]) % 2) == 6


def test_fair_share_takes_back_only_what_is_beyond_a_share() -> None:
    config = replace(PREEMPTIVE, policy="fair_share")
    running = [_work(10 + n, "a", 1, group="x", started_at=500.0 + n) for n in range(4)]
    requests = [_request(n, 1, group="y") for n in (1, 2, 3)]
    decided = _plan(config, {"a": 4}, requests, running)
    assert _stopped(decided) == ["13.1.1", "12.1.1"]
    whole = [_work(10, "a", 4, group="x")]
    assert _stopped(_plan(config, {"a": 4}, requests, whole)) == []


def test_slots_that_drain_count_as_held_and_as_shared() -> None:
    """x finishes on agent b and on a slot of c, which are not given out again, and holds the whole of a besides. Each
    group may have 4 of the 8 slots in use, so y gets all of a.
    """
    config = replace(PREEMPTIVE, policy="fair_share")
    running = [_work(10 + n, "a", 1, group="x", started_at=500.0 + n) for n in range(4)]
    running += [_work(20 + n, "b", 1, group="x", started_at=900.0 + n) for n in range(3)]
    running.append(_work(30, "c", 1, group="x", started_at=990.0, draining_by_agent={"c": 1}))
    agents = (
        AgentRoom("a", "default", 4, 4),
        AgentRoom("b", "default", 3, 3, is_usable=False, problem="draining"),
        AgentRoom("c", "default", 0, 0, draining=1, disabled=1),
    )
    requests = tuple(_request(n, 1, group="y") for n in range(1, 9))
    decided = plan(Snapshot((config,), agents, requests, tuple(running)), NOW)
    assert _stopped(decided) == ["13.1.1", "12.1.1", "11.1.1", "10.1.1"]


def test_what_drains_is_not_taken_for_what_is_beyond_a_share() -> None:
    """The newest work is preempted first, but preempting it on a draining agent would free no usable slot."""
    config = replace(PREEMPTIVE, policy="fair_share")
    running = [_work(10, "a", 2, group="x", started_at=500.0), _work(11, "b", 2, group="x", started_at=900.0)]
    agents = (AgentRoom("a", "default", 2, 2), AgentRoom("b", "default", 2, 2, is_usable=False, problem="draining"))
    decided = plan(Snapshot((config,), agents, (_request(1, 2, group="y"),), tuple(running)), NOW)
    assert _stopped(decided) == ["10.1.1"]


def test_groups_take_turns() -> None:
    requests = [_request(n, 1, group="x") for n in (1, 2, 3)] + [_request(n, 1, group="y") for n in (4, 5)]
    decided = _plan(replace(POOL, policy="round_robin"), {"a": 4}, requests)
    assert list(_assigned(decided)) == ["1.1", "4.1", "2.1", "5.1"]


@pytest.mark.parametrize("policy", ["priority", "fair_share", "round_robin"])
def test_zero_slot_and_slotted_requests_do_not_block_each_other(policy: str) -> None:
    config = replace(POOL, policy=policy, backfill=False)
    full = [_work(10, "a", 2)]
    assert list(_assigned(_plan(config, {"a": 2}, [_request(1, 2), _request(2, 0)], full))) == ["2.1"]
    agents = (AgentRoom("a", "default", 2, max_zero_slot=0),)
    snapshot = Snapshot((config,), agents, (_request(1, 0), _request(2, 2)))
    assert list(_assigned(plan(snapshot, NOW))) == ["2.1"]


def test_draining_slots_finish_their_work_and_come_back_to_nobody() -> None:
    work = _work(10, "a", 2, draining_by_agent={"a": 1}, estimated_end_at=NOW + 10)
    agents = (
        AgentRoom("a", "default", 1, 1, draining=1),
        AgentRoom("b", "default", 2, is_usable=False, problem="draining"),
    )
    decided = plan(Snapshot((POOL,), agents, (_request(1, 1), _request(2, 2)), (work,)), NOW)
    assert decided.reasons["1.1"].blocking_ids == ("10.1.1",)
    assert decided.reasons["2.1"].code is ReasonCode.AGENTS_UNHEALTHY
    assert "b (draining)" in decided.reasons["2.1"].message


def test_a_gang_that_needs_disabled_slots_is_not_called_impossible() -> None:
    agents = (AgentRoom("a", "default", 3, disabled=1),)
    reason = plan(Snapshot((POOL,), agents, (_request(1, 4),)), NOW).reasons["1.1"]
    assert (reason.code, reason.blocking_ids) == (ReasonCode.AGENTS_UNHEALTHY, ("a",))
    assert "a (1 of 4 slots disabled)" in reason.message
