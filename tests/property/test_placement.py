"""Invariants of the placement core, over pools of every policy: whatever is asked, plans are sound, deterministic and
explained, and each reason's change really starts its request."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest.mock import patch

import hypothesis.strategies as st
from hypothesis import given, settings

from gangline.domain.state import ReasonCode
from services.scheduler.placement import (
    AgentRoom,
    Assignment,
    Group,
    PendingRequest,
    Plan,
    PoolConfig,
    Running,
    Snapshot,
    apply_changes,
    plan,
)
from services.scheduler.placement.capacity.fit import find_fit
from services.scheduler.placement.capacity.ledger import Ledger
from services.scheduler.placement.capacity.outlook import expected_end, freed_by
from services.scheduler.placement.capacity.preemption import Victims
from services.scheduler.placement.capacity.room import Room
from services.scheduler.placement.policy.fair_share import fair_shares
from services.scheduler.placement.request.order import by_priority
from services.scheduler.placement.request.queue import Queue, by_pool
from services.scheduler.placement.request.snapshot import UNKNOWN_RUN_SECONDS, Limit, PoolView, default_backfill
from services.scheduler.placement.request.snapshot_change import EndWork
from services.scheduler.placement.simulation_file import dump_plan, dump_simulation, parse_simulation
from tests.support.examples import examples

NOW = 1000.0
POOL = "default"


@st.composite
def configs(draw: st.DrawFn) -> PoolConfig:
    policy, is_preemption_on = draw(st.sampled_from(["priority", "fair_share", "round_robin"])), draw(st.booleans())
    return PoolConfig(
        POOL,
        policy=policy,
        fitting=draw(st.sampled_from(["best", "worst"])),
        allow_heterogeneous_fits=draw(st.booleans()),
        is_preemption_on=is_preemption_on,
        backfill=draw(st.sampled_from([default_backfill(policy, is_preemption_on), True, False])),
    )


ON_CALL = PoolConfig(POOL, is_preemption_on=True, backfill="on_call")
PRIORITIES = st.sampled_from([10, 42, 80])
MOSTLY_EQUAL = st.sampled_from([42, 42, 42, 42, 80])


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """A pool in which running work holds slots that exist, each at most once."""
    config = draw(configs())
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    left = {f"a{number}": size for number, size in enumerate(sizes)}
    groups = {
        f"g{n}": Group(f"g{n}", draw(st.none() | st.integers(0, 8)), draw(st.sampled_from([0.0, 1.0, 3.0])))
        for n in range(3)
    }
    running = tuple(draw(_running(left, number)) for number in range(draw(st.integers(0, 5))))
    running = tuple(work for work in running if work.slots_by_agent)
    places = {agent_id: draw(st.integers(1, 2)) for agent_id in left}
    auxiliary = tuple(
        draw(_auxiliary(agent_id, number)) for agent_id in left for number in range(draw(st.integers(0, 2)))
    )
    auxiliary = tuple(work for work in auxiliary if int(work.trial_id[-1]) < places[next(iter(work.slots_by_agent))])
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
                max_zero_slot=places[agent_id],
                used_zero_slot=sum(agent_id in work.slots_by_agent for work in auxiliary),
                draining=drained[agent_id],
                disabled=drained[agent_id] + spare,
                labels=labels,
                gang_problem="its network interface is down" if draw(st.integers(0, 4)) == 0 else "",
            )
        )
    requests = tuple(draw(_request(number)) for number in range(draw(st.integers(0, 7))))
    return Snapshot((config,), tuple(agents), requests, (*running, *auxiliary), groups)


@st.composite
def _auxiliary(draw: st.DrawFn, agent_id: str, number: int) -> Running:
    trial_id = f"8{agent_id[1:]}.{number}"
    return Running(
        f"{trial_id}.1",
        trial_id,
        draw(st.sampled_from(["g0", "g1", "g2"])),
        POOL,
        {agent_id: 0},
        priority=draw(PRIORITIES),
        is_preemptible=draw(st.booleans()),
        started_at=draw(st.floats(0, 999)),
        is_stopping=draw(st.integers(0, 4)) == 0,
    )


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
        priority=draw(PRIORITIES),
        is_preemptible=draw(st.booleans()),
        started_at=draw(st.floats(0, 999)),
        estimated_end_at=draw(st.sampled_from([0.0, 500.0, 1010.0, 1500.0, 3000.0])),
        draining_by_agent=draining,
        is_stopping=draw(st.integers(0, 4)) == 0,
        checkpoint_age_seconds=draw(st.none() | st.floats(0, 900)),
        queue_position=draw(st.none() | st.integers(0, 3)),
        submitted_at=draw(st.sampled_from([1.0, 2.0, 3.0])),
        is_on_call=draw(st.booleans()),
        is_bounded=draw(st.booleans()),
    )


@st.composite
def _request(draw: st.DrawFn, number: int) -> PendingRequest:
    return PendingRequest(
        f"{number + 1}.1",
        draw(st.sampled_from(["g0", "g1", "g2"])),
        POOL,
        draw(st.integers(0, 9)),
        priority=draw(PRIORITIES),
        queue_position=draw(st.none() | st.integers(0, 3)),
        is_single_agent=draw(st.booleans()),
        is_preemptible=draw(st.integers(0, 3)) > 0,
        blocklist=tuple(draw(st.lists(st.sampled_from(["a0", "a1"]), max_size=1))),
        submitted_at=draw(st.sampled_from([1.0, 2.0, 3.0])),
        not_before_at=draw(st.sampled_from([0.0, 0.0, 0.0, 1005.0])),
        estimated_seconds=draw(st.sampled_from([0.0, 5.0, 100.0, 9000.0])),
        hold=draw(st.sampled_from([None, None, None, ReasonCode.PAUSED, ReasonCode.SEARCH_WAITING])),
        is_bounded=draw(st.booleans()),
    )


@st.composite
def snapshots_on_call(draw: st.DrawFn) -> Snapshot:
    """A busy pool in which nearly everybody is equally urgent, and some have passed others."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    running: list[Running] = []
    agents: list[AgentRoom] = []
    for number, size in enumerate(sizes):
        left = size
        while left and draw(st.integers(0, 3)):
            slots = draw(st.integers(1, left))
            left -= slots
            running.append(_busy_work(draw, f"{len(running) + 1}.1", {f"a{number}": slots}))
        agents.append(AgentRoom(f"a{number}", POOL, size, size - left))
    requests = tuple(
        PendingRequest(
            f"{number + 20}.1",
            "g",
            POOL,
            draw(st.integers(1, 9)),
            priority=draw(MOSTLY_EQUAL),
            is_preemptible=draw(st.integers(0, 3)) > 0,
            submitted_at=float(draw(st.integers(1, 9))),
            estimated_seconds=draw(st.sampled_from([0.0, 5.0, 9000.0])),
            is_bounded=draw(st.booleans()),
        )
        for number in range(draw(st.integers(2, 5)))
    )
    return Snapshot((ON_CALL,), tuple(agents), requests, tuple(running))


