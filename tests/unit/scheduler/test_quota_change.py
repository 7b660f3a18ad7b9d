"""Transitions of quotas: who sets them, repeats, bounds, submits, and what follows a user or a workspace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Experiment
from gangline.domain.quota import Quota, QuotaChange, SlotUse, month_start, user_subject, workspace_subject
from gangline.domain.settled.reading import settle
from gangline.domain.state import ExitKind
from gangline.domain.user import CLUSTER_NAME, User, UserChange
from gangline.errors import GanglineError
from services.scheduler.placement.request.assignment import Assignment
from services.scheduler.state.records import StateChange, get
from services.scheduler.transition import quota_change
from services.scheduler.transition.account.user_change import update_user
from services.scheduler.transition.project.rule import Caller
from services.scheduler.transition.quota_change import check_submit, remove_quota, set_quota
from tests.support.scheduler_model import Model

ANN = user_subject("ann").id
WORKSPACE = workspace_subject(1).id


def _admin(request_id: str) -> Caller:
    return Caller(CLUSTER_NAME, True, request_id)


@pytest.fixture
def model() -> Model:
    model = Model()
    model.now = month_start("2026-11") + 1000.0
    model.leader.commit(lambda _: StateChange(puts=(User("ann", "", id=1), User("bob", "", id=2))))
    model.connect("a1", 4)
    return model


def _set(
    model: Model, request_id: str, slots: int | None = None, hours: float | None = None, name: str = "ann"
) -> None:
    change = QuotaChange(slots, hours)
    model.leader.commit(lambda records: set_quota(records, "user", name, change, _admin(request_id), now=model.now))


def _refusal(model: Model, kind: str, name: str, caller: Caller) -> str:
    with pytest.raises(GanglineError) as failure:
        set_quota(model.state, kind, name, QuotaChange(1), caller, now=model.now)
    return failure.value.code


def test_only_administrators_and_only_for_who_is_there(model: Model) -> None:
    assert _refusal(model, "user", "ann", Caller("ann", True, "1")) == "auth.not_admin"
    with pytest.raises(GanglineError, match="may remove quotas"):
        remove_quota(model.state, "user", "ann", Caller("ann", True, "1"))
    assert _refusal(model, "user", "carl", _admin("1")) == "user.not_found"
    assert _refusal(model, "workspace", "lab", _admin("1")) == "workspace.not_found"
    assert _refusal(model, "pool", "default", _admin("1")) == "quota.kind"


def test_a_change_leaves_the_other_limit_and_a_repeat_changes_nothing(model: Model) -> None:
    _set(model, "1", slots=8)
    _set(model, "2", hours=100.0)
    _set(model, "3", slots=4)
    _set(model, "1", slots=8)
    quota = get(model.state, Quota, ANN)
    assert (quota.max_slots, quota.slot_hours, quota.changed_by) == (4, 100.0, CLUSTER_NAME)
    _set(model, "4", slots=-1)
    assert get(model.state, Quota, ANN).max_slots is None
    _set(model, "5", hours=-1.0)
    assert model.state.find(Quota, ANN) is None
    _set(model, "5", hours=-1.0)
    assert model.state.find(Quota, ANN) is None


def test_a_repeated_removal_leaves_a_quota_that_was_set_after_it(model: Model) -> None:
    _set(model, "1", slots=8)
    for _ in range(2):
        model.leader.commit(lambda records: remove_quota(records, "user", "ann", _admin("2")))
        assert model.state.find(Quota, ANN) is None
    _set(model, "3", slots=2)
    model.leader.commit(lambda records: remove_quota(records, "user", "ann", _admin("2")))
    assert get(model.state, Quota, ANN).max_slots == 2


def test_the_number_of_quotas_is_bounded(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_change, "MAX_QUOTAS", 1)
    _set(model, "1", slots=8)
    _set(model, "2", slots=9)
    with pytest.raises(GanglineError, match="there are 1 quotas; remove one"):
        _set(model, "3", slots=8, name="bob")


def test_a_plan_made_before_the_quota_was_set_places_nothing(model: Model) -> None:
    model.submit("r", 2)
    [assignment] = model.plan().assignments
    _set(model, "1", slots=1)
    assert not model.place(assignment)
    _set(model, "2", slots=2)
    assert model.place(assignment)


def test_nothing_is_placed_once_the_hours_are_used_up(model: Model) -> None:
    model.submit("r1", 2)
    model.cycle()
    model.submit("r2", 1)
    assignment = Assignment("2.1", {"a1": 1})
    _set(model, "1", hours=1.0)
    # Two slots for half an hour are one slot-hour.
    model.now += 1800.0
    assert not model.place(assignment)
    model.now -= 1.0
    assert model.place(assignment)


def test_a_lowered_quota_stops_nothing(model: Model) -> None:
    model.submit("r1", 2)
    model.cycle()
    _set(model, "1", slots=1)
    decided = model.cycle()
    assert decided.preemptions == ()
    assert [allocation.num_slots for allocation in model.allocations()] == [2]


def test_the_end_of_an_allocation_counts_for_its_owner_and_workspace(model: Model) -> None:
    model.submit("r1", 2)
    model.submit("r2", 1, owner="bob")
    model.cycle()
    model.now += 100.0
    for allocation in model.allocations():
        model.exit(allocation.id, "a1", ExitKind.COMPLETED)
        model.exit(allocation.id, "a1", ExitKind.COMPLETED)
    assert get(model.state, SlotUse, ANN) == SlotUse(user_subject("ann"), "2026-11", 200.0)
    assert get(model.state, SlotUse, user_subject("bob").id).slot_seconds == 100.0
    assert get(model.state, SlotUse, WORKSPACE).slot_seconds == 300.0
    model.change_leader()
    assert get(model.state, SlotUse, ANN).slot_seconds == 200.0


def test_a_submit_names_what_can_never_start_and_what_waits(model: Model) -> None:
    config = '{"entrypoint": "x", "searcher": {"name": "single", "metric": "l"}, "resources": {"slots_per_trial": %d}}'

    def check(slots: int) -> list[str]:
        return check_submit(model.state, "ann", 1, settle(config % slots), model.now)

    assert check(2) == []
    _set(model, "1", slots=3)
    assert check(3) == []
    with pytest.raises(GanglineError) as failure:
        check(4)
    assert failure.value.code == "quota.never_fits"
    assert failure.value.message == (
        "would need 4 slots, user ann may have 3; ask an administrator, or set resources.slots_per_trial to at most 3"
    )
    model.submit("r1", 2)
    model.cycle()
    assert check(1) == []
    assert check(2) == ["user ann has 2 of 3 slots, and this needs 2 more; it waits until some are free"]
    _set(model, "2", hours=0.5)
    model.now += 1000.0
    [warning] = check(1)
    assert warning.startswith("user ann has used 0.556 of 0.5 slot-hours of this month; it waits until the next")


def test_a_renamed_user_keeps_quota_and_use(model: Model) -> None:
    use = SlotUse(user_subject("bob"), "2026-11", 5.0)
    model.leader.commit(lambda _: StateChange(puts=(use,)))
    _set(model, "1", slots=3, name="bob")
    model.leader.commit(lambda records: update_user(records, "bob", UserChange(name="rob"), _admin("2")))
    assert model.state.find(Quota, user_subject("bob").id) is None
    assert get(model.state, Quota, user_subject("rob").id).max_slots == 3
    assert get(model.state, SlotUse, user_subject("rob").id).slot_seconds == 5.0


def test_live_slots_follow_an_experiment_that_moves(model: Model) -> None:
    model.submit("r1", 2)
    model.cycle()
    assert (model.state.held().slots_of(1), model.state.held().slots_of(7)) == (2, 0)
    moved = replace(get(model.state, Experiment, 1), project_id=7)
    model.leader.commit(lambda _: StateChange(puts=(moved,)))
    assert (model.state.held().slots_of(1), model.state.held().slots_of(7)) == (0, 2)
    [allocation] = model.allocations()
    model.leader.commit(lambda _: StateChange(deletes=((Allocation, allocation.id),)))
    assert (model.state.held().slots_of(7), model.state.held().project_ids()) == (0, [])
