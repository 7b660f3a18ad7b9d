"""Warnings about settings that are valid and look like a mistake."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gangline.config import parse_config

_LENGTH = {"max_length": {"batches": 10}}
_SEARCH: dict[str, Any] = {"name": "random", "metric": "loss", "max_trials": 2, **_LENGTH}
_GRID: dict[str, Any] = {"name": "grid", "metric": "loss", **_LENGTH}
_SINGLE: dict[str, Any] = {"name": "single", "metric": "loss", **_LENGTH}


def _warnings(hyperparameters: dict[str, Any], searcher: dict[str, Any] | None = None) -> list[str]:
    config = {"entrypoint": "m:T", "searcher": searcher or _SEARCH, "hyperparameters": hyperparameters}
    return parse_config(json.dumps(config))[1]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            [0.1, 0.2],
            "hyperparameters.lr: every trial gets the whole list; for one of its values in each trial write {type: "
            "categorical, vals: [0.1, 0.2]}, and {type: const, val: ...} where the list is meant",
        ),
        (
            {"min": 1, "max": 4},
            "hyperparameters.lr: has no type, so it is a group of the hyperparameters min, max; for a range write "
            "{type: int, minval: 1, maxval: 4}",
        ),
        (
            {"minval": 0.1, "maxval": 4, "count": 3},
            "hyperparameters.lr: has no type, so it is a group of the hyperparameters minval, maxval, count; for a "
            "range write {type: double, minval: 0.1, maxval: 4}",
        ),
        (
            {"values": ["a", "b"]},
            "hyperparameters.lr: has no type, so it is a group of the hyperparameters values; for a range write {type: "
            'categorical, vals: ["a", "b"]}',
        ),
        (
            {"type": "log", "minval": 0.0001, "maxval": 0.1},
            "hyperparameters.lr: minval and maxval are exponents of base 10, so values are drawn from 1 to 1.259; for "
            "values from 0.0001 to 0.1 write minval: -4, maxval: -1",
        ),
        (
            {"type": "log", "minval": 16, "maxval": 256, "base": 2},
            "hyperparameters.lr: minval and maxval are exponents of base 2, so values are drawn from 6.554e+04 to "
            "1e+77; for values from 16 to 256 write minval: 4, maxval: 8",
        ),
    ],
    ids=["list", "min", "minval", "values", "log", "large log"],
)
def test_a_hyperparameter_that_resembles_a_range_is_warned_of(value: Any, text: str) -> None:
    assert _warnings({"lr": value}) == [text]
    nested = text.replace("hyperparameters.lr", "hyperparameters.net.lr")
    assert _warnings({"net": {"lr": value}}) == [nested]


@pytest.mark.parametrize(
    "value",
    [
        {"type": "const", "val": [0.9, 0.99]},
        [1],
        {"min": 1, "max": 4, "unit": "s"},
        {"min": {"type": "int", "minval": 1, "maxval": 2}, "max": 3},
        {"low": True, "high": False},
        {"count": 2},
        {},
        {"type": "log", "minval": -4, "maxval": -1},
        {"type": "log", "minval": 0, "maxval": 1},
        {"type": "log", "minval": 4, "maxval": 10, "base": 2},
        {"type": "double", "minval": 0.1, "maxval": 0.2},
    ],
    ids=str,
)
def test_no_other_value_is_warned_of(value: Any) -> None:
    assert _warnings({"lr": value}) == []


def test_a_list_is_no_mistake_without_a_search() -> None:
    assert _warnings({"betas": [0.9, 0.99]}, _SINGLE) == []
    assert _warnings({"betas": [0.9, 0.99]}, {**_SINGLE, "name": "custom"}) == []
    assert len(_warnings({"lr": {"min": 1, "max": 2}}, _SINGLE)) == 1


def test_a_grid_without_a_range_is_warned_of() -> None:
    text = (
        "searcher: this grid has one trial, because no hyperparameter has a range; write one as {type: categorical, "
        "vals: [0.1, 0.01]}"
    )
    assert _warnings({"lr": 0.1}, _GRID) == [text]
    assert _warnings({}, _GRID) == [text]
    assert _warnings({"lr": {"type": "categorical", "vals": [1, 2]}}, _GRID) == []


def test_many_warnings_are_counted_and_not_listed() -> None:
    warnings = _warnings({f"h{number}": [1, 2] for number in range(100)})
    assert len(warnings) == 6
    assert warnings[-1] == "hyperparameters: 95 more look like ranges and are none"