@st.composite
def contended_snapshots(draw: st.DrawFn) -> Snapshot:
    """A pool without preemption: few slots are free, a wide request waits first, narrow ones come after it."""
    sizes = draw(st.lists(st.integers(2, 6), min_size=1, max_size=3))
    running: list[Running] = []
    agents: list[AgentRoom] = []
    for number, size in enumerate(sizes):
        left = size - draw(st.integers(0, 2))
        used = 0
        while used < left:
            slots = draw(st.integers(1, min(3, left - used)))
            work = _busy_work(draw, f"{len(running) + 1}.1", {f"a{number}": slots})
            end_at = draw(st.sampled_from([0.0, NOW + 2, NOW + 4, NOW + 6]))
            running.append(replace(work, estimated_end_at=end_at, is_stopping=False, is_on_call=False))
            used += slots
        agents.append(AgentRoom(f"a{number}", POOL, size, used))
    requests = [PendingRequest("20.1", "g", POOL, draw(st.integers(2, 9)), is_single_agent=draw(st.booleans()))]
    requests += _narrow_requests(draw, draw(st.integers(1, 3)), [0.0, 1.0, 3.0, 5.0])
    config = PoolConfig(POOL, allow_heterogeneous_fits=draw(st.booleans()))
    return Snapshot((config,), tuple(agents), tuple(requests), tuple(running))


