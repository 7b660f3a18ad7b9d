"""The record of a choice by `parallelism: auto`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gangline.config.strategy_choice import (
    METADATA_KEY,
    MOST_BYTES,
    CandidateRow,
    StrategyChoice,
    choice_in,
    is_refusal,
    parse_choice,
    table_lines,
    way_out,
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


_PIPELINE = CandidateRow("pipeline (stages 2)", "pipeline", {"stages": 2, "microbatches": 8}, step_seconds=0.2)
_RECOMPUTED = CandidateRow("zero3 (recompute blocks)", "zero3", {}, "blocks", step_seconds=0.3)
_REFUSED = CandidateRow("zero1", "zero1", refusal="does not fit", step_seconds=0.1)
_TABLE = StrategyChoice("ddp", 2, (DDP, _REFUSED, _PIPELINE, _RECOMPUTED))


def test_a_record_of_an_earlier_version_has_no_refusals() -> None:
    values = json.loads(RECORD.to_json())
    del values["refused"]
    assert parse_choice(json.dumps(values)) == RECORD
    assert parse_choice(json.dumps(values)).refused == {}


def test_each_strategy_refuses_once() -> None:
    first = _TABLE.without_chosen("two calls", "parallelism.model")
    assert first is not None
    assert first.refused == {"ddp": "two calls"}
    assert first.without_chosen("two calls", "parallelism.x") is None
    assert parse_choice(first.to_json()) == first
    second = replace(first, choice="pipeline (stages 2)").without_chosen("x" * 10_000, "parallelism.x")
    assert second is not None
    assert len(second.refused["pipeline"]) == 400
    assert second.fastest_left() == _RECOMPUTED
    # No strategy is left but the one that does not fit.
    assert replace(second, choice="zero3 (recompute blocks)").without_chosen("no", "parallelism.x") is None


def test_the_way_out_is_the_fastest_candidate_beside_the_chosen_one() -> None:
    assert way_out(_TABLE, "parallelism.x") == "parallelism: {strategy: pipeline, stages: 2}"
    assert way_out(replace(_TABLE, refused={"pipeline": "no"}), "parallelism.x") == (
        "parallelism: {strategy: zero3, activation_checkpointing: blocks}"
    )
    assert (
        way_out(replace(_TABLE, choice="pipeline (stages 2)", rows=(DDP, _PIPELINE)), "parallelism.x")
        == "parallelism: ddp"
    )
    assert way_out(replace(_TABLE, rows=(DDP, _REFUSED)), "parallelism.x") == ""


@pytest.mark.parametrize(
    ("code", "is_one"),
    [
        ("parallelism.train_batch", True),
        ("parallelism.split", False),
        ("parallelism.carry", False),
        ("parallelism.model_changed", False),
        ("parallelism.lazy_model", False),
        ("pytorch.unused_parameters", True),
        ("parallelism.auto", False),
        ("parallelism.record", False),
        ("parallelism.trial_class", False),
        ("pytorch.loss", False),
        ("config.batch_size", False),
        ("", False),
    ],
)
def test_which_errors_another_strategy_may_not_have(code: str, is_one: bool) -> None:
    assert is_refusal(code) is is_one


def test_an_error_of_torch_refuses_all_strategies_that_spread_a_trial_in_the_same_way() -> None:
    code, zero1 = "pytorch.unused_parameters", replace(_REFUSED, refusal="")
    refused = replace(_TABLE, rows=(DDP, zero1, _RECOMPUTED)).without_chosen("unused", code)
    assert refused is not None
    assert refused.refused == {"ddp": "unused", "zero1": "unused"}
    assert refused.fastest_left() == _RECOMPUTED
    assert way_out(replace(_TABLE, rows=(DDP, zero1)), code) == ""
    assert way_out(replace(_TABLE, rows=(DDP, zero1)), "parallelism.x") == "parallelism: zero1"
    # A name that this version does not know stands for itself.
    odd = replace(_TABLE, choice="odd", rows=(DDP, CandidateRow("odd", "odd")))
    assert way_out(odd, code) == "parallelism: ddp"
