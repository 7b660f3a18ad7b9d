"""Numbers that a trial counts in calls of train_batch for parts of a batch."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from gangline.pytorch.training.part_state import PartState


def test_a_count_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    trial = SimpleNamespace(count=0)
    state = PartState(trial, [])
    for _ in range(2):
        with state.unchanged():
            trial.count += 1
    (message,) = caplog.messages
    assert message.startswith("train_batch changes self.count, and a pipeline calls it once for each microbatch; ")


def test_a_number_that_counts_nothing_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    trial = SimpleNamespace(loss=math.nan, mean=0.5, is_warm=False)
    with PartState(trial, []).unchanged():
        trial.mean, trial.is_warm = 0.25, True
    assert caplog.messages == []
