"""The counter of slot-seconds: which time counts, for whom, and how many series there are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gangline.domain.allocation import Allocation, Member
from gangline.domain.experiment import Experiment
from services.scheduler.leader import slot_meter
from services.scheduler.leader.slot_meter import SlotMeter
from services.scheduler.state.metrics import SLOT_SECONDS
from services.scheduler.state.records import SchedulerState, StateChange


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    SLOT_SECONDS.clear()
    yield
    SLOT_SECONDS.clear()


def _experiment(number: int, owner: str) -> Experiment:
    return Experiment(number, "e", owner, "{}", "0")


def _allocation(number: int, slots: int, pool: str = "p") -> Allocation:
    member = Member("a1", 0, tuple(f"a1/{slot}" for slot in range(slots)))
    return Allocation(f"{number}.1.1", f"{number}.1", number, 1, 1, pool, (member,))


def _counted() -> dict[tuple[str, str], float]:
    [family] = SLOT_SECONDS.collect()
    return {
        (sample.labels["pool"], sample.labels["owner"]): sample.value
        for sample in family.samples
        if sample.name.endswith("_total")
    }


def test_slots_count_from_the_commit_that_takes_them_to_the_one_that_frees_them() -> None:
    state = SchedulerState.of([_experiment(1, "ann"), _experiment(2, "bob"), _allocation(1, 3)])
    meter = SlotMeter(state, 100.0)
    meter.on_committed(StateChange((_allocation(2, 2, "q"),)), 101.0)
    meter.on_committed(StateChange((_allocation(2, 2, "q"),)), 102.0)
    meter.on_committed(StateChange((), ((Allocation, "1.1.1"),)), 103.0)
    meter.on_committed(StateChange((_experiment(3, "ann"),)), 103.5)
    meter.count(104.0)
    assert _counted() == {("p", "ann"): 9.0, ("q", "bob"): 6.0}
    meter.on_committed(StateChange((), ((Allocation, "2.1.1"), (Allocation, "9.1.1"))), 104.0)
    meter.count(105.0)
    assert _counted() == {("p", "ann"): 9.0, ("q", "bob"): 6.0}


def test_the_time_of_a_paused_process_does_not_count() -> None:
    meter = SlotMeter(SchedulerState.of([_experiment(1, "ann"), _allocation(1, 1)]), 0.0)
    meter.count(1.0)
    meter.count(3600.0)
    meter.count(3601.0)
    assert _counted() == {("p", "ann"): 2.0 + slot_meter.MAX_STEP_SECONDS}


def test_owners_beyond_the_limit_share_one_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_meter, "MAX_OWNERS", 2)
    records = [
        record for number in range(1, 6) for record in (_experiment(number, f"u{number}"), _allocation(number, 1))
    ]
    SlotMeter(SchedulerState.of(records), 0.0).count(1.0)
    assert _counted() == {("p", "u1"): 1.0, ("p", "u2"): 1.0, ("p", slot_meter.OTHER_OWNER): 3.0}
