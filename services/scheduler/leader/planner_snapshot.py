"""PURE: takes the planner's snapshot of the leader's state.

Slots are counted: an agent has its open slots (healthy and enabled) and, beside them, closed slots that a live
allocation still holds and that are not given out after it. Agents that cannot start anything now stay in the snapshot,
marked, because they count for the capacity of a pool. A user's change to an experiment counts at once, even where its
requests still have the old values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gangline.config.elastic import sizes_of
from gangline.domain.allocation import Allocation, Request
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.explanation import describe_exclusion, troubles_of
from gangline.domain.quota import Quota
from gangline.domain.resource import Agent
from gangline.domain.state import AgentState, Availability, ReasonCode
from gangline.domain.state import State as Stage
from services.scheduler.placement import AgentRoom, Group, PendingRequest, PoolConfig, Running, Snapshot
from services.scheduler.placement.request.queue import Queue
from services.scheduler.placement.request.snapshot import default_pool
from services.scheduler.rendezvous.network import gang_problems
from services.scheduler.state.estimate import Estimates, Progress
from services.scheduler.state.hold import is_held
from services.scheduler.state.quota import limit_of, quotas_of, subjects_of
from services.scheduler.state.records import SchedulerState, get
from services.scheduler.state.rules import DEFAULT_PRIORITY
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.exclusion import blocklist_of, holds
from services.scheduler.transition.queue_move import position_of
from services.scheduler.transition.size import is_growing

_SAID = {
    Availability.DRAINING: "drained by an administrator",
    Availability.DISABLED: "disabled by an administrator",
}


def take_snapshot(
    state: SchedulerState,
    pools: Iterable[PoolConfig],
    problem_by_agent: Mapping[str, str],
    progress_by_trial: Mapping[str, Progress],
    *,
    now: float,
    memory: SnapshotMemory | None = None,
    typical_run_seconds: Mapping[str, float] | None = None,
    has_gateway: bool = True,
    network_interface: str | None = None,
) -> Snapshot:
    """Returns the snapshot. network_interface: the one that all gangs over several agents use; None for any.
    problem_by_agent: agents that cannot start anything now, and why, beside the operators'
    settings. now: the time from which ages of checkpoints count. memory: of earlier snapshots of the same state and
    pools. typical_run_seconds: by pool, of ended trials. has_gateway: one is registered.
    """
    agents = tuple(state.all_of(Agent))
    known_pools = all_pools(pools, agents)
    look = _Look(
        state,
        Estimates(state, progress_by_trial),
        {pool.name: pool.default_priority for pool in known_pools},
        {agent.id: frozenset(slot.id for slot in agent.slots if slot.is_open) for agent in agents},
        now,
        memory or SnapshotMemory(),
        _gang_problems(agents, network_interface),
    )
    look.memory.note_gateway(has_gateway)
    look.memory.note_quotas(tuple(state.all_of(Quota)))
    look.refresh()
    running = tuple(look.running(allocation) for allocation in state.all_of(Allocation))
    return Snapshot(
        pools=known_pools,
        agents=tuple(look.room(agent, problem_by_agent.get(agent.id, "")) for agent in agents),
        requests=look.memory.queue.requests(),
        running=running,
        groups=look.memory.groups(),
        revision=state.revision,
        typical_run_seconds=typical_run_seconds or {},
        limits={quota.id: limit_of(state, quota, now) for quota in look.memory.quotas},
    )


def _gang_problems(agents: Iterable[Agent], interface: str | None) -> dict[str, str]:
    """Returns the agents that cannot be part of a gang over several agents, with the reason. A lost agent has a problem
    already, and its interfaces are those of another time."""
    agents_by_pool: dict[str, list[Agent]] = defaultdict(list)
    for agent in agents:
        if agent.state is AgentState.ALIVE:
            agents_by_pool[agent.pool].append(agent)
    problems: dict[str, str] = {}
    for pool_agents in agents_by_pool.values():
        problems |= gang_problems(pool_agents, interface)
    return problems


class SnapshotMemory:
    """Keeps the last snapshot's view of experiments that run or wait, and of their waiting trials. Only changed
    experiments are read again, so a cycle costs little for unchanged ones.

    num_changes: the state's count of changes up to which this memory is valid.
    """

    def __init__(self) -> None:
        self.num_changes = 0
        self.has_gateway = True
        self.quotas: tuple[Quota, ...] = ()
        self.queue = Queue()
        self._experiments: dict[int, _Known] = {}
        self._groups: dict[str, Group] = {}

    def note_gateway(self, has_gateway: bool) -> None:
        """Notes whether a gateway is registered. A change has everything read again: it is rare, and holds or releases
        requests."""
        if has_gateway != self.has_gateway:
            self.has_gateway, self.num_changes = has_gateway, 0

    def note_quotas(self, quotas: tuple[Quota, ...]) -> None:
        """Notes the quotas. If other users or workspaces have one, everything is read again, because requests and
        running work name those that count for them."""
        if quotas != self.quotas and {quota.id for quota in quotas} != {quota.id for quota in self.quotas}:
            self.num_changes = 0
        self.quotas = quotas

    def groups(self) -> dict[str, Group]:
        """Returns the groups of these experiments."""
        return dict(self._groups)

    def find(self, experiment_id: int) -> _Known | None:
        return self._experiments.get(experiment_id)

    def knows(self, experiment_id: int) -> bool:
        return experiment_id in self._experiments

    def learn(self, experiment_id: int, remembered: _Known) -> None:
        self._experiments[experiment_id] = remembered
        self._groups[remembered.group.id] = remembered.group

    def forget(self, experiment_id: int) -> None:
        remembered = self._experiments.pop(experiment_id, None)
        if remembered is not None:
            del self._groups[remembered.group.id]
            for request in remembered.waiting:
                self.queue.remove(request)


@dataclass(slots=True)
class _Known:
    """Holds one experiment."""

    record: Experiment
    group: Group
    is_preemptible: bool
    smaller_sizes: tuple[int, ...] = ()
    is_single_agent: bool = False
    limits: tuple[str, ...] = ()  # the quotas that count for it
    waiting: list[PendingRequest] = field(default_factory=list)  # requests of its waiting trials


def all_pools(configured: Iterable[PoolConfig], agents: Iterable[Agent]) -> tuple[PoolConfig, ...]:
    """Returns the pools of the settings, and those that only agents name, with the defaults."""
    pools = {pool.name: pool for pool in configured}
    for agent in agents:
        pools.setdefault(agent.pool, default_pool(agent.pool))
    return tuple(pools[name] for name in sorted(pools))


def group_of(experiment_id: int) -> str:
    """Returns the planner's name for the experiments' shared cap and weight; reasons contain it."""
    return f"experiment {experiment_id}"


@dataclass
class _Look:
    """Makes one pass over the records: changed experiments, then allocations, then agents and requests."""

    state: SchedulerState
    estimates: Estimates
    default_priorities: Mapping[str, int]
    open_ids: Mapping[str, frozenset[str]]  # open slots of each agent
    now: float
    memory: SnapshotMemory
    gang_problems: Mapping[str, str]
    used: Counter[str] = field(default_factory=Counter)  # open slots that live allocations hold, by agent
    closed: Counter[str] = field(default_factory=Counter)  # other slots that live allocations hold, by agent
    # places without slots that live allocations hold, by agent
    auxiliary: Counter[str] = field(default_factory=Counter)

    def refresh(self) -> None:
        """Brings the memory up to date."""
        changed = list(self.state.changed_since(self.memory.num_changes))
        self.memory.num_changes = self.state.num_changes
        for experiment_id in changed:
            self.memory.forget(experiment_id)
        for experiment_id in reversed(changed):
            trials = self.state.unended_trials_of(experiment_id)
            requests = [request for trial in trials if (request := self.state.find(Request, trial.id))]
            if requests:
                self._remember(requests, self._experiment(experiment_id))

    def running(self, allocation: Allocation) -> Running:
        remembered, trial = self._experiment(allocation.experiment_id), get(self.state, Trial, allocation.trial_id)
        is_stopping = allocation.state is Stage.STOPPING
        return Running(
            allocation_id=allocation.id,
            trial_id=allocation.trial_id,
            group=remembered.group.id,
            pool=allocation.pool,
            slots_by_agent={member.agent_id: len(member.slot_ids) for member in allocation.members},
            priority=remembered.group.priority,
            started_at=allocation.created_at,
            estimated_end_at=allocation.deadline_at if is_stopping else self.estimates.end_at(allocation),
            draining_by_agent=self._occupy(allocation),
            is_stopping=is_stopping,
            checkpoint_age_seconds=self._checkpoint_age(allocation, trial),
            queue_position=position_of(remembered.record),
            submitted_at=trial.created_at,
            is_on_call=allocation.is_on_call,
            wanted=self._wanted(allocation, remembered, trial),
            grow_at=allocation.grow_at,
            is_growing=is_stopping and is_growing(allocation),
            is_preemptible=remembered.is_preemptible,
            limits=remembered.limits,
        )

    def _wanted(self, allocation: Allocation, remembered: _Known, trial: Trial) -> PendingRequest | None:
        """Returns the request for the full size of an attempt on fewer slots, while it runs or is being stopped to
        grow.
        """
        if not allocation.full_slots or allocation.state is Stage.STARTING:
            return None
        exclusions = tuple(exclusion for exclusion in trial.exclusions if holds(self.state, exclusion, self.now))
        request = Request(
            trial_id=trial.id,
            experiment_id=trial.experiment_id,
            pool=allocation.pool,
            slots=allocation.full_slots,
            is_single_agent=remembered.is_single_agent,
            blocklist=blocklist_of(replace(trial, exclusions=exclusions)),
            submitted_at=trial.created_at,
            exclusions=exclusions,
        )
        return self._pending(request, remembered)

    def _remember(self, requests: Iterable[Request], remembered: _Known) -> None:
        remembered.waiting = [self._pending(request, remembered) for request in requests]
        for pending in remembered.waiting:
            self.memory.queue.add(pending)

    def _pending(self, request: Request, remembered: _Known) -> PendingRequest:
        return PendingRequest(
            trial_id=request.trial_id,
            group=remembered.group.id,
            pool=request.pool,
            slots=request.slots,
            priority=remembered.group.priority,
            queue_position=position_of(remembered.record),
            is_single_agent=request.is_single_agent,
            blocklist=request.blocklist,
            excluded=tuple((exclusion.agent_id, describe_exclusion(exclusion)) for exclusion in request.exclusions),
            submitted_at=request.submitted_at,
            not_before_at=request.not_before_at,
            estimated_seconds=self.estimates.waiting_seconds(request.trial_id),
            hold=self._hold_of(request, remembered.record),
            # A request without shrink_at has one size only, so requests that never ran stay of one kind.
            smaller_sizes=remembered.smaller_sizes if request.shrink_at else (),
            shrink_at=request.shrink_at,
            kept_slots=request.kept_slots,
            is_preemptible=remembered.is_preemptible,
            limits=remembered.limits,
        )

    def _hold_of(self, request: Request, experiment: Experiment) -> ReasonCode | None:
        """Returns what keeps the request from starting whatever room there is."""
        if is_held(experiment):
            return ReasonCode.PAUSED
        return ReasonCode.NO_GATEWAY if request.needs_gateway and not self.memory.has_gateway else None

    def room(self, agent: Agent, problem: str) -> AgentRoom:
        """Returns the agent's room. A slot that is busy but not open is not given out again; it may be one that the
        agent no longer has.
        """
        operator_problem = _SAID.get(agent.availability, "")
        problems = " and ".join(part for part in (operator_problem, problem, *troubles_of(agent, self.now)) if part)
        num_open, closed = len(self.open_ids[agent.id]), self.closed[agent.id]
        return AgentRoom(
            id=agent.id,
            pool=agent.pool,
            slots=num_open,
            used=self.used[agent.id],
            is_usable=not problems,
            problem=problems,
            used_zero_slot=self.auxiliary[agent.id],
            draining=closed,
            disabled=max(len(agent.slots) - num_open, closed),
            labels=agent.labels,
            switched_off=agent.availability.lower() if operator_problem and problems == operator_problem else "",
            switched_off_slots=sum(slot.is_healthy and not slot.is_open for slot in agent.slots),
            gang_problem=self.gang_problems.get(agent.id, ""),
        )

    def _occupy(self, allocation: Allocation) -> dict[str, int]:
        """Counts the slots of an allocation. Returns, by agent, those that are not given out after it."""
        closed_by_agent = {}
        for member in allocation.members:
            agent_id, slots = member.agent_id, len(member.slot_ids)
            used = len(self.open_ids.get(agent_id, frozenset()).intersection(member.slot_ids))
            self.used[agent_id] += used
            if slots == 0:
                self.auxiliary[agent_id] += 1
            elif used < slots:
                self.closed[agent_id] += slots - used
                closed_by_agent[agent_id] = slots - used
        return closed_by_agent

    def _experiment(self, experiment_id: int) -> _Known:
        remembered = self.memory.find(experiment_id)
        if remembered is None:
            remembered = self._read(experiment_id)
            self.memory.learn(experiment_id, remembered)
        return remembered

    def _read(self, experiment_id: int) -> _Known:
        experiment = get(self.state, Experiment, experiment_id)
        settled = settled_of(experiment.config_json)
        resources = settled.resources
        default = self.default_priorities.get(resources.pool_name, DEFAULT_PRIORITY)
        priority = resources.priority if resources.priority is not None else default
        group = Group(group_of(experiment_id), resources.max_slots, resources.weight, priority)
        limits: tuple[str, ...] = ()
        if self.memory.quotas:
            limits = tuple(quota.id for quota in quotas_of(self.state, subjects_of(self.state, experiment)))
        return _Known(experiment, group, resources.preemptible, sizes_of(settled), resources.is_single_node, limits)

    def _checkpoint_age(self, allocation: Allocation, trial: Trial) -> float | None:
        """Returns the age of this attempt's latest checkpoint; None when it has saved none yet."""
        checkpoint = self.state.find(Checkpoint, trial.latest_checkpoint_id) if trial.latest_checkpoint_id else None
        if checkpoint is None or checkpoint.created_at < allocation.created_at:
            return None
        return max(0.0, self.now - checkpoint.created_at)
