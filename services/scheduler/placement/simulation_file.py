"""PURE: the snapshot file of `gangline simulate`: reads it into a snapshot and writes the plan out.

Owns the format of that JSON, so that a dump of a running cluster, a bug report and a test have the same form. Every
mistake in it is refused with one line that says where: line and column of broken JSON, else the path of the field.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gangline.domain.allocation import Reason
from gangline.domain.state import ReasonCode
from gangline.errors import invalid
from services.scheduler.placement.plan import Plan
from services.scheduler.placement.policy import POLICIES
from services.scheduler.placement.request.order import natural_key
from services.scheduler.placement.request.snapshot import (
    DEFAULT_MAX_ZERO_SLOT,
    DEFAULT_PRIORITY,
    ON_CALL_IS_IMPOSSIBLE,
    AgentRoom,
    Backfill,
    Group,
    PendingRequest,
    PoolConfig,
    Running,
    Snapshot,
    default_backfill,
    default_preemption,
)
from services.scheduler.placement.request.snapshot_change import dump_change
from services.scheduler.placement.simulation_field import Fields, read_list

POOL = "default"
_HOLDS = {
    "paused": ReasonCode.PAUSED,
    "search_waiting": ReasonCode.SEARCH_WAITING,
    "no_gateway": ReasonCode.NO_GATEWAY,
}
_SWITCHED_OFF = ("draining", "disabled")
_AGENT_STATES = ("enabled", *_SWITCHED_OFF, "away")


@dataclass(frozen=True, slots=True)
class Simulation:
    """Holds the parsed file."""

    snapshot: Snapshot
    now: float  # the file's own time, else the newest submission time in it


def parse_simulation(text: str) -> Simulation:
    """Parses the file. Raises GanglineError `simulation.syntax` or `simulation.invalid`."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise invalid(
            "simulation.syntax", f"line {error.lineno}, column {error.colno}: no JSON ({error.msg})"
        ) from error
    top = Fields(document, "")
    config, positions = _config(top)
    groups = {group.id: group for group in _distinct(_group(item) for item in read_list(top, "groups"))}
    agents = {agent.id: agent for agent in _distinct(_agent(item) for item in read_list(top, "agents"))}
    requests: list[PendingRequest] = []
    running: list[Running] = []
    newest = 0.0
    trial_ids: set[str] = set()
    for item in read_list(top, "tasks"):
        task = _task(item, groups, positions)
        if task.trial_id in trial_ids:
            raise item.error("id", f"{task.trial_id!r} is there twice")
        trial_ids.add(task.trial_id)
        newest = max(newest, task.submitted_at)
        if item.has("allocated_on"):
            running.append(_running(item, task, agents))
        else:
            item.flag("occupies", False)
            requests.append(task)
        item.done()
    now = top.number("now", newest)
    # Groups that no list names have no cap and the weight 1.
    # The order of the set does not matter: groups are found by id.
    for group in {task.group for task in requests} | {work.group for work in running}:
        groups.setdefault(group, Group(group))
    snapshot = Snapshot(
        (config,),
        tuple(agents.values()),
        tuple(requests),
        tuple(running),
        groups,
        typical_run_seconds={POOL: top.number("typical_run_seconds", 0.0, 0.0)},
    )
    top.done()
    return Simulation(snapshot, now)


def dump_plan(decided: Plan) -> dict[str, Any]:
    """Returns the output as JSON: what starts, stops and waits, and the change of each reason as a record."""
    return {
        "to_allocate": {
            assignment.trial_id: dict(sorted(assignment.slots_by_agent.items())) for assignment in decided.assignments
        },
        "to_release": sorted({preemption.allocation_id for preemption in decided.preemptions}, key=natural_key),
        "reasons": {
            trial_id: _dump_reason(reason, decided.changes.get(trial_id, ()))
            for trial_id, reason in decided.reasons.items()
        },
    }


