"""How long trials take: their own pace, else what their siblings needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.domain.allocation import Allocation, Member, Timeline
from gangline.domain.experiment import Checkpoint, Trial
from gangline.domain.state import Outcome, State
from services.scheduler.placement.capacity.outlook import expected_end
from services.scheduler.placement.request.snapshot import Running
from services.scheduler.state.estimate import Estimates, Progress
from services.scheduler.state.records import Record
from services.scheduler.state.records import SchedulerState as Records

WAITING = Trial("1.9", 1, 9)
PACED = Trial("1.8", 1, 8, batches_total=100, seconds_per_batch=2.0)


def _completed(number: int, seconds: float, attempts: int = 1) -> Trial:
    return Trial(
        f"1.{number}",
        1,
        number,
        state=State.TERMINAL,
        outcome=Outcome.COMPLETED,
        attempts=attempts,
        timeline=Timeline(placed_at=50.0),
        ended_at=50.0 + seconds,
    )


def _estimates(*records: Record, **progress: Progress) -> Estimates:
    return Estimates(
        Records.of(records),
        {name.replace("_", ".").strip("t"): trial_progress for name, trial_progress in progress.items()},
    )


def _allocation(trial_id: str, created_at: float = 1000.0) -> Allocation:
    return Allocation(f"{trial_id}.1", trial_id, 1, 1, 1, "default", (), created_at=created_at)


def test_without_any_knowledge_it_is_nothing() -> None:
    estimates = _estimates(WAITING)
    assert estimates.waiting_seconds("1.9") == 0
    assert estimates.end_at(_allocation("1.9")) == 0


def test_its_own_pace_counts_from_its_checkpoint() -> None:
    checkpoint = Checkpoint("c", "1.8", 1, 60, "/x", created_at=1500.0)
    trial = Trial("1.8", 1, 8, batches_total=100, seconds_per_batch=2.0, latest_checkpoint_id="c", batches_completed=75)
    assert _estimates(PACED).waiting_seconds("1.8") == 200
    assert _estimates(trial, checkpoint).waiting_seconds("1.8") == 80
    # After a change of the leader, before anybody has reported.
    assert _estimates(trial, checkpoint).end_at(_allocation("1.8")) == 1580
    assert _estimates(trial, checkpoint).end_at(_allocation("1.8", created_at=1600.0)) == 1680


def test_one_that_has_done_all_its_batches_still_has_to_come_up() -> None:
    checkpoint = Checkpoint("c", "1.8", 1, 100, "/x")
    trial = Trial("1.8", 1, 8, batches_total=100, seconds_per_batch=2.0, latest_checkpoint_id="c")
    assert _estimates(trial, checkpoint).waiting_seconds("1.8") == 2


def test_else_the_median_of_its_siblings() -> None:
    others = (_completed(1, 30.0), _completed(2, 50.0), PACED)
    estimates = _estimates(WAITING, *others)
    assert estimates.waiting_seconds("1.9") == 50
    assert estimates.end_at(_allocation("1.9")) == 1050


def test_siblings_of_full_size_count_for_a_smaller_attempt_by_the_ratio_of_slots() -> None:
    smaller = replace(_allocation("1.9"), members=(Member("a1", 0, ("a1/0",)),), full_slots=4)
    assert _estimates(WAITING, _completed(1, 30.0)).end_at(smaller) == 1120


def test_siblings_that_failed_or_were_ended_say_nothing() -> None:
    failed = Trial(
        "1.1", 1, 1, state=State.TERMINAL, outcome=Outcome.FAILED, timeline=Timeline(placed_at=1), ended_at=9
    )
    canceled = Trial("1.2", 1, 2, state=State.TERMINAL, outcome=Outcome.CANCELED, batches_total=9, seconds_per_batch=9)
    restarted = _completed(3, 30.0, attempts=2)
    assert _estimates(WAITING, failed, canceled, restarted).waiting_seconds("1.9") == 0


def test_the_newest_report_comes_first() -> None:
    estimates = _estimates(PACED, t1_8=Progress(40, 100, 3.0, at=2000.0))
    assert estimates.end_at(_allocation("1.8")) == 2180


@pytest.mark.parametrize("pace", [0.0, -1.0, float("nan"), float("inf")])
def test_a_pace_that_is_none_counts_for_nothing(pace: float) -> None:
    assert Progress(1, 10, pace, at=5.0).estimated_end_at == 0
    assert _estimates(Trial("1.9", 1, 9, batches_total=10, seconds_per_batch=pace)).waiting_seconds("1.9") == 0


def test_an_overrun_is_estimated_again() -> None:
    """It should have been done 100 s ago, so it is given as much again, and at most a quarter of its elapsed time."""
    end_at = Progress(10, 10, 3.0, at=2900.0).estimated_end_at
    assert end_at == 2900
    work = Running("1.8.1", "1.8", "g", "default", {"a1": 1}, started_at=1000.0, estimated_end_at=end_at)
    assert expected_end(work, 3000.0) == 3100
    assert expected_end(work, 5000.0) == 5000 + 1000
    assert expected_end(work, 2899.0) == 2900
    assert expected_end(work, 2900.0) == 2901
