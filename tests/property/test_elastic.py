"""Trials that may go on on fewer slots, over any sequence of losses, ends, urgent work and changes of the leader: their
size is an allowed one and changes seldom, and no request with more right waits because of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gangline.config.elastic import sizes_of
from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import ExitKind, ReasonCode, State
from services.scheduler.placement import Plan, PoolConfig, Snapshot, plan
from services.scheduler.placement.request.order import by_priority
from services.scheduler.placement.simulation_file import dump_plan, dump_simulation, parse_simulation
from services.scheduler.state.records import get
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.exit import unended_agents
from tests.support.examples import examples
from tests.support.scheduler_model import RULES, Model

AGENTS = {"a1": 2, "a2": 2}
POOLS = [PoolConfig("default"), PoolConfig("default", policy="fair_share", is_preemption_on=True)]
# Codes of requests that would not get slots if work on fewer slots did not grow.
ELSEWHERE = (
    ReasonCode.AGENTS_UNHEALTHY,
    ReasonCode.AGENTS_DISABLED,
    ReasonCode.NEVER_FITS,
    ReasonCode.QUOTA_EXCEEDED,
    ReasonCode.PAUSED,
)
pick = st.integers(0, 1 << 16)


class ElasticMachine(RuleBasedStateMachine):
    """sizes: by trial, the size of its newest attempt. changed_at: by trial, when that differed from the one before it
    or when an attempt was stopped in order to grow."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.sizes: dict[str, tuple[int, int]] = {}
        self.changed_at: dict[str, float] = {}
        self.growing: set[str] = set()
        self.num_requests = 0

    @initialize(pool=st.sampled_from(POOLS))
    def first_work(self, pool: PoolConfig) -> None:
        self.model = Model((pool,))
        for agent_id, slots in AGENTS.items():
            self.model.connect(agent_id, slots)
        self.submit(4, True, None)

    @precondition(lambda self: self.num_requests < 5)
    @rule(slots=st.sampled_from([4, 2, 1]), is_elastic=st.booleans(), priority=st.sampled_from([None, 10, 80]))
    def submit(self, slots: int, is_elastic: bool, priority: int | None) -> None:
        self.num_requests += 1
        resources: dict[str, Any] = {} if priority is None else {"priority": priority}
        if is_elastic and slots > 1:
            resources["min_slots_per_trial"] = 1
        self.model.submit(f"r{self.num_requests}", slots, 1000, **resources)
        self.cycle()

    @rule(agent_id=st.sampled_from(sorted(AGENTS)), is_lost=st.booleans())
    def agent_comes_or_goes(self, agent_id: str, is_lost: bool) -> None:
        if is_lost:
            self.model.lose(agent_id)
        else:
            self.model.connect(agent_id, AGENTS[agent_id])
        self.obey()
        self.cycle()

    @rule(agent_id=st.sampled_from(sorted(AGENTS)), comes_back=st.booleans(), has_time_to_grow=st.booleans())
    def agent_is_away_for_long(self, agent_id: str, comes_back: bool, has_time_to_grow: bool) -> None:
        self.agent_comes_or_goes(agent_id, is_lost=True)
        self.time_passes(RULES.shrink_seconds)
        if comes_back:
            self.agent_comes_or_goes(agent_id, is_lost=False)
        if has_time_to_grow:
            self.time_passes(RULES.resize_seconds)

    @rule(choice=pick, kind=st.sampled_from([ExitKind.PREEMPTED, ExitKind.RUNNER_LOST, ExitKind.COMPLETED]))
    def work_ends(self, choice: int, kind: ExitKind) -> None:
        live = self.model.allocations()
        if live:
            self.end(live[choice % len(live)], kind)
            self.cycle()

    @rule()
    def obey(self) -> None:
        """All that was told to stop has stopped."""
        for allocation in self.model.allocations():
            if allocation.state is State.STOPPING:
                self.end(allocation, ExitKind.PREEMPTED)
        self.cycle()

    def end(self, allocation: Allocation, kind: ExitKind) -> None:
        for agent_id in unended_agents(allocation):
            self.model.exit(allocation.id, agent_id, kind)

    @rule(seconds=st.sampled_from([1.0, RULES.shrink_seconds, RULES.resize_seconds / 2, RULES.resize_seconds]))
    def time_passes(self, seconds: float) -> None:
        self.model.pass_time(seconds)
        self.cycle()

    @rule()
    def leader_changes(self) -> None:
        self.model.change_leader()

    @rule()
    def cycle(self) -> None:
        snapshot = self.model.snapshot()
        decided = plan(snapshot, self.model.now)
        self.check_rights(snapshot, decided)
        file = parse_simulation(_text(snapshot, self.model.now))
        again = dump_plan(plan(file.snapshot, file.now))
        assert again["to_allocate"] == dump_plan(decided)["to_allocate"]
        assert again["to_release"] == dump_plan(decided)["to_release"]
        self.model.cycle()
        self.note_changes()
        self.come_up()

    def check_rights(self, snapshot: Snapshot, decided: Plan) -> None:
        """Requests ahead of one that takes or asks for another size get what they would get without it."""
        place = {request.trial_id: by_priority(request) for request in snapshot.requests}
        wanted = {work.trial_id: work.wanted for work in snapshot.running if work.wanted is not None}
        grown = [preemption.for_trial_id for preemption in decided.preemptions if preemption.is_growth]
        shrunk = [assignment.trial_id for assignment in decided.assignments if assignment.shrink_reason]
        if self.model.pools[0].policy != "priority":
            assert not grown or all(reason.code in ELSEWHERE for reason in decided.reasons.values())
            return
        for trial_id in grown:
            full = wanted[trial_id]
            assert full is not None
            ahead = [waiting_id for waiting_id in decided.reasons if place[waiting_id] < by_priority(full)]
            assert all(decided.reasons[waiting_id].code in ELSEWHERE for waiting_id in ahead), (
                trial_id,
                decided.reasons,
            )
        rigid = plan(
            replace(snapshot, requests=tuple(replace(request, smaller_sizes=()) for request in snapshot.requests)),
            self.model.now,
        )
        for trial_id in sorted(shrunk, key=place.__getitem__)[:1]:
            first = {other_id for other_id in place if place[other_id] < place[trial_id]}
            before = {
                assignment.trial_id: assignment.slots_by_agent
                for assignment in rigid.assignments
                if assignment.trial_id in first
            }
            after = {
                assignment.trial_id: assignment.slots_by_agent
                for assignment in decided.assignments
                if assignment.trial_id in first
            }
            assert after == before

    def note_changes(self) -> None:
        now = self.model.now
        for allocation in self.model.allocations():
            sizes, size = self.sizes.get(allocation.trial_id), allocation.num_slots
            if sizes is not None and sizes[0] < allocation.attempt and sizes[1] != size:
                # An attempt that starts anyway may take all slots at any time, because nothing is stopped for them.
                self.note_change(allocation.trial_id, now, is_free=sizes[1] < size)
            self.sizes[allocation.trial_id] = (allocation.attempt, size)
            if allocation.grow_slots and allocation.id not in self.growing:
                self.growing.add(allocation.id)
                self.note_change(allocation.trial_id, now)

    def note_change(self, trial_id: str, now: float, *, is_free: bool = False) -> None:
        last = self.changed_at.get(trial_id)
        assert last is None or is_free or now - last >= RULES.resize_seconds, (trial_id, last, now)
        self.changed_at[trial_id] = now

    def come_up(self) -> None:
        for allocation in self.model.allocations():
            for member in allocation.members:
                if allocation.state is State.STARTING:
                    self.model.come_up(allocation.id, member.node_rank)

    @invariant()
    def a_trial_has_one_size_and_an_allowed_one(self) -> None:
        trials = [allocation.trial_id for allocation in self.model.allocations()]
        assert len(set(trials)) == len(trials)
        for allocation in self.model.allocations():
            settled = settled_of(get(self.model.state, Experiment, allocation.experiment_id).config_json)
            if allocation.full_slots:
                assert allocation.full_slots == settled.resources.slots_per_trial
                assert allocation.num_slots in sizes_of(settled)
                assert allocation.shrink_reason
                trial = get(self.model.state, Trial, allocation.trial_id)
                assert (
                    allocation.state is State.STOPPING or allocation.grow_at == trial.resized_at + RULES.resize_seconds
                )
            else:
                assert allocation.num_slots == settled.resources.slots_per_trial
            assert allocation.attempt > 1 or not allocation.full_slots, "a trial that never ran has its full size"


def _text(snapshot: Snapshot, now: float) -> str:

    return json.dumps(dump_simulation(snapshot, "default", now))


ElasticMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_elastic_trials = ElasticMachine.TestCase