def _narrow_requests(draw: st.DrawFn, count: int, estimates: list[float]) -> list[PendingRequest]:
    """Requests of one slot or two, behind request 20.1. estimates: run times are drawn from them, in seconds."""
    return [
        PendingRequest(
            f"{number}.1",
            "g",
            POOL,
            draw(st.integers(1, 2)),
            submitted_at=1.0,
            estimated_seconds=draw(st.sampled_from(estimates)),
            is_bounded=draw(st.booleans()),
        )
        for number in range(21, 21 + count)
    ]


@st.composite
def snapshots_with_spare(draw: st.DrawFn) -> Snapshot:
    """The first request needs most of an agent. Several narrow requests without a known end fit into the free slots,
    and together they need more than the agent has to spare beside the first request."""
    size = draw(st.integers(4, 8))
    free = draw(st.integers(2, size - 2))
    wide = draw(st.integers(free + 1, size - 1))
    running: list[Running] = []
    while left := size - free - sum(work.slots for work in running):
        work = _busy_work(draw, f"{len(running) + 1}.1", {"a0": draw(st.integers(1, left))})
        running.append(replace(work, is_stopping=False, is_on_call=False))
    requests = [PendingRequest("20.1", "g", POOL, wide, is_single_agent=True)]
    requests += _narrow_requests(draw, 2 + size - wide, [0.0, 9000.0])
    return Snapshot((PoolConfig(POOL),), (AgentRoom("a0", POOL, size, size - free),), tuple(requests), tuple(running))


def _busy_work(draw: st.DrawFn, trial_id: str, slots_by_agent: dict[str, int]) -> Running:
    return Running(
        f"{trial_id}.1",
        trial_id,
        "g",
        POOL,
        slots_by_agent,
        priority=draw(MOSTLY_EQUAL),
        is_preemptible=draw(st.integers(0, 4)) > 0,
        started_at=draw(st.sampled_from([100.0, 500.0, 900.0])),
        estimated_end_at=draw(st.sampled_from([0.0, 1010.0, 3000.0])),
        is_stopping=draw(st.integers(0, 9)) == 0,
        submitted_at=float(draw(st.integers(1, 9))),
        is_on_call=draw(st.integers(0, 2)) > 0,
        is_bounded=draw(st.booleans()),
    )


