"""Invariants of the placement core, over pools of every policy: whatever is asked, plans are sound, deterministic and
explained, and each reason's change really starts its request."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings

from gangline.domain.state import ReasonCode
from services.scheduler.placement import (
    AgentRoom,
    Group,
    PendingRequest,
    Plan,
    PoolConfig,
    Running,
    Snapshot,
    apply_changes,
    plan,
)
from services.scheduler.placement.outlook import expected_end
from services.scheduler.placement.policy.fair_share import fair_shares
from services.scheduler.placement.simulation_file import dump_plan, dump_simulation, parse_simulation
from services.scheduler.placement.snapshot import UNKNOWN_RUN_SECONDS, PoolView

NOW = 1000.0
POOL = "default"

configs = st.builds(
    PoolConfig,
    st.just(POOL),
    policy=st.sampled_from(["priority", "fair_share", "round_robin"]),
    fitting=st.sampled_from(["best", "worst"]),
    allow_heterogeneous_fits=st.booleans(),
    is_preemption_on=st.booleans(),
    backfill=st.booleans(),
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """A pool in which running work holds slots that exist, each at most once."""
    config = draw(configs)
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    left = {f"a{number}": size for number, size in enumerate(sizes)}
    groups = tuple(
        Group(f"g{n}", draw(st.none() | st.integers(0, 8)), draw(st.sampled_from([0.0, 1.0, 3.0]))) for n in range(3)
    )
    running = tuple(draw(_running(left, number)) for number in range(draw(st.integers(0, 5))))
    running = tuple(work for work in running if work.slots_by_agent)
    drained = Counter(
        agent for work in running for agent, slots in work.draining_by_agent.items() for _ in range(slots)
    )
    used = {agent_id: size - left[agent_id] - drained[agent_id] for agent_id, size in zip(left, sizes, strict=True)}
    agents = []
    for agent_id, size in zip(left, sizes, strict=True):
        outside = draw(st.integers(0, left[agent_id])) if draw(st.integers(0, 3)) == 0 else 0
        is_usable = draw(st.integers(0, 5)) > 0
        spare = left[agent_id] - outside if draw(st.integers(0, 5)) == 0 else 0
        labels = {"rack": draw(st.sampled_from(["r1", "r2"]))}
        agents.append(
            AgentRoom(
                agent_id,
                POOL,
                size - drained[agent_id] - spare,
                used[agent_id] + outside,
                is_usable,
                max_zero_slot=1,
                draining=drained[agent_id],
                disabled=drained[agent_id] + spare,
                labels=labels,
            )
        )
    requests = tuple(draw(_request(number)) for number in range(draw(st.integers(0, 7))))
    return Snapshot((config,), tuple(agents), requests, running, groups)


@st.composite
def _running(draw: st.DrawFn, left: dict[str, int], number: int) -> Running:
    chosen = draw(st.lists(st.sampled_from(sorted(left)), min_size=1, max_size=2, unique=True))
    slots_by_agent = {}
    for agent_id in chosen:
        slots = draw(st.integers(1, 4))
        if slots <= left[agent_id]:
            left[agent_id] -= slots
            slots_by_agent[agent_id] = slots
    draining = {agent_id: 1 for agent_id in slots_by_agent if draw(st.integers(0, 9)) == 0}
    return Running(
        f"{900 + number}.1.1",
        f"{900 + number}.1",
        draw(st.sampled_from(["g0", "g1", "g2"])),
        POOL,
        slots_by_agent,
        priority=draw(st.sampled_from([10, 42, 80])),
        is_preemptible=draw(st.booleans()),
        started_at=draw(st.floats(0, 999)),
        estimated_end_at=draw(st.sampled_from([0.0, 500.0, 1010.0, 1500.0, 3000.0])),
        draining_by_agent=draining,
        is_stopping=draw(st.integers(0, 4)) == 0,
        checkpoint_age_seconds=draw(st.none() | st.floats(0, 900)),
    )


@st.composite
def _request(draw: st.DrawFn, number: int) -> PendingRequest:
    return PendingRequest(
        f"{number + 1}.1",
        draw(st.sampled_from(["g0", "g1", "g2"])),
        POOL,
        draw(st.integers(0, 9)),
        priority=draw(st.sampled_from([10, 42, 80])),
        queue_position=draw(st.none() | st.integers(0, 3)),
        is_single_agent=draw(st.booleans()),
        blocklist=tuple(draw(st.lists(st.sampled_from(["a0", "a1"]), max_size=1))),
        submitted_at=draw(st.sampled_from([1.0, 2.0, 3.0])),
        not_before_at=draw(st.sampled_from([0.0, 0.0, 0.0, 1005.0])),
        estimated_seconds=draw(st.sampled_from([0.0, 5.0, 100.0, 9000.0])),
        hold=draw(st.sampled_from([None, None, None, ReasonCode.PAUSED, ReasonCode.SEARCH_WAITING])),
    )


def _assigned(decided: Plan) -> dict[str, dict[str, int]]:
    return {one.trial_id: dict(one.slots_by_agent) for one in decided.assignments}


@settings(deadline=None)
@given(snapshot=snapshots())
def test_no_slot_is_given_twice_and_gangs_are_whole(snapshot: Snapshot) -> None:
    decided = plan(snapshot, NOW)
    free = {agent.id: agent.free for agent in snapshot.agents if agent.is_usable}
    places = {agent.id: agent.max_zero_slot - agent.used_zero_slot for agent in snapshot.agents}
    requests = {request.trial_id: request for request in snapshot.requests}
    for trial_id, slots_by_agent in _assigned(decided).items():
        request = requests[trial_id]
        assert sum(slots_by_agent.values()) == request.slots
        assert not set(request.blocklist) & set(slots_by_agent)
        assert len(slots_by_agent) == 1 or not request.is_single_agent
        for agent_id, slots in slots_by_agent.items():
            free[agent_id] -= slots
            places[agent_id] -= slots == 0
    assert all(left >= 0 for left in (*free.values(), *places.values()))


@settings(deadline=None)
@given(snapshot=snapshots())
def test_every_request_starts_or_says_why_not(snapshot: Snapshot) -> None:
    decided = plan(snapshot, NOW)
    assigned = list(_assigned(decided))
    assert sorted([*assigned, *decided.reasons]) == sorted(request.trial_id for request in snapshot.requests)
    for trial_id, reason in decided.reasons.items():
        assert reason.message, trial_id
        assert reason.would_start_if, trial_id
        assert reason.eta_at is None or reason.eta_at >= NOW


@settings(deadline=None, max_examples=400)
@given(snapshot=snapshots())
def test_the_named_change_starts_the_request(snapshot: Snapshot) -> None:
    decided = plan(snapshot, NOW)
    for trial_id, changes in decided.changes.items():
        changed = apply_changes(snapshot, changes)
        assert trial_id in _assigned(plan(changed, NOW)), (trial_id, changes, decided.reasons[trial_id])


@settings(deadline=None)
@given(snapshot=snapshots(), data=st.data())
def test_plans_depend_on_nothing_but_their_input(snapshot: Snapshot, data: st.DataObject) -> None:
    shuffled = replace(
        snapshot,
        agents=tuple(data.draw(st.permutations(snapshot.agents))),
        requests=tuple(data.draw(st.permutations(snapshot.requests))),
        running=tuple(data.draw(st.permutations(snapshot.running))),
    )
    one, other = plan(snapshot, NOW), plan(shuffled, NOW)
    assert (_assigned(one), one.preemptions, dict(one.reasons)) == (
        _assigned(other),
        other.preemptions,
        dict(other.reasons),
    )


@settings(deadline=None)
@given(snapshot=snapshots())
def test_a_dump_is_planned_alike(snapshot: Snapshot) -> None:
    """Down to the words. A cap of nothing cannot be written, because no experiment can have one."""
    groups = tuple(replace(group, max_slots=group.max_slots or None) for group in snapshot.groups)
    snapshot = replace(snapshot, groups=groups)
    again = parse_simulation(json.dumps(dump_simulation(snapshot, POOL, NOW)))
    assert again.now == NOW
    assert dump_plan(plan(again.snapshot, again.now)) == dump_plan(plan(snapshot, NOW))


@settings(deadline=None)
@given(snapshot=snapshots())
def test_who_is_stopped_is_less_urgent_and_starts_somebody(snapshot: Snapshot) -> None:
    decided = plan(snapshot, NOW)
    works = {work.allocation_id: work for work in snapshot.running}
    requests = {request.trial_id: request for request in snapshot.requests}
    stopped = Counter(preemption.allocation_id for preemption in decided.preemptions)
    assert all(count == 1 for count in stopped.values())
    for preemption in decided.preemptions:
        work, request = works[preemption.allocation_id], requests[preemption.for_trial_id]
        assert work.is_preemptible
        assert not work.is_stopping
        if snapshot.pools[0].policy == "priority":
            assert work.priority > request.priority
        assert decided.reasons[request.trial_id].code is ReasonCode.WAITING_FOR_PREEMPTION
    # Once those who stop have stopped, the request for which they did starts; nobody was stopped in vain.
    ended = {work.allocation_id for work in snapshot.running if work.is_stopping} | set(stopped)
    agents = {agent.id: agent for agent in snapshot.agents}
    for work in snapshot.running:
        if work.allocation_id in ended:
            for agent_id, slots in work.slots_by_agent.items():
                drained = work.draining_by_agent.get(agent_id, 0)
                agent = agents[agent_id]
                left_used, left_draining = agent.used - slots + drained, agent.draining - drained
                agents[agent_id] = replace(agent, used=left_used, draining=left_draining)
    left = tuple(work for work in snapshot.running if work.allocation_id not in ended)
    taken = {one.trial_id for one in decided.assignments}
    for one in decided.assignments:
        for agent_id, slots in one.slots_by_agent.items():
            agents[agent_id] = replace(agents[agent_id], used=agents[agent_id].used + slots)
    waiting = tuple(request for request in snapshot.requests if request.trial_id not in taken and request.slots)
    after = plan(replace(snapshot, agents=tuple(agents.values()), running=left, requests=waiting, groups=()), NOW)
    if snapshot.pools[0].policy == "priority":
        assert {preemption.for_trial_id for preemption in decided.preemptions} <= set(_assigned(after))


@settings(deadline=None, max_examples=200)
@given(snapshot=snapshots())
def test_backfill_never_moves_the_reservation_later(snapshot: Snapshot) -> None:
    """What starts beside it either ends before, or leaves it its slots."""
    decided = plan(snapshot, NOW)
    reservation = decided.reservations.get(POOL)
    if reservation is None:
        return
    requests = {request.trial_id: request for request in snapshot.requests}
    free = {agent.id: agent.slots - agent.used for agent in snapshot.agents}
    for work in snapshot.running:
        if expected_end(work, NOW) <= reservation.at:
            for agent_id, slots in work.slots_by_agent.items():
                free[agent_id] += slots - work.draining_by_agent.get(agent_id, 0)
    for one in decided.assignments:
        request = requests[one.trial_id]
        is_over = NOW + (request.estimated_seconds or UNKNOWN_RUN_SECONDS) <= reservation.at
        for agent_id, slots in one.slots_by_agent.items():
            free[agent_id] -= 0 if is_over else slots
    stopped = {preemption.allocation_id for preemption in decided.preemptions}
    if not stopped and not any(work.is_stopping for work in snapshot.running):
        assert all(free[agent_id] >= slots for agent_id, slots in reservation.slots_by_agent.items())


@settings(deadline=None)
@given(snapshot=snapshots(), capacity=st.integers(0, 30))
def test_shares_are_max_min_fair(snapshot: Snapshot, capacity: int) -> None:
    """Nobody gets more than it wants; who gets less than that has, for its weight, no less than anybody else."""
    groups = {group.id: replace(group, weight=group.weight or 0.5) for group in snapshot.groups}
    view = PoolView(snapshot.pools[0], snapshot.agents, snapshot.requests, snapshot.running, groups)
    shares = fair_shares(view, capacity)
    wanted: Counter[str] = Counter()
    for work in snapshot.running:
        wanted[work.group] += work.slots
    for request in snapshot.requests:
        wanted[request.group] += request.slots if request.hold is None else 0
    for group, cap in ((group.id, group.max_slots) for group in groups.values()):
        wanted[group] = wanted[group] if cap is None else min(wanted[group], cap)
    total = sum(wanted[group] for group in shares)
    assert abs(sum(shares.values()) - min(capacity, total)) < 1e-6
    for group, share in shares.items():
        assert share <= wanted[group] + 1e-9
        if share < wanted[group] - 1e-9:
            mine = share / groups[group].weight
            assert all(shares[other] / groups[other].weight <= mine + 1e-6 for other in shares)
