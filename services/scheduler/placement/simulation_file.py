"""PURE: the snapshot file of `gangline simulate`: reads it into a snapshot and writes the plan out.

A dump of a running cluster, a bug report and a test have the same form, which `simulation_model.py` declares. Every
mistake in a file is refused with one line that says where: line and column of broken JSON, else the path of the field.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import ValidationError

from gangline.config.complaint import complaints_of, join_path
from gangline.config.section import WRITTEN
from gangline.domain.allocation import Reason
from gangline.errors import GanglineError, invalid
from services.scheduler.placement.plan import Plan
from services.scheduler.placement.request.order import natural_key
from services.scheduler.placement.request.snapshot import (
    DEFAULT_PRIORITY,
    ON_CALL_IS_IMPOSSIBLE,
    AgentRoom,
    Group,
    Limit,
    PendingRequest,
    PoolConfig,
    Running,
    Snapshot,
    default_backfill,
    default_preemption,
)
from services.scheduler.placement.request.snapshot_change import dump_change
from services.scheduler.placement.simulation_model import (
    HOLDS,
    SWITCHED_OFF,
    AgentEntry,
    File,
    GroupEntry,
    QuotaEntry,
    TaskEntry,
)

POOL = "default"


@dataclass(frozen=True, slots=True)
class Simulation:
    """Holds the parsed file."""

    snapshot: Snapshot
    now: float  # the file's own time, else the newest submission time in it


def parse_simulation(text: str) -> Simulation:
    """Parses the file. Raises GanglineError `simulation.syntax` or `simulation.invalid`."""
    file = _read(text)
    _check_distinct("agents", (agent.id for agent in file.agents))
    _check_distinct("groups", (group.id for group in file.groups))
    _check_distinct("quotas", (quota.id for quota in file.quotas))
    _check_distinct("tasks", (task.id for task in file.tasks))
    groups = {group.id: _group(group) for group in file.groups}
    agents = {agent.id: _agent(agent, f"agents[{number}]") for number, agent in enumerate(file.agents)}
    requests: list[PendingRequest] = []
    running: list[Running] = []
    limits = {quota.id: _limit(quota) for quota in file.quotas}
    for number, entry in enumerate(file.tasks):
        for place, quota_id in enumerate(entry.quotas):
            if quota_id not in limits:
                raise _error(f"tasks[{number}].quotas[{place}]", f"there is no quota {quota_id!r}")
        task = _task(entry, groups, file.config.queue_positions)
        if entry.allocated_on is None:
            requests.append(task)
        else:
            running.append(_running(entry, task, agents, f"tasks[{number}].allocated_on"))
    # Groups that no list names have no cap and the weight 1.
    # The order of the set does not matter: groups are found by id.
    for group in {task.group for task in requests} | {work.group for work in running}:
        groups.setdefault(group, Group(group))
    snapshot = Snapshot(
        (_config(file),),
        tuple(agents.values()),
        tuple(requests),
        tuple(running),
        groups,
        typical_run_seconds={POOL: file.typical_run_seconds},
        limits=limits,
    )
    newest = max((task.submitted_at for task in file.tasks), default=0.0)
    return Simulation(snapshot, newest if file.now is None else file.now)


def _read(text: str) -> File:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise invalid(
            "simulation.syntax", f"line {error.lineno}, column {error.colno}: no JSON ({error.msg})"
        ) from error
    except RecursionError as error:
        raise invalid("simulation.syntax", "its lists and mappings are nested too deeply") from error
    try:
        return File.model_validate(document, context=WRITTEN)
    except ValidationError as failure:
        complaint = complaints_of(failure, document)[0]
        raise _error(join_path(complaint.path) or "the file", complaint.text) from failure


def _error(place: str, text: str) -> GanglineError:
    return invalid("simulation.invalid", f"{place}: {text}")


def _check_distinct(list_name: str, ids: Iterable[str]) -> None:
    known: set[str] = set()
    for number, entry_id in enumerate(ids):
        if entry_id in known:
            raise _error(f"{list_name}[{number}].id", f"{entry_id!r} is there twice")
        known.add(entry_id)


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
        "quotas": [asdict(limit) for limit in _limits_of(snapshot, pool)],
        "tasks": [*(_dump_running(work) for work in running), *(_dump_request(request) for request in requests)],
    }


def _limits_of(snapshot: Snapshot, pool: str) -> list[Limit]:
    """Returns the limits with what other pools hold, because the file has one pool."""
    held: dict[str, int] = defaultdict(int)
    for work in snapshot.running:
        if work.pool != pool:
            for limit_id in work.limits:
                held[limit_id] += work.slots
    return [replace(limit, held_elsewhere=limit.held_elsewhere + held[limit.id]) for limit in snapshot.limits.values()]


def _config(file: File) -> PoolConfig:
    written = file.config
    is_preemption_on = default_preemption(file.policy) if written.preemption is None else written.preemption
    default = default_backfill(file.policy, is_preemption_on)
    if written.backfill == "on_call" != default:
        raise _error("config.backfill", ON_CALL_IS_IMPOSSIBLE)
    return PoolConfig(
        POOL,
        policy=file.policy,
        fitting=written.fitting_policy,
        allow_heterogeneous_fits=written.allow_heterogeneous_fits,
        is_preemption_on=is_preemption_on,
        default_priority=written.default_priority,
        backfill=default if written.backfill is None else written.backfill,
        network_labels=written.network_labels,
    )


def _agent(entry: AgentEntry, place: str) -> AgentRoom:
    if entry.used_slots > entry.slots:
        raise _error(f"{place}.used_slots", f"{entry.used_slots} of {entry.slots} slots cannot be used")
    if entry.slots == entry.max_zero_slot == 0:
        raise _error(f"{place}.slots", "must be at least 1 for an agent without auxiliary places, found 0")
    is_enabled = entry.state == "enabled"
    return AgentRoom(
        entry.id,
        POOL,
        entry.slots,
        entry.used_slots,
        is_usable=is_enabled,
        problem=("" if is_enabled else entry.state) if entry.problem is None else entry.problem,
        max_zero_slot=entry.max_zero_slot,
        used_zero_slot=entry.used_zero_slot,
        draining=entry.draining_slots,
        disabled=entry.disabled_slots,
        switched_off=entry.state if entry.state in SWITCHED_OFF else "",
        switched_off_slots=entry.switched_off_slots,
        labels=entry.labels,
        gang_problem=entry.gang_problem,
    )


def _group(entry: GroupEntry) -> Group:
    return Group(entry.id, entry.max_slots, entry.weight, entry.priority)


def _limit(entry: QuotaEntry) -> Limit:
    return Limit(
        entry.id,
        entry.name or entry.id,
        entry.max_slots,
        entry.slot_hours,
        entry.used_hours,
        entry.renews_at,
        entry.held_elsewhere,
    )


def _task(entry: TaskEntry, groups: Mapping[str, Group], positions: Mapping[str, float]) -> PendingRequest:
    """Its own priority counts, else that of its group. A task without a group forms a group by itself."""
    group = entry.id if entry.group is None else entry.group
    default = groups[group].priority if group in groups else DEFAULT_PRIORITY
    return PendingRequest(
        entry.id,
        group,
        POOL,
        entry.slots_needed,
        priority=default if entry.priority is None else entry.priority,
        queue_position=positions.get(group) if entry.queue_position is None else entry.queue_position,
        is_single_agent=entry.single_agent,
        is_preemptible=entry.preemptible,
        blocklist=entry.blocklist,
        excluded=tuple(sorted(entry.excluded.items())),
        submitted_at=entry.submitted_at,
        not_before_at=entry.not_before,
        estimated_seconds=entry.estimated_seconds,
        hold=HOLDS.get(entry.hold),
        is_bounded=entry.bounded,
        smaller_sizes=entry.smaller_sizes,
        shrink_at=entry.shrink_at,
        kept_slots=entry.kept_slots,
        limits=entry.quotas,
    )


def _running(entry: TaskEntry, task: PendingRequest, agents: dict[str, AgentRoom], place: str) -> Running:
    """Makes the running work and updates the agents: slots that it occupies in addition to used_slots are added to
    them. place: of its agents in the file."""
    slots_by_agent = entry.allocated_on or {}
    draining = {agent: slots for agent, slots in entry.draining_on.items() if slots}
    hidden: dict[str, int] = {}
    for agent_id, slots in slots_by_agent.items():
        if agent_id not in agents:
            raise _error(place, f"there is no agent {agent_id!r}")
        agent = agents[agent_id]
        if entry.occupies:
            used = agent.used + slots - draining.get(agent_id, 0)
            if used > agent.slots:
                raise _error(place, f"agent {agent_id!r} has no {slots} slots left")
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
        started_at=task.submitted_at if entry.started_at is None else entry.started_at,
        estimated_end_at=entry.estimated_end,
        draining_by_agent=hidden or draining,
        is_stopping=entry.stopping,
        checkpoint_age_seconds=entry.checkpoint_age,
        queue_position=task.queue_position,
        submitted_at=task.submitted_at,
        is_on_call=entry.on_call,
        is_bounded=task.is_bounded,
        # The request for the full size, for work that runs on fewer slots.
        wanted=None
        if entry.full_slots is None
        else replace(task, trial_id=entry.trial or task.trial_id, slots=entry.full_slots),
        grow_at=entry.grow_at,
        is_growing=entry.growing,
        limits=task.limits,
    )


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
        "quotas": list(work.limits),
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
        "quotas": list(request.limits),
    }
