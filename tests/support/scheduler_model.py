"""A whole cluster in memory, driven by the scheduler's real transitions, planner and codec: what is committed lies as
bytes in a stand-in for etcd that knows one thing, the leader's fencing token. Used by tests/property and tests/unit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from gangline.domain.allocation import Allocation, ExitReport, Request, Timeline
from gangline.domain.experiment import Experiment, QueueMove, ResourceChange
from gangline.domain.resource import Agent, Slot
from gangline.domain.state import Availability, ExitKind
from gangline.protocol import wire
from services.common.etcd import Delete, KeyValue, Put
from services.scheduler.leader.planner_snapshot import SnapshotMemory, take_snapshot
from services.scheduler.placement import Assignment, Plan, PoolConfig, Snapshot, plan
from services.scheduler.placement.request.order import by_priority
from services.scheduler.state.codec import operations_of, record_of
from services.scheduler.state.records import Draft, Record, Records, SchedulerState, StateChange
from services.scheduler.state.rules import Rules
from services.scheduler.transition.availability import (
    clear,
    lost,
    registered,
    slots_changed,
    unended_on,
    update_availability,
)
from services.scheduler.transition.deadline import expired, overdue
from services.scheduler.transition.end import continue_change
from services.scheduler.transition.exit import member_exited
from services.scheduler.transition.place import came_up, place
from services.scheduler.transition.queue_move import move_experiment, update_resources
from services.scheduler.transition.size import grow
from services.scheduler.transition.stop import StopOrder, stop
from services.scheduler.transition.submit_check import admit, submit_experiment

POOLS = (PoolConfig("default"),)
RULES = Rules(accept_seconds=10, rendezvous_seconds=20, start_seconds=30, force_seconds=10)


class FirstOf:
    """Stands in for a random number generator: the sequence is hypothesis' business."""

    def randint(self, a: int, _b: int, /) -> int:
        return a

    def uniform(self, a: float, _b: float, /) -> float:
        return a

    def choice(self, seq: object, /) -> object:
        return seq[0]  # type: ignore[index]  # any sequence


class Refused(Exception):
    """The fencing token was not the holder's."""


class FencedStore:
    """Keys and values, written only with the present epoch."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.epoch = 1

    def commit(self, epoch: int, change: StateChange) -> None:
        if epoch != self.epoch:
            raise Refused
        for operation in operations_of(change):
            match operation:
                case Put():
                    self.values[operation.key] = operation.value
                case Delete():
                    self.values.pop(operation.key, None)

    def load(self) -> SchedulerState:
        records = (record_of(KeyValue(key, value, 0, 0)) for key, value in self.values.items())
        return SchedulerState.of(record for record in records if record is not None)


class Leader:
    """One scheduler's memory, and its epoch."""

    def __init__(self, store: FencedStore) -> None:
        self.store = store
        self.epoch = store.epoch
        self.state = store.load()
        self.seen = SnapshotMemory()

    def commit(self, transition: Callable[[Records], StateChange]) -> StateChange:
        """As the real store does: computed on a draft, memory follows only what was accepted."""
        draft = Draft(self.state)
        draft.add(transition(draft))
        if draft.change:
            self.store.commit(self.epoch, draft.change)
            self.state.apply(draft.change, self.state.revision + 1)
        return draft.change