@st.composite
def snapshots_of_shares(draw: st.DrawFn) -> Snapshot:
    """A full pool in which one group holds more than its share, a second one may hold its share, and a third one may
    have to wait before it takes what it is owed."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=3))
    running = [
        _busy_work(draw, f"{agent}{slot}.1", {f"a{agent}": 1})
        for agent, size in enumerate(sizes, 1)
        for slot in range(size)
    ]
    running = [
        replace(work, group=draw(st.sampled_from(["g0", "g0", "g1"])), is_preemptible=True, is_stopping=False)
        for work in running
    ]
    requests = tuple(
        PendingRequest(f"{number}.1", f"g{group}", POOL, draw(st.integers(1, 3)), not_before_at=not_before_at)
        for number, (group, not_before_at) in enumerate(
            [(1, 0.0), (2, draw(st.sampled_from([0.0, NOW + 5]))), *((draw(st.integers(0, 2)), 0.0) for _ in range(2))],
            100,
        )
    )
    agents = tuple(AgentRoom(f"a{number}", POOL, size, size) for number, size in enumerate(sizes, 1))
    groups = {f"g{n}": Group(f"g{n}", weight=draw(st.sampled_from([1.0, 2.0]))) for n in range(3)}
    config = PoolConfig(POOL, policy="fair_share", is_preemption_on=True)
    return Snapshot((config,), agents, requests, tuple(running), groups)


@st.composite
def limited_snapshots(draw: st.DrawFn) -> Snapshot:
    """Any of the others, in which some requests and some running work count for the quotas of users."""
    snapshot = draw(snapshots() | snapshots_on_call() | roomy_snapshots())
    limits = [draw(_limit(f"user/u{number}")) for number in range(2)]
    names = st.lists(st.sampled_from([limit.id for limit in limits]), unique=True, max_size=2).map(tuple)
    return replace(
        snapshot,
        requests=tuple(replace(request, limits=draw(names)) for request in snapshot.requests),
        running=tuple(replace(work, limits=draw(names)) for work in snapshot.running),
        limits={limit.id: limit for limit in limits},
    )


@st.composite
def roomy_snapshots(draw: st.DrawFn) -> Snapshot:
    """A pool with room for nearly all requests, so that their limits alone keep some of them from starting."""
    requests = [
        PendingRequest(f"{number}.1", f"g{number}", POOL, draw(st.integers(1, 3)), submitted_at=float(number))
        for number in range(draw(st.integers(2, 7)))
    ]
    return Snapshot((draw(configs()),), (AgentRoom("a0", POOL, 16),), tuple(requests))


@st.composite
def _limit(draw: st.DrawFn, limit_id: str) -> Limit:
    hours = draw(st.sampled_from([None, None, 10.0]))
    return Limit(
        limit_id,
        limit_id.replace("/", " "),
        draw(st.none() | st.integers(0, 9)),
        hours,
        draw(st.sampled_from([0.0, 9.5, 10.0, 12.25])) if hours else 0.0,
        NOW + 500 if hours else 0.0,
        draw(st.integers(0, 2)),
    )


any_snapshots = snapshots() | snapshots_on_call() | contended_snapshots() | snapshots_with_spare() | limited_snapshots()


def _assigned(decided: Plan) -> dict[str, dict[str, int]]:
    return {assignment.trial_id: dict(assignment.slots_by_agent) for assignment in decided.assignments}


@settings(deadline=None)
@given(snapshot=any_snapshots)
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


@settings(deadline=None, max_examples=examples(300))
@given(snapshot=limited_snapshots())
def test_new_starts_keep_within_the_limits(snapshot: Snapshot) -> None:
    decided = plan(snapshot, NOW)
    requests = {request.trial_id: request for request in snapshot.requests}
    for limit in snapshot.limits.values():
        held = sum(work.slots for work in snapshot.running if limit.id in work.limits) + limit.held_elsewhere
        slots = [
            sum(assignment.slots_by_agent.values())
            for assignment in decided.assignments
            if limit.id in requests[assignment.trial_id].limits
        ]
        if sum(slots):
            assert not limit.is_spent
            assert limit.max_slots is None or held + sum(slots) <= limit.max_slots


@settings(deadline=None)
@given(snapshot=any_snapshots)
def test_every_request_starts_or_says_why_not(snapshot: Snapshot) -> None:
    decided = plan(snapshot, NOW)
    assigned = list(_assigned(decided))
    assert sorted([*assigned, *decided.reasons]) == sorted(request.trial_id for request in snapshot.requests)
    for trial_id, reason in decided.reasons.items():
        assert reason.message, trial_id
        assert reason.would_start_if, trial_id
        assert reason.eta_at is None or reason.eta_at >= NOW


@settings(deadline=None, max_examples=examples(400))
@given(snapshot=any_snapshots)
def test_the_named_change_starts_the_request(snapshot: Snapshot) -> None:
    decided = plan(snapshot, NOW)
    for trial_id, changes in decided.changes.items():
        changed = apply_changes(snapshot, changes)
        assert trial_id in _assigned(plan(changed, NOW)), (trial_id, changes, decided.reasons[trial_id])


@settings(deadline=None)
@given(snapshot=any_snapshots, data=st.data())
def test_plans_depend_on_nothing_but_their_input(snapshot: Snapshot, data: st.DataObject) -> None:
    shuffled = replace(
        snapshot,
        agents=tuple(data.draw(st.permutations(snapshot.agents))),
        requests=tuple(data.draw(st.permutations(snapshot.requests))),
        running=tuple(data.draw(st.permutations(snapshot.running))),
    )
    decided, decided_shuffled = plan(snapshot, NOW), plan(shuffled, NOW)
    assert (_assigned(decided), decided.preemptions, dict(decided.reasons)) == (
        _assigned(decided_shuffled),
        decided_shuffled.preemptions,
        dict(decided_shuffled.reasons),
    )


@settings(deadline=None)
@given(snapshot=any_snapshots)
def test_a_dump_is_planned_alike(snapshot: Snapshot) -> None:
    """Down to the words. A cap of nothing cannot be written, because no experiment can have one."""
    groups = {id_: replace(group, max_slots=group.max_slots or None) for id_, group in snapshot.groups.items()}
    snapshot = replace(snapshot, groups=groups)
    again = parse_simulation(json.dumps(dump_simulation(snapshot, POOL, NOW)))
    assert again.now == NOW
    assert dump_plan(plan(again.snapshot, again.now)) == dump_plan(plan(snapshot, NOW))


@settings(deadline=None)
@given(snapshot=any_snapshots)
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
        assert bool(work.slots) == bool(request.slots)
        if not request.slots:
            assert work.priority > request.priority
        elif snapshot.pools[0].policy == "priority":
            assert work.priority > request.priority or _is_on_call_for(request, work, snapshot)
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
                left_places = agent.used_zero_slot - (slots == 0)
                agents[agent_id] = replace(agent, used=left_used, draining=left_draining, used_zero_slot=left_places)
    left = tuple(work for work in snapshot.running if work.allocation_id not in ended)
    taken = {assignment.trial_id for assignment in decided.assignments}
    for assignment in decided.assignments:
        for agent_id, slots in assignment.slots_by_agent.items():
            places = agents[agent_id].used_zero_slot + (slots == 0)
            agents[agent_id] = replace(agents[agent_id], used=agents[agent_id].used + slots, used_zero_slot=places)
    waiting = tuple(request for request in snapshot.requests if request.trial_id not in taken)
    after = plan(replace(snapshot, agents=tuple(agents.values()), running=left, requests=waiting, groups={}), NOW)
    started = set(_assigned(after))
    for preemption in decided.preemptions:
        if snapshot.pools[0].policy == "priority" or not requests[preemption.for_trial_id].slots:
            assert preemption.for_trial_id in started


@settings(deadline=None, max_examples=examples(200))
@given(snapshot=any_snapshots)
def test_backfill_never_moves_the_reservation_later(snapshot: Snapshot) -> None:
    """Work that starts beside it ends before it, leaves it its slots, or is preempted for it."""
    decided = plan(snapshot, NOW)
    reservation = decided.reservations.get(POOL)
    if reservation is None:
        return
    requests = {request.trial_id: request for request in snapshot.requests}
    free = {agent.id: agent.slots - agent.used for agent in snapshot.agents}
    holder = requests[reservation.trial_id]
    for work in snapshot.running:
        if expected_end(work, NOW) <= reservation.at or _is_stoppable_for(holder, work, snapshot):
            for agent_id, slots in work.slots_by_agent.items():
                free[agent_id] += slots - work.draining_by_agent.get(agent_id, 0)
    for assignment in decided.assignments:
        request = requests[assignment.trial_id]
        is_over = assignment.is_on_call or NOW + (request.estimated_seconds or UNKNOWN_RUN_SECONDS) <= reservation.at
        for agent_id, slots in assignment.slots_by_agent.items():
            free[agent_id] -= 0 if is_over else slots
    stopped = {preemption.allocation_id for preemption in decided.preemptions}
    if not stopped and not any(work.is_stopping for work in snapshot.running):
        assert all(free[agent_id] >= slots for agent_id, slots in reservation.slots_by_agent.items())


@settings(deadline=None, max_examples=examples(400))
@given(snapshot=any_snapshots | contended_snapshots() | snapshots_with_spare(), data=st.data())
def test_in_every_order_of_ends_the_head_starts_as_early_as_without_backfill(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    """Ends that are guessed are drawn; work that overtakes the head ends when that is known, else never."""
    ahead: set[str] = set()
    stoppable: set[str] = set()

    def note(ledger: Ledger, request: PendingRequest, victims: Sequence[Running]) -> None:
        reserve(ledger, request, victims)
        ahead.update(assignment.trial_id for assignment in ledger.promises.assignments)
        stoppable.update(work.allocation_id for work in ledger.reserved.stoppable)

    # What was assigned by then is ahead of the head in every policy.
    reserve = Ledger._reserve
    with patch.object(Ledger, "_reserve", note):
        decided = plan(snapshot, NOW)
    reservation = decided.reservations.get(POOL)
    if reservation is None or decided.preemptions or any(work.is_stopping and work.slots for work in snapshot.running):
        return
    requests = {request.trial_id: request for request in snapshot.requests}
    holder = requests[reservation.trial_id]
    ends = {work.allocation_id: _drawn_end(data, work.estimated_end_at, work.is_bounded) for work in snapshot.running}
    ends |= dict.fromkeys(stoppable, NOW)
    preceding = [
        (assignment, requests[assignment.trial_id])
        for assignment in decided.assignments
        if assignment.trial_id in ahead
    ]
    passing = [
        (assignment, requests[assignment.trial_id])
        for assignment in decided.assignments
        if assignment.trial_id not in ahead
    ]
    for assignment, request in preceding:
        ends[assignment.trial_id] = _drawn_end(data, NOW + request.estimated_seconds, request.is_bounded)
    for assignment, request in passing:
        is_known = request.is_bounded and request.estimated_seconds > 0
        ends[assignment.trial_id] = NOW + request.estimated_seconds if is_known else float("inf")
    others = [assignment for assignment, _ in passing if not assignment.is_on_call]

    def fits_at(at: float, assigned: Sequence[Assignment]) -> bool:
        ended = EndWork(tuple(work.allocation_id for work in snapshot.running if ends[work.allocation_id] <= at))
        room = Room(apply_changes(snapshot, [ended]).agents, snapshot.pools[0])
        for assignment in assigned:
            if ends[assignment.trial_id] > at:
                room.take(assignment.slots_by_agent)
        return find_fit(holder, room) is not None

    first = [assignment for assignment, _ in preceding]
    for at in sorted(set(ends.values()) - {float("inf")}):
        if fits_at(at, first):
            assert fits_at(at, [*first, *others]), (at, reservation)
            return


def _drawn_end(data: st.DataObject, at: float, is_bounded: bool) -> float:
    return at if is_bounded and at > NOW else NOW + data.draw(st.integers(1, 6))


@settings(deadline=None, max_examples=examples(400))
@given(snapshot=snapshots_on_call())
def test_on_call_nobody_waits_for_work_that_is_less_urgent_and_can_be_stopped(snapshot: Snapshot) -> None:
    """Even without all such work, the request would find no room. This also applies to the reservation's holder."""
    decided = plan(snapshot, NOW)
    if decided.preemptions or any(work.is_stopping for work in snapshot.running):
        return  # others may have been promised what is being freed
    for request in snapshot.requests:
        if request.trial_id not in decided.reasons or not request.is_preemptible:
            continue
        room = Room(snapshot.agents, snapshot.pools[0])
        for assignment in decided.assignments:
            room.take(assignment.slots_by_agent)
        for work in snapshot.running:
            if work.is_preemptible and work.priority > request.priority:
                room.give_back(freed_by(work))
        assert find_fit(request, room) is None, request.trial_id


