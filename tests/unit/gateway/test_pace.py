"""The pace by which the cost of a search is estimated: only of a trial that is comparable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.settled.reading import settle_values
from services.gateway.usecase.pace import find_pace

_CONFIG: dict[str, Any] = {
    "entrypoint": "model_def:T",
    "resources": {"slots_per_trial": 2},
    "hyperparameters": {"global_batch_size": 16, "lr": 0.1},
    "searcher": {"max_length": {"epochs": 4}},
}


def _pace(other: dict[str, Any], unit: str = "batches", **fields: Any) -> tuple[str, float]:
    trial = Trial("7.1", 7, 1, **{"seconds_per_batch": 0.5, "batches_total": 400, "created_at": 1.0, **fields})
    slower = Trial("7.2", 7, 2, seconds_per_batch=9.0, batches_total=400, created_at=0.5)
    experiment = Experiment(7, "e", "ann", json.dumps(other), "c" * 64)
    return find_pace(settle_values(_CONFIG), unit, [experiment], lambda _: [slower, trial])


def test_the_newest_trial_of_the_same_work_counts() -> None:
    other_rate = {**_CONFIG, "hyperparameters": {"global_batch_size": 16, "lr": 0.7}}
    assert _pace(other_rate) == ("7.1", 0.5)
    assert _pace(other_rate, "epochs") == ("7.1", 50.0)


@pytest.mark.parametrize(
    "change",
    [
        {"entrypoint": "other:T"},
        {"resources": {"slots_per_trial": 1}},
        {"hyperparameters": {"global_batch_size": 32}},
        {"parallelism": {"strategy": "zero3"}},
    ],
)
def test_other_work_has_another_pace(change: dict[str, Any]) -> None:
    assert _pace({**_CONFIG, **change}) == ("", 0.0)


def test_without_a_pace_or_a_common_unit_it_is_not_known() -> None:
    assert _pace(_CONFIG, seconds_per_batch=0.0) == ("7.2", 9.0)
    assert _pace(_CONFIG, "records") == ("", 0.0)
    assert _pace(_CONFIG, "tokens") == ("", 0.0)
    assert find_pace(settle_values(_CONFIG), "batches", [], lambda _: []) == ("", 0.0)
