"""PURE: `plan(snapshot, now)`, the decision of one cycle.

Owns the split into pools and the shape of the result; each pool's policy decides by itself. The same input always gives
the same plan. Callers are the leader's cycle (cycle.py), which re-checks every assignment when it commits it, and
tests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeVar

from gangline.domain.allocation import Reason
from gangline.domain.state import ReasonCode
from services.scheduler.placement.policy import POLICIES
from services.scheduler.placement.request.assignment import Assignment, Lazy, PoolPlan, Preemption, Reservation
from services.scheduler.placement.request.queue import by_pool
from services.scheduler.placement.request.snapshot import AgentRoom, PendingRequest, PoolView, Running, Snapshot
from services.scheduler.placement.request.snapshot_change import AddAgents, Change

_V = TypeVar("_V")


@dataclass(frozen=True)
class Plan:
    """Holds the decisions of one cycle. Reasons and changes are computed on first access."""

    assignments: tuple[Assignment, ...]  # in the order in which they should start
    preemptions: tuple[Preemption, ...]
    # by trial id, one for every request that stays pending, in the order in which the planner considered them
    reasons: Mapping[str, Reason]
    # by trial id, the changes that would start the request, as records
    changes: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    # by pool, the first waiting request and the time from which slots are kept for it
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    # time at which another plan may decide otherwise although nothing has changed; None for never
    look_at: float | None = None


def plan(snapshot: Snapshot, now: float) -> Plan:
    """Decides for every request of the snapshot: it is assigned, or it has a reason."""
    requests = dict(by_pool(snapshot.requests))
    running, agents = _running_by_pool(snapshot), _agents_by_pool(snapshot)
    holders, held = Lazy(lambda: _holders(snapshot)), _held(snapshot)
    plans: dict[str, PoolPlan] = {}
    for config in snapshot.pools:
        view = PoolView(
            config=config,
            agents=tuple(agents.get(config.name, ())),
            requests=requests.pop(config.name, ()),
            running=tuple(running.get(config.name, ())),
            groups=snapshot.groups,
            typical_run_seconds=snapshot.typical_run_seconds.get(config.name, 0.0),
            limits=snapshot.limits,
            held=dict(held),
            holders=holders,
        )
        # Without requests a pool still needs a plan if work on fewer slots may grow there.
        if view.requests or any(work.wanted is not None for work in view.running):
            plans[config.name] = POLICIES[config.policy](view, now)
            # The pools are planned one after the other, so a limit that requests of several pools compete for goes to
            # the pool that is planned first.
            held.update(plans[config.name].promised)
    for pool, homeless in requests.items():
        plans[pool] = _explain_homeless(homeless, snapshot)
    return _join(plans, _next_renewal(snapshot))


def _holders(snapshot: Snapshot) -> Mapping[str, Sequence[Running]]:
    """Returns, by limit, the running work that counts for it, in the order of allocation ids."""
    holders: dict[str, list[Running]] = defaultdict(list)
    if snapshot.limits:
        for work in sorted(snapshot.running, key=attrgetter("allocation_id")):
            for limit_id in work.limits:
                holders[limit_id].append(work)
    return holders


def _held(snapshot: Snapshot) -> Counter[str]:
    """Returns, by limit, the slots that count for it before the plan."""
    held = Counter({limit.id: limit.held_elsewhere for limit in snapshot.limits.values()})
    if held:
        for work in snapshot.running:
            if work.limits:
                slots = work.slots
                for limit_id in work.limits:
                    held[limit_id] += slots
    return held


def _next_renewal(snapshot: Snapshot) -> float | None:
    """Returns when slot-hours that are used up are renewed first; None while none are."""
    return min((limit.renews_at for limit in snapshot.limits.values() if limit.is_spent), default=None)


def _join(plans: Mapping[str, PoolPlan], renewal_at: float | None) -> Plan:
    parts = plans.values()
    reasons = [part.reasons for part in parts]
    changes = [part.changes for part in parts]
    return Plan(
        assignments=tuple(assignment for part in parts for assignment in part.assignments),
        preemptions=tuple(preemption for part in parts for preemption in part.preemptions),
        reasons=_merged(reasons),
        changes=_merged(changes),
        reservations={name: part.reservation for name, part in plans.items() if part.reservation is not None},
        look_at=min((at for at in (renewal_at, *(part.look_at for part in parts)) if at is not None), default=None),
    )


def _merged(parts: Sequence[Mapping[str, _V]]) -> Mapping[str, _V]:
    """Merges the pools' mappings without evaluating lazy ones."""
    if len(parts) == 1:
        return parts[0]
    return Lazy(lambda: {key: value for part in parts for key, value in part.items()})


def _running_by_pool(snapshot: Snapshot) -> dict[str, list[Running]]:
    running: dict[str, list[Running]] = defaultdict(list)
    for work in sorted(snapshot.running, key=attrgetter("allocation_id")):
        running[work.pool].append(work)
    return running


def _agents_by_pool(snapshot: Snapshot) -> dict[str, list[AgentRoom]]:
    """Sorts agents by id, like running work: the order of the input must not change the plan, nor the text of a
    reason."""
    agents: dict[str, list[AgentRoom]] = defaultdict(list)
    for agent in sorted(snapshot.agents, key=attrgetter("id")):
        agents[agent.pool].append(agent)
    return agents


def _explain_homeless(requests: Iterable[PendingRequest], snapshot: Snapshot) -> PoolPlan:
    """Explains requests for pools that are gone from the settings."""
    pool_names = ", ".join(sorted(snapshot.pool_names))
    reasons, changes = {}, {}
    for request in requests:
        change = AddAgents(request.pool, 1, max(1, request.slots))
        what = f"there is no pool {request.pool!r}; the pools are {pool_names}"
        reasons[request.trial_id] = Reason(ReasonCode.NO_MATCHING_POOL, what, str(change))
        changes[request.trial_id] = (change,)
    return PoolPlan(reasons=reasons, changes=changes)
