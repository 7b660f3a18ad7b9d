"""Metrics that are no numbers, as they are encoded in a rank and read again at intake."""

from __future__ import annotations

import json
import math
from enum import Enum
from typing import Any

import numpy as np
import pytest

from gangline.domain.metric_value import (
    MOST_LEVELS,
    MOST_REPORT_BYTES,
    MOST_VALUE_BYTES,
    UNREADABLE,
    admit_values,
    encode_values,
)


class Phase(Enum):
    WARM = "warm"


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_values_keep_their_content() -> None:
    values = {"t": "猫 \x00", "l": [1, 2.5, None, True, math.inf], "m": {1: "a", None: "b", Phase.WARM: [Phase.WARM]}}
    text, left_out = encode_values(values)
    assert left_out == {}
    assert text.isascii()
    assert json.loads(text) == {
        "t": "猫 \x00",
        "l": [1, 2.5, None, True, math.inf],
        "m": {"1": "a", "null": "b", "warm": ["warm"]},
    }
    assert admit_values(text) == (text, {})


def test_nothing_is_empty() -> None:
    assert encode_values({}) == admit_values("") == ("", {})


def test_lone_surrogates_are_replaced() -> None:
    text, _ = encode_values({"a\ud800": ["b\udfff", {"c\ud800": 1}]})
    assert json.loads(text) == {"a\ufffd": ["b\ufffd", {"c\ufffd": 1}]}
    assert admit_values('{"a": "\\ud800"}') == ('{"a": "\\ufffd"}', {})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("x" * MOST_VALUE_BYTES, "larger than 64 KiB as JSON"),
        (["x" * 1000] * 100, "larger than 64 KiB as JSON"),
        ([0] * MOST_VALUE_BYTES, "larger than 64 KiB as JSON"),
        ({"k" * 70_000: 1}, "larger than 64 KiB as JSON"),
        (10**5000, "larger than 64 KiB as JSON"),
        (nested(MOST_LEVELS + 1), "nested more than 32 levels deep"),
        ({1, 2}, "a set, which JSON cannot hold"),
        ([b"raw"], "a bytes, which JSON cannot hold"),
        ({(1, 2): 3}, "a mapping with a tuple as a key, which JSON cannot hold"),
        (np.ndarray, "a type, which JSON cannot hold"),
    ],
    ids=range(10),
)
def test_a_value_that_does_not_fit_is_left_out_alone(value: Any, reason: str) -> None:
    assert encode_values({"a": "before", "bad": value, "b": "after"}) == (
        '{"a": "before", "b": "after"}',
        {"bad": reason},
    )


def test_a_value_that_holds_itself_is_left_out() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert encode_values({"cycle": cycle})[1] == {"cycle": "nested more than 32 levels deep"}


def test_the_largest_value_fits_and_the_deepest() -> None:
    text, left_out = encode_values({"wide": "x" * (MOST_VALUE_BYTES - 2), "deep": nested(MOST_LEVELS)})
    assert left_out == {}
    assert admit_values(text) == (text, {})
    numbers = [0] * (MOST_VALUE_BYTES // 3)
    assert encode_values({"numbers": numbers})[1] == {}


def test_a_report_has_a_limit_of_its_own() -> None:
    values = {f"v{number}": "x" * 60_000 for number in range(6)}
    text, left_out = encode_values(values)
    assert list(json.loads(text)) == ["v0", "v1", "v2", "v3"]
    assert left_out == dict.fromkeys(["v4", "v5"], "beyond the 256 KiB that the values of one report may have")
    assert len(text) < MOST_REPORT_BYTES + 100
    assert admit_values(text) == (text, {})


@pytest.mark.parametrize(
    "text", ["no JSON", "[1]", "7", "[" * 100_000 + "]" * 100_000, '{"a": ' + "1" * 5000 + "}"], ids=range(5)
)
def test_a_text_that_is_no_object_is_left_out(text: str) -> None:
    assert admit_values(text) == ("", {"": UNREADABLE})


def test_a_text_beyond_all_limits_is_not_parsed() -> None:
    assert admit_values("{" + " " * 2 * MOST_REPORT_BYTES + "}") == ("", {"": "the values have 524290 bytes"})


def test_numbers_beyond_a_double_are_infinite() -> None:
    assert admit_values('{"a": [1e999]}') == ('{"a": [Infinity]}', {})
