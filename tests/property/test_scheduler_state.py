"""The invariants of the scheduler's state over any sequence of submits, finishes, failures, lost agents, words of
operators, live changes, changes of the leader and lost commits. Each invariant carries the number that docs and fault
tests know it by."""

from __future__ import annotations

import json
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gangline.domain.allocation import Allocation, Timeline
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.resource import Agent
from gangline.domain.state import AgentState, Availability, CheckpointState, ExitKind, State
from gangline.errors import GanglineError
from services.scheduler.placement import Plan, PoolConfig, Snapshot, plan
from services.scheduler.placement.simulation_file import dump_plan, dump_simulation, parse_simulation
from services.scheduler.state.records import StateChange, get
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.checkpoint import confirm_checkpoints_deleted
from services.scheduler.transition.end import kill_experiment
from services.scheduler.transition.exit import unended_agents
from services.scheduler.transition.place import accepted, came_up
from services.scheduler.transition.queue_move import position_of
from services.scheduler.transition.report import checkpointed
from services.scheduler.transition.request import priority_of
from services.scheduler.transition.stop import StopOrder, stop
from tests.support.examples import examples
from tests.support.scheduler_model import RULES, Leader, Model, Refused, encoded

AGENTS = {"a1": 2, "a2": 2, "a3": 2, "a4": 3}
AGENT_EVENTS = ["connects", "connects", "is lost", "loses its stream", "has a slot turn"]
START_EVENTS = ["is accepted", "comes up", "is preempted", "completes"]
TELLINGS = ["once", "twice", "not heard by a leader that dies", "applied by a leader that dies"]
WAITING = (State.STARTING, State.STOPPING)
OVER = (State.TERMINAL, State.STOPPING)
SLOTS = st.sampled_from([4, 2, 6, 1, 4, 8])
POOLS = (PoolConfig("default", is_preemption_on=True),)
PRIORITIES = st.sampled_from([None, None, 42, 10, 80])
pick = st.integers(min_value=0, max_value=1 << 16)