def dump_simulation(snapshot: Snapshot, pool: str, now: float) -> dict[str, Any]:
    """Returns one pool of a snapshot in the format of the file; reading it back gives the same plan."""
    config = next(pool_config for pool_config in snapshot.pools if pool_config.name == pool)
    agents = snapshot.agents_of(pool)
    running = [_within(agents, work) for work in snapshot.running if work.pool == pool]
    gone = {agent_id for work in running for agent_id in work.slots_by_agent}.difference(agent.id for agent in agents)
    held_by_agent = _held_by_agent(running)
    requests = [request for request in snapshot.requests if request.pool == pool]
    return {
        "policy": config.policy,
        "now": now,
        "typical_run_seconds": snapshot.typical_run_seconds.get(pool, 0.0),
        "config": _dump_config(config),
        "agents": [
            *(_dump_agent(agent, held_by_agent[agent.id]) for agent in agents),
            *({"id": agent_id, "slots": 0, "state": "away", "problem": "in another pool"} for agent_id in sorted(gone)),
        ],
        "groups": [
            {"id": group.id, "max_slots": group.max_slots, "weight": group.weight, "priority": group.priority}
            for group in snapshot.groups.values()
        ],
        "tasks": [*(_dump_running(work) for work in running), *(_dump_request(request) for request in requests)],
    }


def _config(top: Fields) -> tuple[PoolConfig, Mapping[str, float]]:
    policy = top.choice("policy", tuple(sorted(POLICIES)), "priority")
    fields = Fields(top.raw("config", {}), "config")
    is_preemption_on = fields.flag("preemption", default_preemption(policy))
    config = PoolConfig(
        POOL,
        policy=policy,
        fitting="worst" if fields.choice("fitting_policy", ("best", "worst"), "best") == "worst" else "best",
        allow_heterogeneous_fits=fields.flag("allow_heterogeneous_fits", False),
        is_preemption_on=is_preemption_on,
        default_priority=fields.integer("default_priority", DEFAULT_PRIORITY, 1, 99),
        backfill=_backfill(fields, default_backfill(policy, is_preemption_on)),
        network_labels=tuple(fields.texts("network_labels", PoolConfig(POOL).network_labels)),
    )
    positions = Fields(fields.raw("queue_positions", {}), "config.queue_positions")
    position_by_name = {name: positions.number(name, 0.0) for name in positions.names}
    fields.done()
    return config, position_by_name


def _backfill(fields: Fields, default: Backfill) -> Backfill:
    if fields.raw("backfill", None) != "on_call":
        return fields.flag("backfill", True) if fields.has("backfill") else default
    if default != "on_call":
        raise fields.error("backfill", ON_CALL_IS_IMPOSSIBLE)
    return "on_call"


def _agent(item: Fields) -> AgentRoom:
    agent_id = item.text("id")
    slots = item.integer("slots", None, 0)
    used = item.integer("used_slots", 0, 0)
    state = item.choice("state", _AGENT_STATES, "enabled")
    if used > slots:
        raise item.error("used_slots", f"{used} of {slots} slots cannot be used")
    if slots == 0 and item.integer("max_zero_slot", DEFAULT_MAX_ZERO_SLOT, 0) == 0:
        raise item.error("slots", "must be at least 1 for an agent without auxiliary places, not 0")
    agent = AgentRoom(
        agent_id,
        POOL,
        slots,
        used,
        is_usable=state == "enabled",
        problem=item.text("problem", "" if state == "enabled" else state),
        max_zero_slot=item.integer("max_zero_slot", DEFAULT_MAX_ZERO_SLOT, 0),
        used_zero_slot=item.integer("used_zero_slot", 0, 0),
        draining=item.integer("draining_slots", 0, 0),
        disabled=item.integer("disabled_slots", 0, 0),
        switched_off=state if state in _SWITCHED_OFF else "",
        switched_off_slots=item.integer("switched_off_slots", 0, 0),
        labels=item.text_map("labels"),
        gang_problem=item.text("gang_problem", ""),
    )
    item.done()
    return agent


def _group(item: Fields) -> Group:
    max_slots = item.integer("max_slots", None, 1) if item.has("max_slots") else None
    group = Group(
        item.text("id"), max_slots, item.number("weight", 1.0, 0.0), item.integer("priority", DEFAULT_PRIORITY, 1, 99)
    )
    item.done()
    return group


