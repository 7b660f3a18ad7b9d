"""The progress of a trial between two attempts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Trial
from gangline.domain.history import Newest, ProgressPoint
from gangline.domain.state import State
from services.gateway.usecase.shared.view import progress_of

# The first attempt has come to batch 584, with a checkpoint at 500.
NEWEST = Newest(ProgressPoint(584, 1000, 20.0), progress_attempt=1)
TRIAL = Trial("1.1", 1, 1, state=State.RUNNING, batches_total=1000, batches_completed=584)
RESUMED = ProgressPoint(500, 1000, 0.0)


def _attempt(number: int) -> Allocation:
    return Allocation(f"1.1.{number}", "1.1", 1, number, 5, "default", (), State.RUNNING)


@pytest.mark.parametrize(
    ("trial", "allocation", "expected"),
    [
        (TRIAL, _attempt(1), NEWEST.progress),
        (replace(TRIAL, state=State.QUEUED), None, RESUMED),
        (TRIAL, _attempt(2), RESUMED),
        (replace(TRIAL, state=State.TERMINAL), None, NEWEST.progress),
    ],
    ids=["the first attempt", "between", "the second attempt has reported nothing", "the end"],
)
def test_what_is_lost_since_the_checkpoint_is_no_progress(
    trial: Trial, allocation: Allocation | None, expected: ProgressPoint
) -> None:
    assert progress_of(trial, allocation, NEWEST, 500) == expected


def test_the_second_attempt_reports_its_own_progress() -> None:
    newest = Newest(ProgressPoint(514, 1000, 20.0), progress_attempt=2)
    assert progress_of(TRIAL, _attempt(2), newest, 500) == newest.progress
    assert progress_of(TRIAL, _attempt(1), Newest(), 0) is None