@settings(deadline=None, max_examples=examples(200))
@given(snapshot=snapshots())
def test_auxiliary_places_go_by_priority(snapshot: Snapshot) -> None:
    decided = plan(snapshot, NOW)
    assigned = _assigned(decided)
    waiting = [
        request
        for request in snapshot.requests
        if not request.slots
        and request.trial_id in decided.reasons
        and decided.reasons[request.trial_id].code is ReasonCode.NO_CAPACITY
    ]
    for request in waiting:
        for later in snapshot.requests:
            if later.trial_id in assigned and not later.slots and by_priority(later) > by_priority(request):
                assert set(assigned[later.trial_id]) <= set(request.blocklist)
        if snapshot.pools[0].is_preemption_on and snapshot.pools[0].policy != "round_robin":
            usable = {agent.id for agent in snapshot.agents if agent.is_usable} - set(request.blocklist)
            preempted = {preemption.allocation_id for preemption in decided.preemptions}
            for work in snapshot.running:
                is_able = work.is_preemptible and not work.is_stopping and work.allocation_id not in preempted
                if not work.slots and is_able and usable >= set(work.slots_by_agent):
                    assert work.priority <= request.priority


@settings(deadline=None, max_examples=examples(200))
@given(snapshot=snapshots_on_call())
def test_only_who_can_be_stopped_for_the_holder_is_on_call(snapshot: Snapshot) -> None:
    decided = plan(snapshot, NOW)
    reservation = decided.reservations.get(POOL)
    requests = {request.trial_id: request for request in snapshot.requests}
    for assignment in decided.assignments:
        if assignment.is_on_call:
            assert snapshot.pools[0].is_on_call_possible
            assert reservation is not None
            assert requests[assignment.trial_id].is_preemptible
            assert by_priority(requests[reservation.trial_id]) < by_priority(requests[assignment.trial_id])


