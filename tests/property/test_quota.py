"""The invariants of the scheduler's state with quotas that change at any time: nothing new starts beyond a quota, and
the slot-hours of ended work are counted exactly, over changes of the leader and lost commits."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, invariant, rule

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Experiment
from gangline.domain.quota import Quota, QuotaChange, SlotUse, user_subject, workspace_subject
from gangline.domain.user import CLUSTER_NAME, User
from services.scheduler.placement.request.assignment import Assignment
from services.scheduler.state.records import StateChange, get
from services.scheduler.transition.project.rule import Caller
from services.scheduler.transition.quota_change import set_quota
from tests.property.test_scheduler_state import AGENTS, SLOTS, SchedulerMachine
from tests.support.examples import examples

OWNERS = ("ann", "bob")
WORKSPACE = "Uncategorized"
SUBJECTS = st.sampled_from([("user", "ann"), ("user", "bob"), ("workspace", WORKSPACE)])


class QuotaMachine(SchedulerMachine):
    """live: the allocations of the last step, each with its slots, start and owner. used: slot-seconds by owner."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, tuple[int, float, str]] = {}
        self.used = dict.fromkeys(OWNERS, 0.0)
        self.place_unchecked = self.model.place
        self.model.place = self.place_within_quotas  # type: ignore[method-assign]  # the model places through it

    @initialize()
    def users(self) -> None:
        self.model.leader.commit(lambda _: StateChange(puts=tuple(User(name, "") for name in OWNERS)))

    @rule(subject=SUBJECTS, slots=st.none() | st.integers(-1, 8), hours=st.sampled_from([None, None, -1.0, 0.01, 1.0]))
    def administrator_sets_a_quota(self, subject: tuple[str, str], slots: int | None, hours: float | None) -> None:
        if (slots, hours) == (None, None):
            return
        caller = Caller(CLUSTER_NAME, True, f"q{len(self.used)}{self.model.now}{subject}{slots}{hours}")
        change = QuotaChange(slots, hours)
        self.model.leader.commit(lambda records: set_quota(records, *subject, change, caller, now=self.model.now))
        self.model.cycle()

    @rule(number=st.integers(0, 20), slots=SLOTS, owner=st.sampled_from(OWNERS))
    def either_submits(self, number: int, slots: int, owner: str) -> None:
        self.model.submit(f"of {owner} {number} {slots}", slots, owner=owner)
        self.model.cycle()

    @rule(agent_id=st.sampled_from(sorted(AGENTS)))
    def agents_have_room(self, agent_id: str) -> None:
        self.model.connect(agent_id, AGENTS[agent_id])
        self.model.cycle()

    def place_within_quotas(self, assignment: Assignment) -> StateChange:
        change = self.place_unchecked(assignment)
        for allocation in change.all_of(Allocation):
            owner = self.owner_of(allocation)
            held = {
                user_subject(owner).id: sum(a.num_slots for a in self.model.allocations() if self.owner_of(a) == owner),
                workspace_subject(1).id: sum(a.num_slots for a in self.model.allocations()),
            }
            for subject_id, slots in held.items():
                quota = self.model.state.find(Quota, subject_id)
                if quota is not None and allocation.num_slots:
                    assert quota.max_slots is None or slots <= quota.max_slots
        return change

    def owner_of(self, allocation: Allocation) -> str:
        return get(self.model.state, Experiment, allocation.experiment_id).owner

    @invariant()
    def ended_work_is_counted_once(self) -> None:
        """All that has ended by now has ended at this instant, because time passes in steps of their own."""
        live = {a.id: (a.num_slots, a.created_at, self.owner_of(a)) for a in self.model.allocations()}
        for allocation_id, (slots, started_at, owner) in self.live.items():
            if allocation_id not in live:
                self.used[owner] += slots * (self.model.now - started_at)
        self.live = live
        counted = {owner: self.model.state.find(SlotUse, user_subject(owner).id) for owner in OWNERS}
        seconds = {owner: use.slot_seconds if use is not None else 0.0 for owner, use in counted.items()}
        assert seconds == self.used
        of_workspace = self.model.state.find(SlotUse, workspace_subject(1).id)
        total = of_workspace.slot_seconds if of_workspace is not None else 0.0
        assert abs(total - sum(self.used.values())) < 1e-6

    @invariant()
    def the_index_of_held_slots_agrees(self) -> None:
        for owner in OWNERS:
            own = [a for a in self.model.allocations() if self.owner_of(a) == owner]
            now = self.model.now
            assert self.model.state.held().slots_of(owner) == sum(a.num_slots for a in own)
            for since in (0.0, now - 5.0):
                seconds = sum(a.num_slots * (now - max(since, a.created_at)) for a in own)
                assert abs(self.model.state.held().slot_seconds_of(owner, since, now) - seconds) < 1e-3


QuotaMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestQuotas = QuotaMachine.TestCase