class SchedulerMachine(RuleBasedStateMachine):
    """Every rule is something that may happen at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(POOLS)
        self.ended: dict[str | int, bytes] = {}
        self.said: dict[str, dict[str, Availability]] = {}

    @initialize(sizes=st.lists(SLOTS, min_size=1, max_size=4))
    def first_agents_and_work(self, sizes: list[int]) -> None:
        """Enough for gangs over several agents from the first step on."""
        for agent_id in ("a1", "a2", "a3"):
            self.model.connect(agent_id, AGENTS[agent_id])
        for number, slots in enumerate(sizes):
            self.model.submit(f"r{number}", slots)
        self.model.cycle()

    @rule(agent_id=st.sampled_from(sorted(AGENTS)), event=st.sampled_from(AGENT_EVENTS), number=st.integers(0, 1))
    def agent_event(self, agent_id: str, event: str, number: int) -> None:
        match event:
            case "connects":
                self.model.connect(agent_id, AGENTS[agent_id])
            case "is lost":
                self.model.lose(agent_id)
            case "loses its stream":
                self.model.connected.discard(agent_id)
            case "has a slot turn" if agent_id in self.model.connected:
                self.model.sicken(agent_id, number)

    @precondition(lambda self: self.model.allocations())
    @rule(choice=pick, number=st.integers(0, 1), is_told_on_stream=st.booleans())
    def held_slot_vanishes(self, choice: int, number: int, is_told_on_stream: bool) -> None:
        """An agent says hello without a slot that it has work on, or misses it while it is connected."""
        allocation = self.choose(choice)
        member = allocation.members[choice % len(allocation.members)]
        gone = member.slot_ids[number % len(member.slot_ids)]
        self.model.lose_slot(member.agent_id, gone, is_told_on_stream and member.agent_id in self.model.connected)
        if member.agent_id not in unended_agents(allocation):
            return
        updated = get(self.model.state, Allocation, allocation.id)
        assert updated.state is State.STOPPING
        if allocation.state is not State.STOPPING:
            assert updated.failure is not None
            assert (updated.failure.agent_id, updated.stop_kind) == (member.agent_id, ExitKind.KILLED)
            assert gone in updated.stop_reason

    @precondition(lambda self: self.model.agents)
    @rule(choice=pick, availability=st.sampled_from(list(Availability)), number=st.none() | st.integers(0, 2))
    def operator_speaks(self, choice: int, availability: Availability, number: int | None) -> None:
        """Changes an agent, preferably one with work, or a slot. Neither a repetition nor a hello changes it."""
        busy = sorted({member.agent_id for allocation in self.model.allocations() for member in allocation.members})
        agents = busy or sorted(self.model.agents)
        agent_id = agents[choice % len(agents)]
        slot_ids = [] if number is None else [f"{agent_id}/{number}"]
        agent = get(self.model.state, Agent, agent_id)
        if slot_ids and slot_ids[0] not in {slot.id for slot in agent.known_slots}:
            with pytest.raises(GanglineError, match="has no slot"):
                self.model.change_agent(agent_id, availability, *slot_ids)
            return
        self.model.change_agent(agent_id, availability, *slot_ids)
        assert not self.model.change_agent(agent_id, availability, *slot_ids)
        self.said.setdefault(agent_id, {}).update(dict.fromkeys(slot_ids or [agent_id], availability))
        availabilities = _availabilities(get(self.model.state, Agent, agent_id))
        if agent_id in self.model.connected:
            self.model.connect(agent_id, AGENTS[agent_id])
            assert availabilities.items() <= _availabilities(get(self.model.state, Agent, agent_id)).items()

    @precondition(lambda self: self.model.experiments())
    @rule(
        choice=pick,
        change=st.fixed_dictionaries(
            {}, optional={"priority": st.integers(1, 99), "weight": st.integers(0, 2), "max_slots": st.integers(0, 9)}
        ).filter(bool),
    )
    def resources_change(self, choice: int, change: dict[str, float]) -> None:
        experiment = self.choose_experiment(choice)
        slots = settled_of(experiment.config_json).resources.slots_per_trial
        is_refused = 0 < change.get("max_slots", 0) < slots or experiment.state in OVER
        if is_refused:
            with pytest.raises(GanglineError):
                self.model.update_resources(experiment.id, **change)
            return
        self.model.update_resources(experiment.id, **change)
        assert not self.model.update_resources(experiment.id, **change)
        settled = settled_of(get(self.model.state, Experiment, experiment.id).config_json)
        assert settled.resources.priority == change.get("priority", settled.resources.priority)
        assert settled.resources.max_slots == (change.get("max_slots", settled.resources.max_slots) or None)

    @precondition(lambda self: len(self.model.experiments()) > 1)
    @rule(choice=pick, anchor_choice=pick, is_behind=st.booleans())
    def experiment_moves(self, choice: int, anchor_choice: int, is_behind: bool) -> None:
        """Moves an experiment. No other of its priority is then between the two, and the others keep their order."""
        experiment, anchor = self.choose_experiment(choice), self.choose_experiment(anchor_choice)
        if experiment.id == anchor.id or experiment.state in OVER or anchor.state in OVER:
            with pytest.raises(GanglineError):
                self.model.move(experiment.id, anchor.id, is_behind)
            return
        before = [experiment_id for experiment_id in self.queue_of(anchor.id) if experiment_id != experiment.id]
        self.model.move(experiment.id, anchor.id, is_behind)
        before.insert(before.index(anchor.id) + is_behind, experiment.id)
        assert self.queue_of(anchor.id) == before
        assert not self.model.move(experiment.id, anchor.id, is_behind)

    @rule(
        number=st.integers(0, 30),
        slots=SLOTS,
        restarts=st.integers(0, 2),
        is_single_node=st.sampled_from([False, False, False, True]),
        priority=PRIORITIES,
    )
    def submits(self, number: int, slots: int, restarts: int, is_single_node: bool, priority: int | None) -> None:
        """The loop wakes at once."""
        self.model.submit(f"r{number}", slots, restarts, is_single_node=is_single_node, priority=priority)
        self.cycle_runs(is_stale=False)

    @rule(is_stale=st.booleans())
    def cycle_runs(self, is_stale: bool) -> None:
        """is_stale: the state moves between plan and commit."""
        snapshot = self.model.snapshot()
        decided = plan(snapshot, self.model.now)
        self.check_dump(snapshot, decided)
        self.check_reasons(decided.reasons.keys() | {assignment.trial_id for assignment in decided.assignments})
        for reason in decided.reasons.values():
            assert reason.message
            assert reason.would_start_if
        if is_stale and self.model.connected:
            self.model.lose(min(self.model.connected))
        placed = [self.model.place(assignment) for assignment in decided.assignments]
        assert is_stale or all(placed), "what the planner assigns on a fresh snapshot can be placed"
        for change in placed:
            for allocation in change.all_of(Allocation):
                self.check_is_open(allocation)
        for preemption in decided.preemptions:
            self.model.preempt(preemption.allocation_id, preemption.for_trial_id)

    def check_dump(self, snapshot: Snapshot, decided: Plan) -> None:
        """Plans the running scheduler's dump: the plan is the same, down to the words."""
        text = json.dumps(dump_simulation(snapshot, "default", self.model.now))
        again = parse_simulation(text)
        assert dump_plan(plan(again.snapshot, again.now)) == dump_plan(decided)

    def check_is_open(self, allocation: Allocation) -> None:
        """Nothing starts on what is unhealthy, drained or disabled."""
        for member in allocation.members:
            agent = get(self.model.state, Agent, member.agent_id)
            open_ids = {slot.id for slot in agent.slots if slot.is_open}
            assert agent.availability is Availability.ENABLED
            assert open_ids.issuperset(member.slot_ids)

    def check_reasons(self, answered: set[str]) -> None:
        """I8: every pending request is assigned or has a reason."""
        assert {request.trial_id for request in self.model.requests()} == answered

    @precondition(lambda self: self.model.allocations())
    @rule(choice=pick, event=st.sampled_from(START_EVENTS))
    def gang_moves_on(self, choice: int, event: str) -> None:
        allocation, now, commit = self.choose(choice), self.model.now, self.model.leader.commit
        match event:
            case "is accepted":
                commit(lambda records: accepted(records, allocation.id, now, RULES, now))
            case "comes up":
                seen = Timeline(runner_up_at=now, ranks_up_at=now)
                commit(lambda records: came_up(records, allocation.id, seen, now))
            case "is preempted":
                order = StopOrder(ExitKind.PREEMPTED, "makes room", now + 30)
                commit(lambda records: stop(records, allocation.id, order, now))
            case "completes":
                for agent_id in unended_agents(allocation):
                    self.model.exit(allocation.id, agent_id, ExitKind.COMPLETED)

    @precondition(lambda self: self.model.allocations())
    @rule(choice=pick, kind=st.sampled_from(list(ExitKind)), telling=st.sampled_from(TELLINGS))
    def member_ends(self, choice: int, kind: ExitKind, telling: str) -> None:
        """Reports the end to each leader until it is recorded. A commit may be lost together with its leader,
        and the next leader finds it whole or not at all."""
        allocation = self.choose(choice)
        agents = unended_agents(allocation)
        agent_id = agents[choice % len(agents)]
        if telling == "applied by a leader that dies":
            self.model.exit(allocation.id, agent_id, kind, Leader(self.model.store))
        if telling.endswith("dies"):
            self.model.change_leader()
        for _ in range(1 + (telling == "twice")):
            self.model.exit(allocation.id, agent_id, kind)

    @precondition(lambda self: self.model.experiments())
    @rule(choice=pick, batches=st.integers(0, 50), is_killed=st.booleans())
    def experiment_event(self, choice: int, batches: int, is_killed: bool) -> None:
        """A kill, or a report of a checkpoint; both may come when it has ended."""
        experiments = self.model.experiments()
        experiment_id, now = experiments[choice % len(experiments)].id, self.model.now
        if is_killed:
            self.model.leader.commit(lambda records: kill_experiment(records, experiment_id, "killed", RULES, now))
        else:
            checkpoint = Checkpoint(f"c{choice}", f"{experiment_id}.1", experiment_id, batches, "/x")
            self.model.leader.commit(lambda records: checkpointed(records, checkpoint))

    @rule()
    def gateway_deletes(self) -> None:
        """All that is marked; told to a leader that may have changed since."""
        marked = [
            checkpoint.id
            for checkpoint in self.model.state.all_of(Checkpoint)
            if checkpoint.state is CheckpointState.DELETING
        ]
        self.model.leader.commit(lambda records: confirm_checkpoints_deleted(records, marked))

    @rule(seconds=st.sampled_from([0.5, 5.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.model.pass_time(seconds)

    @rule()
    def leader_changes(self) -> None:
        """I4: whatever the deposed one still decides, the store stays as it is, and so does its own memory."""
        deposed = self.model.leader
        self.model.change_leader()
        before = self.model.committed()
        with pytest.raises(Refused):
            deposed.commit(lambda _: StateChange(puts=(Agent("ghost"),)))
        assert deposed.state.find(Agent, "ghost") is None
        assert self.model.committed() == before

    def choose(self, choice: int) -> Allocation:
        allocations = self.model.allocations()
        return allocations[choice % len(allocations)]

    def choose_experiment(self, choice: int) -> Experiment:
        experiments = self.model.experiments()
        return experiments[choice % len(experiments)]

    def queue_of(self, experiment_id: int) -> list[int]:
        """The experiments of its priority that go on, as the planner looks at them."""
        priority = self.priority_of(get(self.model.state, Experiment, experiment_id))
        going_on = (experiment for experiment in self.model.experiments() if experiment.state is not State.TERMINAL)
        queue = [experiment for experiment in going_on if self.priority_of(experiment) == priority]
        return [
            experiment.id
            for experiment in sorted(
                queue, key=lambda experiment: (position_of(experiment), experiment.created_at, experiment.id)
            )
        ]

    def priority_of(self, experiment: Experiment) -> int:
        return priority_of(settled_of(experiment.config_json), RULES)

    @invariant()
    def nothing_stays_where_it_may_not(self) -> None:
        """Neither on what an operator has disabled nor on slots that the agent does not have any more."""
        for allocation in self.model.allocations():
            if allocation.state is State.STOPPING:
                continue
            for member in allocation.members:
                agent = get(self.model.state, Agent, member.agent_id)
                if agent.id in unended_agents(allocation):
                    assert agent.availability is not Availability.DISABLED
                    slots = {slot.id: slot.availability for slot in agent.slots}
                    assert all(slots[slot_id] is not Availability.DISABLED for slot_id in member.slot_ids)

    @invariant()
    def what_an_operator_has_said_holds_until_it_is_taken_back(self) -> None:
        """Also of a slot that its agent does not have now."""
        for agent_id, availabilities in self.said.items():
            kept = {key: word for key, word in availabilities.items() if word is not Availability.ENABLED}
            assert kept.items() <= _availabilities(get(self.model.state, Agent, agent_id)).items()

    @invariant()
    def requests_show_what_their_experiment_says(self) -> None:
        for request in self.model.requests():
            experiment = get(self.model.state, Experiment, request.experiment_id)
            assert request.priority == self.priority_of(experiment)

    @invariant()
    def no_slot_in_two_live_allocations(self) -> None:
        """I1."""
        count_by_slot = Counter(
            slot for allocation in self.model.allocations() for member in allocation.members for slot in member.slot_ids
        )
        assert all(count == 1 for count in count_by_slot.values()), count_by_slot

    @invariant()
    def a_gang_holds_all_of_its_slots_or_none(self) -> None:
        """I2."""
        for allocation in self.model.allocations():
            experiment = self.model.state.find(Experiment, allocation.experiment_id)
            assert experiment is not None
            assert allocation.num_slots == settled_of(experiment.config_json).resources.slots_per_trial
            assert len({member.agent_id for member in allocation.members}) == len(allocation.members)
            assert len({report.agent_id for report in allocation.exits}) == len(allocation.exits)
            assert [member.node_rank for member in allocation.members] == list(range(len(allocation.members)))

    @invariant()
    def terminal_stays_terminal(self) -> None:
        """I3: not one byte of an ended record changes."""
        records: list[Trial | Experiment] = [*self.model.state.all_of(Trial), *self.model.state.all_of(Experiment)]
        ended = {record.id: record for record in records if record.state is State.TERMINAL}
        for record_id, before in self.ended.items():
            assert encoded(ended[record_id]) == before
        for record_id, record in ended.items():
            assert record.outcome is not None
            assert record.ended_at > 0
            self.ended.setdefault(record_id, encoded(record))

    @invariant()
    def what_is_gone_on_from_stays(self) -> None:
        """I6, as far as the scheduler can hold it: nothing is marked that a trial or its live allocation names."""
        named = [allocation.checkpoint_id for allocation in self.model.allocations()]
        going_on = (trial for trial in self.model.state.all_of(Trial) if trial.state is not State.TERMINAL)
        for checkpoint_id in filter(None, [*named, *(trial.latest_checkpoint_id for trial in going_on)]):
            assert get(self.model.state, Checkpoint, checkpoint_id).state is CheckpointState.COMPLETED

    @invariant()
    def what_is_acknowledged_is_there(self) -> None:
        """I5, and that one request makes one experiment."""
        for request_id, experiment_id in self.model.acknowledged.items():
            experiment = self.model.state.experiment_of_request(request_id)
            assert experiment is not None
            assert experiment.id == experiment_id
        assert len(self.model.experiments()) == len(self.model.acknowledged)

    @invariant()
    def memory_shows_what_is_committed(self) -> None:
        assert self.model.store.load().tables == self.model.state.tables

    @invariant()
    def a_trial_waits_or_holds_slots_or_has_ended(self) -> None:
        """Every state that waits for an event also has a deadline."""
        waiting = {request.trial_id for request in self.model.requests()}
        live = {allocation.trial_id: allocation for allocation in self.model.allocations()}
        for trial in self.model.state.all_of(Trial):
            assert (trial.state is State.QUEUED) == (trial.id in waiting)
            assert (trial.id in live) == (trial.state in (*WAITING, State.RUNNING))
            if trial.id in live:
                assert live[trial.id].state is trial.state
        for allocation in live.values():
            assert unended_agents(allocation)
            assert (allocation.deadline_at > 0) == (allocation.state in WAITING)

    @invariant()
    def nothing_waits_for_a_lost_agent(self) -> None:
        away = {agent.id for agent in self.model.state.all_of(Agent) if agent.state is AgentState.LOST}
        for allocation in self.model.allocations():
            assert not away.intersection(unended_agents(allocation))


def _availabilities(agent: Agent) -> dict[str, Availability]:
    return {agent.id: agent.availability, **{slot.id: slot.availability for slot in agent.known_slots}}


SchedulerMachine.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSchedulerState = SchedulerMachine.TestCase