def _task(item: Fields, groups: Mapping[str, Group], positions: Mapping[str, float]) -> PendingRequest:
    """Reads a task. Its own priority counts, else that of its group. A task without a group forms a group by itself."""
    task_id = item.text("id")
    group = item.text("group", task_id)
    default = groups[group].priority if group in groups else DEFAULT_PRIORITY
    hold = item.choice("hold", ("", *_HOLDS), "")
    return PendingRequest(
        task_id,
        group,
        POOL,
        item.integer("slots_needed", None, 0),
        priority=item.integer("priority", default, 1, 99),
        queue_position=item.number("queue_position", 0.0) if item.has("queue_position") else positions.get(group),
        is_single_agent=item.flag("single_agent", False),
        is_preemptible=item.flag("preemptible", True),
        blocklist=tuple(item.texts("blocklist", ())),
        excluded=tuple(sorted(item.text_map("excluded").items())),
        submitted_at=item.number("submitted_at", 0.0),
        not_before_at=item.number("not_before", 0.0),
        estimated_seconds=item.number("estimated_seconds", 0.0, 0.0),
        hold=_HOLDS.get(hold),
        is_bounded=item.flag("bounded", False),
        smaller_sizes=tuple(item.integers("smaller_sizes", 1)),
        shrink_at=item.number("shrink_at", 0.0, 0.0),
        kept_slots=item.integer("kept_slots", 0, 0),
    )


def _running(item: Fields, task: PendingRequest, agents: dict[str, AgentRoom]) -> Running:
    """Reads running work and updates the agents: slots that it occupies in addition to used_slots are added to them."""
    slots_by_agent = _allocated(item, task)
    occupies = item.flag("occupies", False)
    draining = {agent: slots for agent, slots in item.integer_map("draining_on").items() if slots}
    hidden: dict[str, int] = {}
    for agent_id, slots in slots_by_agent.items():
        if agent_id not in agents:
            raise item.error("allocated_on", f"there is no agent {agent_id!r}")
        agent = agents[agent_id]
        if occupies:
            used = agent.used + slots - draining.get(agent_id, 0)
            if used > agent.slots:
                raise item.error("allocated_on", f"agent {agent_id!r} has no {slots} slots left")
            auxiliary = agent.used_zero_slot + (slots == 0)
            agents[agent_id] = replace(
                agent, used=used, used_zero_slot=auxiliary, draining=agent.draining + draining.get(agent_id, 0)
            )
        elif slots > agent.used:
            # The work holds more slots here than are busy, so only the busy ones come back.
            hidden[agent_id] = slots - agent.used
    return Running(
        task.trial_id,
        task.trial_id,
        task.group,
        POOL,
        slots_by_agent,
        priority=task.priority,
        is_preemptible=task.is_preemptible,
        started_at=item.number("started_at", task.submitted_at),
        estimated_end_at=item.number("estimated_end", 0.0),
        draining_by_agent=hidden or draining,
        is_stopping=item.flag("stopping", False),
        checkpoint_age_seconds=item.number("checkpoint_age", 0.0, 0.0) if item.has("checkpoint_age") else None,
        queue_position=task.queue_position,
        submitted_at=task.submitted_at,
        is_on_call=item.flag("on_call", False),
        is_bounded=task.is_bounded,
        wanted=_wanted(item, task),
        grow_at=item.number("grow_at", 0.0, 0.0),
        is_growing=item.flag("growing", False),
    )


def _wanted(item: Fields, task: PendingRequest) -> PendingRequest | None:
    """Returns the request for the full size, for work that runs on fewer slots; None for other work."""
    if not item.has("full_slots"):
        return None
    full_slots = item.integer("full_slots", None, task.slots + 1)
    return replace(task, trial_id=item.text("trial", task.trial_id), slots=full_slots)


def _allocated(item: Fields, task: PendingRequest) -> dict[str, int]:
    where = item.raw("allocated_on", None)
    if isinstance(where, str):
        return {where: task.slots}
    slots_by_agent = item.integer_map("allocated_on")
    if sum(slots_by_agent.values()) != task.slots:
        raise item.error("allocated_on", f"holds {sum(slots_by_agent.values())} slots, not {task.slots}")
    return slots_by_agent


def _distinct(records: Iterable[Any]) -> list[Any]:
    record_by_id: dict[str, Any] = {}
    for record in records:
        if record.id in record_by_id:
            list_name = "agents" if isinstance(record, AgentRoom) else "groups"
            raise invalid("simulation.invalid", f"{list_name}[{len(record_by_id)}].id: {record.id!r} is there twice")
        record_by_id[record.id] = record
    return list(record_by_id.values())


