"""No experiment ever has more trials at a time, or holds more slots, than it may, on a whole cluster in memory.

The histories have several searches, lost agents, attempts that end late, restarts, pauses, changed caps, attempts on
fewer slots that grow back, changes of the leader, and plans that are older than the state. A cap that is lowered
below the held slots stops trials, which end later: until then an experiment may hold what it held, and takes no more.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import ExitKind, State
from services.scheduler.placement import PoolConfig, plan
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.end import activate_experiment, kill_experiment, kill_trial, pause_experiment
from services.scheduler.transition.exit import unended_agents
from services.scheduler.transition.submit_check import admit, submit_experiment
from tests.support.examples import examples
from tests.support.scheduler_model import RULES, FirstOf, Leader, Model

AGENTS = {"a1": 3, "a2": 2, "a3": 4}
pick = st.integers(0, 1 << 16)


@dataclass(frozen=True)
class Search:
    num_trials: int
    at_once: int
    slots: int
    max_slots: int | None
    is_elastic: bool = False
    priority: int | None = None

    @property
    def config(self) -> str:
        resources: dict[str, object] = {"slots_per_trial": self.slots, "max_slots": self.max_slots}
        if self.is_elastic and self.slots > 1:
            resources["min_slots_per_trial"] = 1
        if self.priority is not None:
            resources["priority"] = self.priority
        config = {
            "entrypoint": "python3 train.py",
            "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}},
            "searcher": {
                "name": "random",
                "metric": "loss",
                "max_trials": self.num_trials,
                "max_concurrent_trials": self.at_once,
            },
            "resources": resources,
            "max_restarts": 2,
        }
        return json.dumps(config)


@st.composite
def searches(draw: st.DrawFn) -> Search:
    slots = draw(st.integers(1, 4))
    max_slots = draw(st.none() | st.integers(slots, slots + 5))
    priority = draw(st.sampled_from([None, 10, 80]))
    return Search(draw(st.integers(1, 8)), draw(st.integers(0, 4)), slots, max_slots, draw(st.booleans()), priority)


SEARCHES = searches()


class SearchLimitsMachine(RuleBasedStateMachine):
    """most_slots: by experiment, the slots that it may hold until it is below its cap again."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.most_slots: dict[int, float] = {}

    @initialize(is_preemption_on=st.booleans())
    def first_work(self, is_preemption_on: bool) -> None:
        self.model = Model((PoolConfig("default", is_preemption_on=is_preemption_on),))
        for agent_id, slots in AGENTS.items():
            self.model.connect(agent_id, slots)
        self.submits(Search(6, 3, 1, 3))
        self.submits(Search(4, 2, 2, 4, is_elastic=True, priority=10))

    @precondition(lambda self: len(self.most_slots) < 4)
    @rule(search=SEARCHES)
    def submits(self, search: Search) -> None:
        number = len(self.most_slots) + 1
        fields = {"request_id": f"s{number}", "owner": "ann", "config_json": search.config, "code_sha256": "0"}
        submission, _ = admit(fields, self.model.pools, (), FirstOf())
        self.model.leader.commit(lambda records: submit_experiment(records, submission, RULES, self.model.now))
        self.most_slots[number] = self.cap(number)

    @rule(
        seconds=st.sampled_from([0.0, RULES.shrink_seconds, RULES.resize_seconds]),
        between=st.sampled_from(
            ["", "", "an agent is lost", "caps are lowered", "all are paused", "the leader changes"]
        ),
    )
    def cycle_runs(self, seconds: float, between: str) -> None:
        """between: what happens after the plan was made and before it is carried out."""
        self.model.pass_time(seconds)
        decided = plan(self.model.snapshot(), self.model.now)
        for number in self.most_slots if between in ("caps are lowered", "all are paused") else ():
            if between == "caps are lowered":
                self.cap_changes(number - 1, 1, True)
            else:
                self.user_speaks(number - 1, "pause", 0)
        if between == "an agent is lost" and self.model.connected:
            self.model.lose(min(self.model.connected))
        if between == "the leader changes":
            self.model.change_leader()
        for assignment in decided.assignments:
            self.model.place(assignment)
            self.nothing_is_beyond_its_limits()
        for preemption in decided.preemptions:
            if preemption.is_growth:
                self.model.grow(preemption.allocation_id)
            else:
                self.model.preempt(preemption.allocation_id, preemption.for_trial_id)

    @rule(agent_id=st.sampled_from(sorted(AGENTS)), is_lost=st.booleans())
    def agent_comes_or_goes(self, agent_id: str, is_lost: bool) -> None:
        if is_lost:
            self.model.lose(agent_id)
        else:
            self.model.connect(agent_id, AGENTS[agent_id])

    @precondition(lambda self: self.model.allocations())
    @rule(choice=pick)
    def attempt_comes_up(self, choice: int) -> None:
        allocation = self.choose(choice)
        self.model.come_up(allocation.id, 0)

    @precondition(lambda self: self.model.allocations())
    @rule(choice=pick, kind=st.sampled_from(list(ExitKind)), is_repeated=st.booleans(), is_lost=st.booleans())
    def attempt_ends(self, choice: int, kind: ExitKind, is_repeated: bool, is_lost: bool) -> None:
        """Every member ends. is_lost: a leader that dies has recorded the first end, and the next one hears all."""
        allocation = self.choose(choice)
        agent_ids = unended_agents(allocation)
        if is_lost:
            self.model.exit(allocation.id, agent_ids[0], kind, Leader(self.model.store))
            self.model.change_leader()
        for agent_id in agent_ids * (1 + is_repeated):
            self.model.exit(allocation.id, agent_id, kind)

    @rule(number=pick, word=st.sampled_from(["pause", "activate", "activate", "kill trial", "kill"]), choice=pick)
    def user_speaks(self, number: int, word: str, choice: int) -> None:
        experiment_id = number % len(self.most_slots) + 1
        experiment = self.experiment(experiment_id)
        commit, now = self.model.leader.commit, self.model.now
        if experiment.state in (State.TERMINAL, State.STOPPING):
            return
        match word:
            case "pause":
                commit(lambda records: pause_experiment(records, experiment_id, "paused", RULES, now))
            case "activate":
                commit(lambda records: activate_experiment(records, experiment_id, RULES, now))
            case "kill trial":
                trials = self.model.state.trials_of(experiment_id)
                trial_id = trials[choice % len(trials)].id
                commit(lambda records: kill_trial(records, trial_id, "killed", RULES, now))
            case "kill" if not choice % 5:
                commit(lambda records: kill_experiment(records, experiment_id, "killed", RULES, now))

    @rule(number=pick, slots=st.integers(0, 8), when_free=st.booleans())
    def cap_changes(self, number: int, slots: int, when_free: bool) -> None:
        experiment_id = number % len(self.most_slots) + 1
        experiment = self.experiment(experiment_id)
        if experiment.state in (State.TERMINAL, State.STOPPING):
            return
        wanted = slots and max(slots, settled_of(experiment.config_json).resources.slots_per_trial)
        fields = {"when_free": True} if when_free and wanted else {}
        self.model.update_resources(experiment_id, max_slots=wanted, **fields)
        self.most_slots[experiment_id] = max(self.cap(experiment_id), self.held()[experiment_id])

    @rule()
    def leader_continues(self) -> None:
        self.model.continue_change()

    @rule(seconds=st.sampled_from([0.5, 5.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.model.pass_time(seconds)

    @rule()
    def leader_changes(self) -> None:
        self.model.change_leader()

    def choose(self, choice: int) -> Allocation:
        allocations = self.model.allocations()
        return allocations[choice % len(allocations)]

    def experiment(self, experiment_id: int) -> Experiment:
        experiment = self.model.state.find(Experiment, experiment_id)
        assert experiment is not None
        return experiment

    def cap(self, experiment_id: int) -> float:
        return settled_of(self.experiment(experiment_id).config_json).resources.max_slots or float("inf")

    def held(self) -> Counter[int]:
        held: Counter[int] = Counter()
        for allocation in self.model.allocations():
            held[allocation.experiment_id] += allocation.num_slots
        return held

    @invariant()
    def nothing_is_beyond_its_limits(self) -> None:
        held = self.held()
        for experiment_id, most in self.most_slots.items():
            assert held[experiment_id] <= most
            self.most_slots[experiment_id] = max(self.cap(experiment_id), min(most, held[experiment_id]))
            searcher = json.loads(self.experiment(experiment_id).config_json)["searcher"]
            going_on = [
                trial for trial in self.model.state.trials_of(experiment_id) if trial.state is not State.TERMINAL
            ]
            assert len(going_on) <= (searcher["max_concurrent_trials"] or searcher["max_trials"])

    @invariant()
    def a_trial_has_one_attempt_and_a_slot_one_owner(self) -> None:
        """An attempt that still runs keeps its slots, so a superseded one holds back its trial's next attempt."""
        allocations = self.model.allocations()
        assert len({allocation.trial_id for allocation in allocations}) == len(allocations)
        slot_ids = [slot for allocation in allocations for member in allocation.members for slot in member.slot_ids]
        assert len(set(slot_ids)) == len(slot_ids)
        live = {allocation.trial_id for allocation in allocations}
        for trial in self.model.state.all_of(Trial):
            assert (trial.id in live) == (trial.state in (State.STARTING, State.STOPPING, State.RUNNING))


SearchLimitsMachine.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSearchLimits = SearchLimitsMachine.TestCase
