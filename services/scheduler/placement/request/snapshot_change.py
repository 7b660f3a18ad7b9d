"""PURE: small changes of a snapshot, the counterfactuals of reasons: "it would start if this were so".

Each change is a record that has a text form (half a sentence) and a JSON form, and can be applied to a snapshot. The
tests apply changes to prove that a reason is true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from gangline.domain.id import describe_allocations
from gangline.domain.quota import format_hours, month_of
from services.scheduler.placement.request.snapshot import AgentRoom, PendingRequest, Running, Snapshot, default_pool

# Agents that a sentence lists by name before it only counts the rest.
_MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class EndWork:
    """Ends these allocations."""

    allocation_ids: tuple[str, ...]

    def __str__(self) -> str:
        return f"these end: {describe_allocations(self.allocation_ids)}"


@dataclass(frozen=True, slots=True)
class EmptyAgents:
    """Ends everything on these agents, including use of slots that belongs to no request of this cluster."""

    agent_ids: tuple[str, ...]

    def __str__(self) -> str:
        return f"everything on {_named(self.agent_ids)} ends"


@dataclass(frozen=True, slots=True)
class EnableAgents:
    """Brings these agents back, or enables them, with all of their slots."""

    agent_ids: tuple[str, ...]
    # the agents among them that are in use, and that only this request avoids for a while
    excluded: tuple[str, ...] = ()

    def __str__(self) -> str:
        away = tuple(agent_id for agent_id in self.agent_ids if agent_id not in self.excluded)
        parts = [f"these agents come back with all their slots: {_named(away)}"] if away else []
        parts += [f"the exclusion of {_named(self.excluded)} for this trial ends"] if self.excluded else []
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class RestoreNetwork:
    """Gives these agents the network interface back that gangs over several agents need."""

    agent_ids: tuple[str, ...]

    def __str__(self) -> str:
        return f"the network interface for gangs is up on {_named(self.agent_ids)}"


@dataclass(frozen=True, slots=True)
class AddAgents:
    """Adds agents to the pool."""

    pool: str
    num_agents: int
    slots: int

    def __str__(self) -> str:
        if self.num_agents == 1:
            return f"an agent with {self.slots} slots or more joins pool {self.pool!r}"
        return f"{self.num_agents} agents with {self.slots} slots each join pool {self.pool!r}"


@dataclass(frozen=True, slots=True)
class RaiseMaxSlots:
    group: str
    max_slots: int

    def __str__(self) -> str:
        return f"max_slots of {self.group} is raised to {self.max_slots}"


@dataclass(frozen=True, slots=True)
class RaiseLimit:
    """Lets a user or a workspace have more slots at a time. name: such as "user ada"."""

    limit_id: str
    name: str
    max_slots: int

    def __str__(self) -> str:
        return f"the quota of {self.name} is raised to {self.max_slots} slots"


@dataclass(frozen=True, slots=True)
class RaiseHours:
    """Lets a user or a workspace have more slot-hours than are used up, or begins the next month."""

    limit_id: str
    name: str
    used_hours: float
    renews_at: float

    def __str__(self) -> str:
        raised = f"the quota of {self.name} is raised above {format_hours(self.used_hours)} slot-hours a month"
        return f"{raised}, or the next month, {month_of(self.renews_at)}, begins"


@dataclass(frozen=True, slots=True)
class MoveToFront:
    """Moves the request before every other one of its pool."""

    trial_id: str

    def __str__(self) -> str:
        return "it is moved to the front of the queue"


@dataclass(frozen=True, slots=True)
class Release:
    """Resumes the request: it is no longer paused, held back or waiting for time to pass."""

    trial_id: str
    sentence: str

    def __str__(self) -> str:
        return self.sentence


Change = (
    EndWork
    | EmptyAgents
    | EnableAgents
    | RestoreNetwork
    | AddAgents
    | RaiseMaxSlots
    | RaiseLimit
    | RaiseHours
    | MoveToFront
    | Release
)


def describe_changes(changes: Iterable[Change]) -> str:
    return " and ".join(str(change) for change in changes)


def dump_change(change: Change) -> dict[str, Any]:
    """Returns the change for JSON: its kind in lower case with underscores, and its fields."""
    change_kind = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(change).__name__).lstrip("_")
    return {"kind": change_kind, **asdict(change)}


def apply_changes(snapshot: Snapshot, changes: Iterable[Change]) -> Snapshot:
    for change in changes:
        snapshot = apply_change(snapshot, change)
    return snapshot


def apply_change(snapshot: Snapshot, change: Change) -> Snapshot:
    """Returns the snapshot as the change would make it. The input is not modified."""
    match change:
        case EndWork(allocation_ids):
            return _end(snapshot, set(allocation_ids))
        case EmptyAgents(agent_ids):
            return _clear(snapshot, set(agent_ids))
        case AddAgents():
            return _add_agents(snapshot, change)
        case EnableAgents(agent_ids):
            snapshot = _enable(snapshot, set(agent_ids))
        case RestoreNetwork(agent_ids):
            agents = (replace(a, gang_problem="") if a.id in agent_ids else a for a in snapshot.agents)
            snapshot = replace(snapshot, agents=tuple(agents))
        case RaiseMaxSlots(group, max_slots):
            if group in snapshot.groups:
                raised = replace(snapshot.groups[group], max_slots=max_slots)
                snapshot = replace(snapshot, groups={**snapshot.groups, group: raised})
        case RaiseLimit(limit_id, _, max_slots):
            snapshot = _with_limit(snapshot, limit_id, max_slots=max_slots)
        case RaiseHours(limit_id, _, used_hours):
            snapshot = _with_limit(snapshot, limit_id, slot_hours=used_hours + 1)
        case MoveToFront(trial_id):
            snapshot = _with_request(snapshot, trial_id, is_first=True)
        case Release(trial_id):
            snapshot = _with_request(snapshot, trial_id, not_before_at=0.0, hold=None)
    return snapshot


def enabled(agent: AgentRoom) -> AgentRoom:
    """Returns the agent with all of its slots; its draining slots count as used."""
    slots, used = agent.slots + agent.disabled, agent.used + agent.draining
    return replace(
        agent,
        is_usable=True,
        problem="",
        slots=slots,
        used=used,
        draining=0,
        disabled=0,
        switched_off="",
        switched_off_slots=0,
    )


def _enable(snapshot: Snapshot, agent_ids: set[str]) -> Snapshot:
    agents = (enabled(agent) if agent.id in agent_ids else agent for agent in snapshot.agents)
    running = (
        replace(w, draining_by_agent={a: slots for a, slots in w.draining_by_agent.items() if a not in agent_ids})
        if w.draining_by_agent
        else w
        for w in snapshot.running
    )
    requests = (_readmit(request, agent_ids) for request in snapshot.requests)
    return replace(snapshot, agents=tuple(agents), running=tuple(running), requests=tuple(requests))


def _readmit(request: PendingRequest, agent_ids: set[str]) -> PendingRequest:
    """Removes enabled agents from what the request excludes for a limited time: enabling an agent ends the
    exclusion."""
    over = {agent_id for agent_id, _ in request.excluded if agent_id in agent_ids}
    if not over:
        return request
    blocklist = tuple(agent_id for agent_id in request.blocklist if agent_id not in over)
    return replace(
        request,
        blocklist=blocklist,
        excluded=tuple(exclusion for exclusion in request.excluded if exclusion[0] not in over),
    )


def _end(snapshot: Snapshot, ended: set[str]) -> Snapshot:
    agents = {agent.id: agent for agent in snapshot.agents}
    for work in snapshot.running:
        if work.allocation_id in ended:
            for agent_id in work.slots_by_agent:
                if agent_id in agents:
                    agents[agent_id] = _without(agents[agent_id], work)
    running = tuple(work for work in snapshot.running if work.allocation_id not in ended)
    return replace(snapshot, agents=tuple(agents.values()), running=running)


def _without(agent: AgentRoom, work: Running) -> AgentRoom:
    slots = work.slots_by_agent[agent.id]
    if slots == 0:
        return replace(agent, used_zero_slot=max(0, agent.used_zero_slot - 1))
    drained = work.draining_by_agent.get(agent.id, 0)
    return replace(agent, used=max(0, agent.used - slots + drained), draining=max(0, agent.draining - drained))


def _clear(snapshot: Snapshot, agent_ids: set[str]) -> Snapshot:
    there = {work.allocation_id for work in snapshot.running if not agent_ids.isdisjoint(work.slots_by_agent)}
    ended = _end(snapshot, there)
    agents = (
        replace(agent, used=0, draining=0, used_zero_slot=0) if agent.id in agent_ids else agent
        for agent in ended.agents
    )
    return replace(ended, agents=tuple(agents))


def _add_agents(snapshot: Snapshot, change: AddAgents) -> Snapshot:
    agent_ids = {agent.id for agent in snapshot.agents}
    names = (f"new-{number}" for number in range(1, len(agent_ids) + change.num_agents + 1))
    new = [name for name in names if name not in agent_ids][: change.num_agents]
    agents = (*snapshot.agents, *(AgentRoom(name, change.pool, change.slots) for name in new))
    if change.pool in snapshot.pool_names:
        return replace(snapshot, agents=agents)
    return replace(snapshot, agents=agents, pools=(*snapshot.pools, default_pool(change.pool)))


def _with_request(snapshot: Snapshot, trial_id: str, **fields: Any) -> Snapshot:
    requests = (replace(r, **fields) if r.trial_id == trial_id else r for r in snapshot.requests)
    return replace(snapshot, requests=tuple(requests))


def _with_limit(snapshot: Snapshot, limit_id: str, **fields: Any) -> Snapshot:
    if limit_id not in snapshot.limits:
        return snapshot
    return replace(snapshot, limits={**snapshot.limits, limit_id: replace(snapshot.limits[limit_id], **fields)})


def _named(ids: tuple[str, ...]) -> str:
    shown = ", ".join(ids[:_MAX_NAMED])
    return shown if len(ids) <= _MAX_NAMED else f"{shown} and {len(ids) - _MAX_NAMED} more"
