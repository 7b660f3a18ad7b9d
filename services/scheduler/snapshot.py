"""PURE: takes the planner's snapshot of the leader's state.

Slots are counted: an agent has its healthy slots and those that a live allocation still holds. Agents that cannot
start anything now stay in the snapshot, marked, because they count for what a pool can hold.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from gangline.domain.allocation import Allocation, Request
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.resource import Agent
from gangline.domain.state import State as Stage
from services.scheduler.facts import facts_of
from services.scheduler.placement import AgentRoom, Group, PendingRequest, PoolConfig, Running, Snapshot
from services.scheduler.records import State, get
from services.scheduler.transition.place import taken_slot_ids
from services.scheduler.transition.rules import DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest that a trial's chief reported. batches_total: 0 when unknown."""

    batches_completed: int
    batches_total: int
    seconds_per_batch: float
    at: float

    @property
    def estimated_end_at(self) -> float:
        """0 when there is no telling."""
        left = self.batches_total - self.batches_completed
        return self.at + left * self.seconds_per_batch if left > 0 and self.seconds_per_batch > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Look:
    """What every running allocation is looked up in. unhealthy: slot ids by agent. default_priorities: by pool."""

    state: State
    unhealthy: Mapping[str, set[str]]
    progress_by_trial: Mapping[str, Progress]
    default_priorities: Mapping[str, int]
    now: float


def take_snapshot(
    state: State,
    pools: Iterable[PoolConfig],
    problem_by_agent: Mapping[str, str],
    progress_by_trial: Mapping[str, Progress],
    *,
    now: float,
    held: Container[str] = (),
) -> Snapshot:
    """problem_by_agent: agents that cannot start anything now, and why. now: ages of checkpoints count from it. held:
    trials that must not be planned."""
    agents = tuple(state.all_of(Agent))
    allocations = tuple(state.all_of(Allocation))
    requests = tuple(request for request in state.all_of(Request) if request.trial_id not in held)
    known_pools = all_pools(pools, agents)
    look = _Look(
        state,
        {agent.id: {slot.id for slot in agent.slots if not slot.is_healthy} for agent in agents},
        progress_by_trial,
        {pool.name: pool.default_priority for pool in known_pools},
        now,
    )
    return Snapshot(
        pools=known_pools,
        agents=tuple(_room(state, agent, problem_by_agent.get(agent.id, "")) for agent in agents),
        requests=tuple(_pending(request) for request in requests),
        running=tuple(_running(look, found) for found in allocations),
        groups=_groups(
            state, {found.experiment_id for found in allocations} | {found.experiment_id for found in requests}
        ),
        revision=state.revision,
    )


def all_pools(configured: Iterable[PoolConfig], agents: Iterable[Agent]) -> tuple[PoolConfig, ...]:
    """The pools of the settings, and those that agents name beside them, with the defaults."""
    pools = {pool.name: pool for pool in configured}
    for agent in agents:
        pools.setdefault(agent.pool, PoolConfig(agent.pool))
    return tuple(pools[name] for name in sorted(pools))


def _room(state: State, agent: Agent, problem: str) -> AgentRoom:
    """An unhealthy slot that is busy comes back to nobody."""
    taken = taken_slot_ids(state, agent.id)
    healthy = [slot.id for slot in agent.slots if slot.is_healthy]
    used = sum(1 for slot_id in healthy if slot_id in taken)
    return AgentRoom(
        id=agent.id,
        pool=agent.pool,
        slots=len(healthy),
        used=used,
        is_usable=not problem,
        problem=problem,
        used_zero_slot=sum(1 for found in state.allocations_on(agent.id) if found.num_slots == 0),
        draining=len(taken) - used,
        disabled=max(len(agent.slots) - len(healthy), len(taken) - used),
        labels=agent.labels,
    )


def _pending(request: Request) -> PendingRequest:
    return PendingRequest(
        trial_id=request.trial_id,
        group=str(request.experiment_id),
        pool=request.pool,
        slots=request.slots,
        priority=request.priority,
        is_single_agent=request.is_single_agent,
        blocklist=request.blocklist,
        submitted_at=request.submitted_at,
        not_before_at=request.not_before_at,
    )


def _running(look: _Look, allocation: Allocation) -> Running:
    facts = facts_of(get(look.state, Experiment, allocation.experiment_id).config_json)
    progress = look.progress_by_trial.get(allocation.trial_id)
    is_stopping = allocation.state is Stage.STOPPING
    estimated_end_at = progress.estimated_end_at if progress else 0.0
    return Running(
        allocation_id=allocation.id,
        trial_id=allocation.trial_id,
        group=str(allocation.experiment_id),
        pool=allocation.pool,
        slots_by_agent={member.agent_id: len(member.slot_ids) for member in allocation.members},
        priority=facts.priority or look.default_priorities.get(allocation.pool, DEFAULT_PRIORITY),
        started_at=allocation.created_at,
        estimated_end_at=allocation.deadline_at if is_stopping else estimated_end_at,
        draining_by_agent=_draining(allocation, look.unhealthy),
        is_stopping=is_stopping,
        checkpoint_age_seconds=_checkpoint_age(look.state, allocation, look.now),
    )


def _draining(allocation: Allocation, unhealthy: Mapping[str, set[str]]) -> dict[str, int]:
    lost = {m.agent_id: len(unhealthy.get(m.agent_id, set()).intersection(m.slot_ids)) for m in allocation.members}
    return {agent_id: slots for agent_id, slots in lost.items() if slots}


def _checkpoint_age(state: State, allocation: Allocation, now: float) -> float | None:
    """None when this attempt has saved nothing yet."""
    trial = get(state, Trial, allocation.trial_id)
    checkpoint = state.find(Checkpoint, trial.latest_checkpoint_id) if trial.latest_checkpoint_id else None
    if checkpoint is None or checkpoint.created_at < allocation.created_at:
        return None
    return max(0.0, now - checkpoint.created_at)


def _groups(state: State, experiment_ids: Iterable[int]) -> tuple[Group, ...]:
    groups = []
    for experiment_id in sorted(experiment_ids):
        facts = facts_of(get(state, Experiment, experiment_id).config_json)
        groups.append(Group(str(experiment_id), facts.max_slots, facts.weight, facts.priority or DEFAULT_PRIORITY))
    return tuple(groups)
