"""Metrics of several batches and ranks become one number each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gangline.errors import GanglineError
from gangline.pytorch.metrics.metric import MetricSums, Reducer, ValidationMetrics, average, check_metrics


def test_training_metrics_weigh_every_batch_alike() -> None:
    first, second = MetricSums(), MetricSums()
    first.add({"loss": torch.tensor(1.0)}, "train_batch")
    first.add({"loss": torch.tensor(2.0), "rare": 7}, "train_batch")
    second.add({"loss": 6.0}, "train_batch")
    assert average([first.take(), second.take()]) == {"loss": 3.0, "rare": 7.0}
    assert not first
    assert first.take() == {}


def test_sum_of_halves_is_as_good_as_one_of_floats() -> None:
    sums, value = MetricSums(), torch.tensor(1.0, dtype=torch.bfloat16)
    for _ in range(1000):
        sums.add({"loss": value}, "train_batch")
    assert sums.take() == {"loss": (1000.0, 1000)}
    assert value == 1


def test_sum_of_counts_is_exact() -> None:
    sums = MetricSums()
    for count in (2**25, 1):
        sums.add({"records": torch.tensor(count, dtype=torch.int32)}, "train_batch")
    assert sums.take() == {"records": (2.0**25 + 1, 2)}


def test_sum_leaves_the_trials_own_numbers_alone() -> None:
    sums, loss = MetricSums(), torch.tensor(1.0)
    for _ in range(3):
        sums.add({"loss": loss}, "train_batch")
    assert loss == 1.0
    assert sums.take() == {"loss": (3.0, 3)}


@pytest.mark.parametrize(
    "values",
    [
        (torch.tensor(1.0), torch.tensor(2.0, dtype=torch.float64), 3),
        (torch.tensor(1), 2.0, torch.tensor(3.0)),
        (1.0, torch.tensor([2.0]), torch.tensor(3)),
        (torch.tensor([1.0]), torch.tensor(2.0), np.float32(3.0)),
    ],
)
def test_sum_takes_numbers_of_any_kind_in_turn(values: tuple[Any, ...]) -> None:
    sums = MetricSums()
    for value in values:
        sums.add({"loss": value}, "train_batch")
    assert sums.take() == {"loss": (6.0, 3)}


def test_values_that_are_no_numbers_are_left_out_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    sums, validation = MetricSums(), ValidationMetrics(Reducer.AVG)
    for _ in range(2):
        sums.add({"loss": torch.tensor(1.0), "output": torch.ones(4, 1), "name": "x"}, "train_batch")
        sums.add({"loss": torch.tensor(1.0), "output": torch.ones(4, 1), "name": "x"}, "train_batch", 0.5)
        validation.add({"accuracy": 0.5, "predictions": [1, 2]}, 8)
    assert sums.take() == {"loss": (3.0, 3.0)}
    assert validation.totals() == {"accuracy": (8.0, 16)}
    assert [record.getMessage() for record in caplog.records] == [
        "train_batch: 'output' is a tensor of shape (4, 1), not one number, so it is no reported metric",
        "train_batch: 'name' is a str, not one number, so it is no reported metric",
        "evaluate_batch: 'predictions' is a list, not one number, so it is no reported metric",
    ]
    with pytest.raises(GanglineError, match="the metric 'loss_parts' is a tensor of shape"):
        sums.add({"loss_parts": torch.ones(2)}, "train_batch")


def test_sums_do_not_keep_the_graph() -> None:
    sums = MetricSums()
    weight = torch.ones(1, requires_grad=True)
    sums.add({"loss": (weight * 2).sum()}, "train_batch")
    assert not sums._sums["loss"].requires_grad


def test_validation_average_weighs_every_record_alike() -> None:
    ranks = [ValidationMetrics(Reducer.AVG) for _ in range(3)]
    ranks[0].add({"accuracy": torch.tensor(1.0)}, 30)
    ranks[0].add({"accuracy": torch.tensor(0.0)}, 10)
    ranks[1].add({"accuracy": 0.5}, 60)
    assert ranks[0].combine(rank.totals() for rank in ranks) == {"accuracy": pytest.approx(0.6)}


def test_validation_reducers_by_name() -> None:
    reducer = {"sum": Reducer.SUM, "max": Reducer.MAX, "min": Reducer.MIN, "mean": Reducer.AVG}
    ranks = [ValidationMetrics(reducer) for _ in range(2)]
    for number, rank in enumerate(ranks):
        for value in (1.0, 5.0 + number):
            rank.add({"sum": value, "max": torch.tensor(value), "min": value, "mean": value}, 1)
    combined = ranks[0].combine([rank.totals() for rank in ranks])
    assert combined == {"sum": 13.0, "max": 6.0, "min": 1.0, "mean": 3.25}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (torch.tensor([2.0]), {"loss": 2.0}),
        ({"a": 1, "b": np.float32(2), "c": torch.tensor(3)}, {"a": 1.0, "b": 2.0, "c": 3.0}),
    ],
)
def test_accepted_metrics(result: Any, expected: dict[str, float]) -> None:
    assert {name: float(value) for name, value in check_metrics(result, "train_batch").items()} == expected


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "train_batch returned nothing"),
        ([1], "train_batch returned a list"),
        (torch.zeros(3), r"the metric 'loss' is a tensor of shape \(3,\)"),
        ({"who": "me"}, "the metric 'who' is a str"),
        ({"many": np.zeros(2)}, "the metric 'many' is a ndarray"),
    ],
)
def test_refused_metrics(result: Any, words: str) -> None:
    with pytest.raises(GanglineError, match=words):
        check_metrics(result, "train_batch")
