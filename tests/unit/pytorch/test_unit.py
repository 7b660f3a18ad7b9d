"""Lengths and periods in batches, epochs and records."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.errors import GanglineError
from gangline.pytorch.trial.unit import Batch, Epoch, Position, Record, TrainUnit, parse_unit


def _due_at(unit: TrainUnit, batches: int) -> list[int]:
    position = Position(epoch_length=4, records_per_batch=10)
    due = []
    for _ in range(batches):
        position.advance()
        if unit.is_due(position):
            due.append(position.batches)
    return due


@pytest.mark.parametrize(
    ("unit", "due_at"),
    [
        (Batch(5), [5, 10]),
        (Batch([1, 7]), [1, 7]),
        (Epoch(1), [4, 8, 12]),
        (Epoch(2), [8]),
        (Epoch({3}), [12]),
        (Record(25), [3, 5, 8, 10]),
        (Record([11, 30]), [2, 3]),
    ],
)
def test_period_is_due(unit: TrainUnit, due_at: list[int]) -> None:
    assert _due_at(unit, 12) == due_at


@pytest.mark.parametrize(("unit", "total"), [(Batch(7), 7), (Epoch(3), 12), (Record(41), 5), (Record(40), 4)])
def test_length_is_reached_after_its_total_of_batches(unit: TrainUnit, total: int) -> None:
    position = Position(epoch_length=4, records_per_batch=10)
    while not unit.is_reached(position):
        assert unit.total_batches(position) == total
        position.advance()
    assert position.batches == total


def test_position_counts_by_the_name_of_a_unit() -> None:
    position = Position(epoch_length=4, records_per_batch=10)
    for _ in range(5):
        position.advance()
    assert [position.count_by(name) for name in ("batches", "epochs", "records", "tokens")] == [5, 1.25, 50, None]
    assert Position(epoch_length=4, records_per_batch=0).count_by("records") is None


def test_position_counts_epochs() -> None:
    position = Position(epoch_length=2, records_per_batch=1)
    seen = []
    for _ in range(3):
        seen.append((position.epoch, position.is_epoch_start, position.is_epoch_end, position.loader_step))
        position.advance()
    assert seen == [(0, True, False, 0), (0, False, True, 1), (1, True, False, 2)]


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        (None, None),
        (0, None),
        ({"batches": 0}, None),
        (9, Batch(9)),
        ({"epochs": 2}, Epoch(2)),
        ({"records": 3, "epochs": None}, Record(3)),
    ],
)
def test_length_of_a_configuration(value: Any, unit: TrainUnit | None) -> None:
    assert parse_unit(value, "here") == unit


@pytest.mark.parametrize(
    "value", ["5", {"batches": "5"}, {"batches": -1}, {"batches": True}, {"hours": 2}, {}, {"batches": 1, "epochs": 2}]
)
def test_length_that_is_none(value: Any) -> None:
    with pytest.raises(GanglineError, match=r"^searcher\.max_length"):
        parse_unit(value, "searcher.max_length")


@pytest.mark.parametrize("value", [0, -3, True, 1.5, "2"])
def test_unit_that_is_none(value: Any) -> None:
    with pytest.raises(GanglineError, match="expected a number above 0"):
        Batch(value)


def test_records_need_a_batch_size() -> None:
    with pytest.raises(GanglineError, match="records need a DataLoader with a batch_size"):
        Record(5).is_due(Position(epoch_length=4, records_per_batch=0, batches=1))
