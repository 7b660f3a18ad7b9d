"""A search in memory: one experiment whose trials hold slots as soon as the rules allow, over the scheduler's real
transitions. There is always room: what keeps a trial from starting here is the experiment itself."""

from __future__ import annotations

import json

from gangline.domain.allocation import Allocation, ExitReport, Request, Timeline
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.resource import Agent, Slot
from gangline.domain.search import Search
from gangline.domain.state import ExitKind
from services.common.etcd import KeyValue, Put
from services.common.etcd.transaction import MAX_OPERATIONS
from services.scheduler.leader.planner_snapshot import take_snapshot
from services.scheduler.placement import Assignment, Plan, plan
from services.scheduler.searcher.interface import Brief
from services.scheduler.searcher.replay import keep_searcher, take_searcher
from services.scheduler.searcher.sampled import Sampled
from services.scheduler.searcher.study import Study, StudyRecord
from services.scheduler.state.codec import operations_of, record_of
from services.scheduler.state.records import SchedulerState, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.availability import registered
from services.scheduler.transition.end import continue_change
from services.scheduler.transition.exit import member_exited
from services.scheduler.transition.place import came_up, place
from services.scheduler.transition.search import Suggestions
from services.scheduler.transition.submit_check import AdmittedSubmission, submit_experiment

RULES = Rules()
LEARNING_RATE = {"type": "log", "minval": -4, "maxval": -1}


def config_of(searcher: dict[str, object], **fields: object) -> str:
    return json.dumps(
        {
            "entrypoint": "python3 t.py",
            "hyperparameters": {"lr": LEARNING_RATE, "net": {"depth": 3}},
            "max_restarts": 0,
            **fields,
            "searcher": {"metric": "loss", **searcher},
        }
    )


class SearchWorld:
    """records: the committed records. now: the time, which tests move."""

    def __init__(self, config: str, seed: int = 7) -> None:
        self.records = SchedulerState()
        self._study: Study | None = None
        self.now = 100.0
        agents = (Agent("a1", slots=tuple(Slot(f"a1/{number}") for number in range(64))),)
        for agent in agents:
            self.apply(registered(self.records, agent, RULES, self.now))
        submission = AdmittedSubmission("r", "ann", settled_of(config), config, "0", seed)
        self.apply(submit_experiment(self.records, submission, RULES, self.now))

    def apply(self, change: StateChange) -> StateChange:
        assert change.num_operations <= MAX_OPERATIONS, "etcd takes no more in one transaction"
        self.records.apply(change, self.records.revision + 1)
        return change

    def change_leader(self) -> None:
        """Drops all state that is not in etcd."""
        self._study = None
        change = StateChange(puts=tuple(record for table in self.records.tables.values() for record in table.values()))
        puts = [KeyValue(put.key, put.value, 0, 0) for put in operations_of(change) if isinstance(put, Put)]
        records = [record_of(item) for item in puts]
        self.records = SchedulerState.of((record for record in records if record is not None), self.records.revision)

    def continue_change(self) -> None:
        """Until everything is as it is wanted."""
        while self.apply(continue_change(self.records, 1, RULES, self.now, suggestions=self._suggestions())):
            pass

    def _suggestions(self) -> Suggestions:
        """As the leader makes them outside of transitions."""
        settled = settled_of(self.experiment.config_json)
        searcher = take_searcher(self.records, self.search, settled)
        keep_searcher(self.records, self.search, searcher)
        if not isinstance(searcher, Sampled):
            return {}
        self._study = self._study or Study(Brief(settled.searcher, settled.hyperparameters, self.search.seed))
        known = [json.loads(trial.hyperparameters_json) for trial in self.trials]
        return self._study.suggest(StudyRecord(known, searcher.told, searcher.num_told_by_number), 8)

    def place(self) -> list[str]:
        """Everything that is not held starts; their trials."""
        decided = self.plan()
        return [assignment.trial_id for assignment in decided.assignments if self.try_to_place(assignment.trial_id)]

    def plan(self) -> Plan:
        return plan(take_snapshot(self.records, (), {}, {}, now=self.now), self.now)

    def try_to_place(self, trial_id: str) -> StateChange:
        slots = {"a1": get(self.records, Request, trial_id).slots}
        return self.apply(place(self.records, Assignment(trial_id, slots), epoch=1, rules=RULES, now=self.now))

    def run(self, trial_id: str) -> None:
        seen = Timeline(ranks_up_at=self.now)
        allocation = self.live(trial_id)
        self.apply(came_up(self.records, allocation.id, seen, self.now))

    def exit(self, trial_id: str, kind: ExitKind) -> None:
        report = ExitReport("a1", kind, "as told", failed_at=self.now, ended_at=self.now)
        self.apply(member_exited(self.records, self.live(trial_id).id, report, RULES, self.now))

    def live(self, trial_id: str) -> Allocation:
        [allocation] = [allocation for allocation in self.records.all_of(Allocation) if allocation.trial_id == trial_id]
        return allocation

    @property
    def trials(self) -> list[Trial]:
        return self.records.trials_of(1)

    @property
    def live_trial_ids(self) -> list[str]:
        return sorted(allocation.trial_id for allocation in self.records.all_of(Allocation))

    @property
    def experiment(self) -> Experiment:
        return get(self.records, Experiment, 1)

    @property
    def search(self) -> Search:
        return get(self.records, Search, 1)