@settings(deadline=None, max_examples=examples(400))
@given(snapshot=snapshots_on_call())
def test_the_holder_waits_for_nobody_whom_it_may_have_stopped(snapshot: Snapshot) -> None:
    """Were they all gone, it would still find no room."""
    decided = plan(snapshot, NOW)
    reservation = decided.reservations.get(POOL)
    config = snapshot.pools[0]
    if reservation is None or config.policy != "priority" or not config.is_preemption_on:
        return
    if decided.preemptions or any(work.is_stopping for work in snapshot.running):
        return  # others may have been promised what is being freed
    requests = {request.trial_id: request for request in snapshot.requests}
    holder = requests[reservation.trial_id]
    stoppable = [work for work in snapshot.running if _is_stoppable_for(holder, work, snapshot)]
    room = Room(snapshot.agents, config)
    for work in stoppable:
        room.give_back(freed_by(work))
    for assignment in decided.assignments:
        if by_priority(requests[assignment.trial_id]) < by_priority(holder):
            room.take(assignment.slots_by_agent)
    assert find_fit(holder, room) is None


@settings(deadline=None, max_examples=examples(200))
@given(snapshot=any_snapshots | contended_snapshots())
def test_a_request_waits_behind_a_reservation_exactly_if_free_slots_would_do(snapshot: Snapshot) -> None:
    decided = plan(snapshot, NOW)
    if decided.preemptions or any(work.is_stopping for work in snapshot.running) or not snapshot.pools[0].backfill:
        return  # others may have been promised free slots, or nothing starts behind the holder
    room = Room(snapshot.agents, snapshot.pools[0])
    for assignment in decided.assignments:
        room.take(assignment.slots_by_agent)
    waiting = (request for request in snapshot.requests if request.slots and request.trial_id in decided.reasons)
    for request in waiting:
        code, fits = decided.reasons[request.trial_id].code, find_fit(request, room) is not None
        assert not fits or code not in (ReasonCode.NO_CAPACITY, ReasonCode.FRAGMENTED), request.trial_id
        assert fits or code is not ReasonCode.BEHIND_RESERVATION, request.trial_id