class Model:
    """leader: who holds the key now. connected: agents with a stream. agents: as each describes itself. acknowledged:
    request id -> the experiment that was answered with."""

    def __init__(self, pools: tuple[PoolConfig, ...] = POOLS) -> None:
        self.pools = pools
        self.store = FencedStore()
        self.leader = Leader(self.store)
        self.now = 1000.0
        self.connected: set[str] = set()
        self.agents: dict[str, Agent] = {}
        self.acknowledged: dict[str, int] = {}

    @property
    def state(self) -> SchedulerState:
        return self.leader.state

    def connect(self, agent_id: str, slots: int, pool: str = "default") -> None:
        """Its hello; what ran there goes on where the slots are still there."""
        agent = Agent(agent_id, pool=pool, slots=tuple(Slot(f"{agent_id}/{number}") for number in range(slots)))
        self._greet(agent)

    def sicken(self, agent_id: str, number: int) -> None:
        """One slot of a connected agent turns unhealthy, or well again; told while it is connected."""
        agent = self.agents[agent_id]
        if number >= len(agent.slots):
            return
        slots = [replace(s, is_healthy=not s.is_healthy) if i == number else s for i, s in enumerate(agent.slots)]
        self.agents[agent_id] = replace(agent, slots=tuple(slots))
        self.leader.commit(lambda records: slots_changed(records, agent_id, slots, RULES, self.now))

    def _greet(self, agent: Agent) -> None:
        self.agents[agent.id] = agent
        self.leader.commit(lambda records: registered(records, agent, RULES, self.now))
        self.connected.add(agent.id)

    def lose_slot(self, agent_id: str, slot_id: str, is_told_on_stream: bool) -> None:
        """The agent has it no more; it says so with its next hello, or over its stream."""
        agent = self.agents[agent_id]
        slots = tuple(slot for slot in agent.slots if slot.id != slot_id)
        if is_told_on_stream:
            self.agents[agent_id] = replace(agent, slots=slots)
            self.leader.commit(lambda records: slots_changed(records, agent_id, slots, RULES, self.now))
        else:
            self._greet(replace(agent, slots=slots))

    def lose(self, agent_id: str) -> None:
        self.connected.discard(agent_id)
        self.leader.commit(lambda records: lost(records, agent_id, self.now))
        for allocation in unended_on(self.state, agent_id):
            self.exit(allocation.id, agent_id, ExitKind.AGENT_LOST)

    def submit(
        self, request_id: str, slots: int = 1, max_restarts: int = 5, *, owner: str = "ann", **resources: object
    ) -> int:
        """The experiment's id. resources: more of that section."""
        config = {
            "entrypoint": "python3 train.py",
            "searcher": {"name": "single", "metric": "loss"},
            "resources": {"slots_per_trial": slots, **resources},
            "max_restarts": max_restarts,
        }
        fields = {"request_id": request_id, "owner": owner, "config_json": json.dumps(config), "code_sha256": "0"}
        submission, _ = admit(fields, self.pools, (), FirstOf())
        self.leader.commit(lambda records: submit_experiment(records, submission, RULES, self.now))
        experiment = self.state.experiment_of_request(request_id)
        assert experiment is not None
        assert self.acknowledged.setdefault(request_id, experiment.id) == experiment.id
        return experiment.id

    def change_agent(self, agent_id: str, availability: Availability, *slot_ids: str) -> StateChange:
        return self.leader.commit(
            lambda records: update_availability(records, agent_id, slot_ids, availability, rules=RULES, now=self.now)
        )

    def update_resources(self, experiment_id: int, **fields: float) -> StateChange:
        change = ResourceChange(**fields)  # type: ignore[arg-type]  # a test names what it gives
        return self.leader.commit(
            lambda records: update_resources(records, experiment_id, change, rules=RULES, now=self.now)
        )

    def move(self, experiment_id: int, anchor_id: int, is_behind: bool = False) -> StateChange:
        policies = {pool.name: pool.policy for pool in self.pools}
        move = QueueMove(anchor_id, is_behind)
        return self.leader.commit(
            lambda records: move_experiment(
                records, experiment_id, move, policy_by_pool=policies, rules=RULES, now=self.now
            )
        )

    def snapshot(self) -> Snapshot:
        away = {agent.id: "away" for agent in self.state.all_of(Agent) if agent.id not in self.connected}
        snapshot = take_snapshot(self.state, self.pools, away, {}, now=self.now, memory=self.leader.seen)
        anew = take_snapshot(self.state, self.pools, away, {}, now=self.now)
        assert _in_one_order(snapshot) == _in_one_order(anew), "what is remembered is outdated"
        return snapshot

    def plan(self) -> Plan:
        return plan(self.snapshot(), self.now)

    def cycle(self) -> Plan:
        """Applies a plan: assignments are placed, and preempted work is told to stop."""
        decided = self.plan()
        for assignment in decided.assignments:
            self.place(assignment)
        for preemption in decided.preemptions:
            if preemption.is_growth:
                self.grow(preemption.allocation_id)
            else:
                self.preempt(preemption.allocation_id, preemption.for_trial_id)
        return decided

    def grow(self, allocation_id: str) -> StateChange:
        return self.leader.commit(lambda records: grow(records, allocation_id, RULES, self.now))

    def come_up(self, allocation_id: str, node_rank: int) -> StateChange:
        """The ranks of one member."""
        seen = Timeline(ranks_up_at=self.now)
        return self.leader.commit(lambda records: came_up(records, allocation_id, seen, self.now))

    def preempt(self, allocation_id: str, for_trial_id: str) -> None:
        order = StopOrder(ExitKind.PREEMPTED, f"makes room for trial {for_trial_id}", self.now + 60)
        self.leader.commit(lambda records: stop(records, allocation_id, order, self.now))

    def continue_change(self) -> None:
        """Continues work that does not fit into one transaction until nothing changes."""
        for experiment in self.experiments():
            while self.leader.commit(_continuation(experiment.id, self.now)):
                pass
        for agent in list(self.state.all_of(Agent)):
            while self.leader.commit(_clearance(agent.id, self.now)):
                pass

    def place(self, assignment: Assignment) -> StateChange:
        return self.leader.commit(
            lambda records: place(records, assignment, epoch=self.leader.epoch, rules=RULES, now=self.now)
        )

    def exit(self, allocation_id: str, agent_id: str, kind: ExitKind, leader: Leader | None = None) -> None:
        """leader: who takes it in, if it is not the present one's memory."""
        report = ExitReport(agent_id, kind, "as told", failed_at=self.now, ended_at=self.now)
        (leader or self.leader).commit(lambda records: member_exited(records, allocation_id, report, RULES, self.now))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for allocation_id in overdue(self.state.all_of(Allocation), self.now):
            self.leader.commit(_expiry(allocation_id, self.now))

    def change_leader(self) -> None:
        self.store.epoch += 1
        self.leader = Leader(self.store)

    def allocations(self) -> list[Allocation]:
        return sorted(self.state.all_of(Allocation), key=lambda allocation: allocation.id)

    def requests(self) -> list[Request]:
        return list(self.state.all_of(Request))

    def experiments(self) -> list[Experiment]:
        return list(self.state.all_of(Experiment))

    def committed(self) -> dict[str, bytes]:
        return dict(self.store.values)


def encoded(record: Record) -> bytes:
    return wire.encode(record)


def _continuation(experiment_id: int, now: float) -> Callable[[Records], StateChange]:
    return lambda records: continue_change(records, experiment_id, RULES, now)


def _clearance(agent_id: str, now: float) -> Callable[[Records], StateChange]:
    return lambda records: clear(records, agent_id, RULES, now)


def _expiry(allocation_id: str, now: float) -> Callable[[Records], StateChange]:
    return lambda records: expired(records, allocation_id, frozenset(), frozenset(), rules=RULES, now=now)


def _in_one_order(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, requests=tuple(sorted(snapshot.requests, key=by_priority)))
