"""The record of a choice by `parallelism: auto`."""

from __future__ import annotations

import json

import pytest

from gangline.config.strategy_choice import (
    METADATA_KEY,
    MOST_BYTES,
    CandidateRow,
    StrategyChoice,
    choice_in,
    parse_choice,
    table_lines,
)
from gangline.errors import GanglineError

DDP = CandidateRow("ddp", "ddp", bytes={"parameters": 1 << 20, "total": 3 << 20}, step_seconds=0.5)
ZERO1 = CandidateRow("zero1", "zero1", refusal="ran out of memory")
RECORD = StrategyChoice("ddp", 2, (DDP, ZERO1), 1 << 30, ("zero1",), ("a note",))


def test_a_record_is_the_same_after_json() -> None:
    assert parse_choice(RECORD.to_json()) == RECORD
    assert parse_choice(RECORD.to_json()).chosen == DDP


def test_fields_of_a_newer_version_are_left_out() -> None:
    values = json.loads(RECORD.to_json())
    values["rows"][0]["later"] = values["later"] = 1
    assert parse_choice(json.dumps(values)) == RECORD


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        json.dumps({**json.loads(RECORD.to_json()), "choice": "odd"}),
        json.dumps({**json.loads(RECORD.to_json()), "slots": "two"}),
        json.dumps({**json.loads(RECORD.to_json()), "rows": [{"name": 7}]}),
        json.dumps({**json.loads(RECORD.to_json()), "choice": "x" * MOST_BYTES}),
    ],
)
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(GanglineError) as caught:
        parse_choice(text)
    assert caught.value.code == "parallelism.record"
    assert "\n" not in caught.value.message


def test_the_record_in_a_checkpoint() -> None:
    assert choice_in({METADATA_KEY: json.loads(RECORD.to_json())}) == RECORD
    assert choice_in({METADATA_KEY: None}) is choice_in({}) is None
    with pytest.raises(GanglineError):
        choice_in({METADATA_KEY: {"choice": "odd"}})


def test_the_table_marks_the_choice_and_says_why_others_were_refused() -> None:
    lines = table_lines(RECORD)
    assert lines[0] == "parallelism: auto chose ddp for 2 slots of 1024 MiB; sizes in MiB of the fullest slot"
    assert lines[2].startswith("*  ddp")
    assert lines[3].endswith("ran out of memory")
    assert "500.0 ms" in lines[2]