def _is_on_call_for(request: PendingRequest, work: Running, snapshot: Snapshot) -> bool:
    return (
        snapshot.pools[0].is_on_call_possible
        and work.is_on_call
        and work.priority == request.priority
        and by_priority(work) > by_priority(request)
    )


def _is_stoppable_for(request: PendingRequest, work: Running, snapshot: Snapshot) -> bool:
    """Returns whether the work may be preempted for it; work that is stopping already may not."""
    config = snapshot.pools[0]
    if config.policy != "priority" or not config.is_preemption_on or not work.is_preemptible or work.is_stopping:
        return False
    return bool(work.slots) and (work.priority > request.priority or _is_on_call_for(request, work, snapshot))


@settings(deadline=None)
@given(snapshot=snapshots(), capacity=st.integers(0, 30))
def test_shares_are_max_min_fair(snapshot: Snapshot, capacity: int) -> None:
    """No group gets more than it wants. A group that gets less has, for its weight, no less than any other."""
    groups = {id_: replace(group, weight=group.weight or 0.5) for id_, group in snapshot.groups.items()}
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
            assert all(shares[other_group] / groups[other_group].weight <= mine + 1e-6 for other_group in shares)


@settings(deadline=None, max_examples=examples(200))
@given(snapshot=snapshots() | snapshots_of_shares())
def test_a_group_has_others_stopped_only_up_to_its_own_share(snapshot: Snapshot) -> None:
    snapshot = replace(snapshot, pools=(replace(snapshot.pools[0], policy="fair_share", is_preemption_on=True),))
    decided = plan(snapshot, NOW)
    usable = {agent.id for agent in snapshot.agents if agent.is_usable}
    # Work on slots that no later work gets is shared out as well.
    lost = sum(
        slots if agent_id not in usable else work.draining_by_agent.get(agent_id, 0)
        for work in snapshot.running
        for agent_id, slots in work.slots_by_agent.items()
    )
    capacity = sum(agent.slots for agent in snapshot.agents if agent.is_usable) + lost
    view = PoolView(snapshot.pools[0], snapshot.agents, snapshot.requests, snapshot.running, snapshot.groups)
    shares = fair_shares(view, capacity)
    slots_by_group: Counter[str] = Counter()
    for work in snapshot.running:
        slots_by_group[work.group] += work.slots
    works = {work.allocation_id: work for work in snapshot.running}
    requests = {request.trial_id: request for request in snapshot.requests}
    evicting = {preemption.for_trial_id for preemption in decided.preemptions}
    for group in shares:
        gained = sum(requests[trial_id].slots for trial_id in evicting if requests[trial_id].group == group)
        if gained:
            assert slots_by_group[group] + gained <= shares[group] + 1e-9
    left = Counter(slots_by_group)
    for work in snapshot.running:
        left[work.group] -= work.slots if work.is_stopping else 0
    stopped = [
        (works[preemption.allocation_id], requests[preemption.for_trial_id]) for preemption in decided.preemptions
    ]
    for work, request in stopped:
        assert not request.slots or work.group != request.group
        left[work.group] -= work.slots
    assert all(left[work.group] >= shares[work.group] - 1e-9 for work, _ in stopped if work.slots)