def _dump_reason(reason: Reason, changes: Iterable[Any]) -> dict[str, Any]:
    return {
        "code": reason.code.lower(),
        "message": reason.message,
        "would_start_if": reason.would_start_if,
        "blocking_ids": list(reason.blocking_ids),
        "eta_at": reason.eta_at,
        "changes": [dump_change(change) for change in changes],
    }


def _dump_config(config: PoolConfig) -> dict[str, Any]:
    return {
        "fitting_policy": config.fitting,
        "allow_heterogeneous_fits": config.allow_heterogeneous_fits,
        "preemption": config.is_preemption_on,
        "default_priority": config.default_priority,
        "backfill": config.backfill,
        "network_labels": list(config.network_labels),
    }


@dataclass(slots=True)
class _Held:
    """Counts what the file's own work holds on one agent."""

    used: int = 0
    draining: int = 0
    auxiliary: int = 0


def _held_by_agent(running: Iterable[Running]) -> dict[str, _Held]:
    held_by_agent: dict[str, _Held] = defaultdict(_Held)
    for work in running:
        for agent_id, slots in work.slots_by_agent.items():
            drained = work.draining_by_agent.get(agent_id, 0)
            held_by_agent[agent_id].used += slots - drained
            held_by_agent[agent_id].draining += drained
            held_by_agent[agent_id].auxiliary += slots == 0
    return held_by_agent


def _dump_agent(agent: AgentRoom, held: _Held) -> dict[str, Any]:
    return {
        "id": agent.id,
        "slots": agent.slots,
        "used_slots": agent.used - held.used,
        "max_zero_slot": agent.max_zero_slot,
        "used_zero_slot": agent.used_zero_slot - held.auxiliary,
        "draining_slots": agent.draining - held.draining,
        "disabled_slots": agent.disabled,
        "switched_off_slots": agent.switched_off_slots,
        "state": "enabled" if agent.is_usable else agent.switched_off or "away",
        "problem": agent.problem,
        "labels": dict(agent.labels),
        "gang_problem": agent.gang_problem,
    }


def _within(agents: Iterable[AgentRoom], work: Running) -> Running:
    """Marks slots on agents that have left the pool as draining, so that no request of this pool gets them."""
    left = work.slots_by_agent.keys() - {agent.id for agent in agents}
    if not left:
        return work
    return replace(
        work,
        draining_by_agent={**work.draining_by_agent, **{agent_id: work.slots_by_agent[agent_id] for agent_id in left}},
    )


def _dump_running(work: Running) -> dict[str, Any]:
    return {
        "id": work.allocation_id,
        "slots_needed": work.slots,
        "group": work.group,
        "priority": work.priority,
        "preemptible": work.is_preemptible,
        "queue_position": work.queue_position,
        "submitted_at": work.submitted_at,
        "started_at": work.started_at,
        "allocated_on": dict(work.slots_by_agent),
        "occupies": True,
        "draining_on": dict(work.draining_by_agent),
        "estimated_end": work.estimated_end_at,
        "stopping": work.is_stopping,
        "checkpoint_age": work.checkpoint_age_seconds,
        "on_call": work.is_on_call,
        "bounded": work.is_bounded,
        **_dump_growth(work),
    }


def _dump_growth(work: Running) -> dict[str, Any]:
    """Returns the fields of work that runs on fewer slots."""
    if work.wanted is None:
        return {}
    names = ("single_agent", "blocklist", "excluded", "estimated_seconds", "hold")
    wanted = {name: value for name, value in _dump_request(work.wanted).items() if name in names}
    return {
        **wanted,
        "trial": work.wanted.trial_id,
        "full_slots": work.wanted.slots,
        "grow_at": work.grow_at,
        "growing": work.is_growing,
    }


def _dump_request(request: PendingRequest) -> dict[str, Any]:
    return {
        "id": request.trial_id,
        "slots_needed": request.slots,
        "group": request.group,
        "priority": request.priority,
        "queue_position": request.queue_position,
        "preemptible": request.is_preemptible,
        "single_agent": request.is_single_agent,
        "blocklist": list(request.blocklist),
        "excluded": dict(request.excluded),
        "submitted_at": request.submitted_at,
        "not_before": request.not_before_at,
        "estimated_seconds": request.estimated_seconds,
        "bounded": request.is_bounded,
        "hold": request.hold.lower() if request.hold else "",
        "smaller_sizes": list(request.smaller_sizes),
        "shrink_at": request.shrink_at,
        "kept_slots": request.kept_slots,
    }