@given(snapshots())
@settings(max_examples=examples(150))
def test_who_is_passed_over_is_answered_as_if_asked_at_once(snapshot: Snapshot) -> None:
    decided = plan(snapshot, NOW)
    with patch.object(Ledger, "consider_queue", _consider_each):
        at_once = plan(snapshot, NOW)
    assert (decided.assignments, decided.preemptions) == (at_once.assignments, at_once.preemptions)
    assert list(decided.reasons.items()) == list(at_once.reasons.items())
    assert decided.reservations == at_once.reservations


def _consider_each(
    ledger: Ledger, queue: Sequence[PendingRequest], victims_for: Callable[[PendingRequest], Victims]
) -> None:
    for request in queue:
        ledger.consider(request, victims_for(request))


def test_a_plan_of_a_full_pool_asks_the_first_of_each_kind_only() -> None:
    """However long the queue is, and whatever is more urgent."""
    requests = [
        PendingRequest(f"{n}.1", f"g{n}", POOL, 1 + n % 3, priority=10 * (1 + n % 3), submitted_at=float(n))
        for n in range(3000)
    ]
    busy = Running("0.1.1", "0.1", "g", POOL, {"a": 8}, started_at=NOW - 9)
    snapshot = Snapshot((PoolConfig(POOL),), (AgentRoom("a", POOL, 8, 8),), tuple(requests), (busy,))
    with patch.object(Ledger, "consider", autospec=True, side_effect=Ledger.consider) as considered:
        decided = plan(snapshot, NOW)
        assert considered.call_count < 10
        assert [*decided.reasons] == [request.trial_id for request in sorted(requests, key=by_priority)]
        assert all(reason.message for reason in decided.reasons.values())
    assert considered.call_count == len(requests)


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0, 1, 2]), st.sampled_from([10, 42]), st.booleans())))
def test_a_queue_that_is_kept_is_as_one_that_is_sorted(steps: list[tuple[int, int, int, bool]]) -> None:
    """Requests come, and those that are there already go again."""
    kept, there = Queue(), dict[int, PendingRequest]()
    for number, slots, priority, is_timed in steps:
        if number in there:
            kept.remove(there.pop(number))
            continue
        pool, seconds = f"pool{number % 2}", 5.0 * is_timed
        there[number] = PendingRequest(f"{number}.1", "g", pool, slots, priority, estimated_seconds=seconds)
        kept.add(there[number])
    queues, sorted_now = by_pool(kept.requests()), by_pool(tuple(there.values()))
    assert {pool: [*queue] for pool, queue in queues.items()} == {pool: [*queue] for pool, queue in sorted_now.items()}
    assert sorted(kept.requests(), key=by_priority) == sorted(there.values(), key=by_priority)
    assert (len(kept.requests()), kept.requests()[:]) == (len(there), tuple(kept.requests()))
