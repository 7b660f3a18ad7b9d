"""The pure part of benchmarks.auto_choice: levels of memory, the rule of thumb, and the ratios of chosen steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.choice_judgment import Outcome, judge, rule_of_thumb, usable_bytes
from gangline.config.strategy_choice import CandidateRow, StrategyChoice


def _row(strategy: str, size: int, recomputation: str = "none", refusal: str = "") -> CandidateRow:
    name = strategy if recomputation == "none" else f"{strategy} (recompute {recomputation})"
    return CandidateRow(
        name, strategy, activation_checkpointing=recomputation, bytes={"total": size}, step_seconds=1.0, refusal=refusal
    )


_ROWS = (
    _row("ddp", 90),
    _row("zero1", 80),
    _row("zero3", 70),
    _row("pipeline", 40),
    _row("ddp", 60, "blocks"),
    _row("zero1", 50, "blocks"),
)
_RECORD = StrategyChoice("ddp", 2, _ROWS)


def _fitting(names: set[str], rows: tuple[CandidateRow, ...] = _ROWS) -> StrategyChoice:
    judged = tuple(replace(row, refusal="" if row.name in names else "needs more") for row in rows)
    return StrategyChoice(next(row.name for row in judged if not row.refusal), 2, judged)


def test_each_level_of_memory_leaves_strategies_out() -> None:
    limits = usable_bytes(_RECORD)
    fitting = {level: [row.name for row in _ROWS if row.bytes["total"] <= limit] for level, limit in limits.items()}
    assert fitting == {
        "no plain ddp": ["zero1", "zero3", "pipeline", "ddp (recompute blocks)", "zero1 (recompute blocks)"],
        "no ddp": ["pipeline", "zero1 (recompute blocks)"],
        "no ddp, zero1": ["pipeline"],
    }


def test_a_level_that_changes_nothing_is_left_out() -> None:
    plain = replace(_RECORD, rows=_ROWS[:2])
    assert list(usable_bytes(plain)) == ["no plain ddp"]
    refused = replace(_RECORD, rows=(*_ROWS[:2], _row("pipeline", 40, refusal="cannot cut the model")))
    assert list(usable_bytes(refused)) == ["no plain ddp"]


@pytest.mark.parametrize(
    ("fitting", "thumb"),
    [
        ({row.name for row in _ROWS}, "ddp"),
        ({"zero1", "zero3", "pipeline", "ddp (recompute blocks)"}, "zero1"),
        ({"zero3", "pipeline", "ddp (recompute blocks)"}, "zero3"),
        ({"ddp (recompute blocks)", "zero1 (recompute blocks)"}, "ddp (recompute blocks)"),
    ],
)
def test_the_rule_of_thumb_takes_the_first_that_fits(fitting: set[str], thumb: str) -> None:
    assert rule_of_thumb(_fitting(fitting)) == thumb


def test_the_rule_of_thumb_cuts_the_model_over_a_slow_link() -> None:
    record = _fitting({"zero3", "pipeline"})
    assert rule_of_thumb(replace(record, across_rate=1.3e9)) == "zero3"
    assert rule_of_thumb(replace(record, across_rate=1.2e9)) == "pipeline"


def test_ratios_are_to_the_row_with_the_smallest_median() -> None:
    """Each run has its own choice, and its own step of the fastest row. Rows that do not fit do not count."""
    first = _fitting({"zero1", "zero3", "ddp (recompute blocks)"})
    other = replace(first, choice="zero3")
    seconds = [
        {"ddp": 0.5, "zero1": 2.0, "zero3": 1.0, "ddp (recompute blocks)": 3.0},
        {"ddp": 0.5, "zero1": 2.0, "zero3": 4.0, "ddp (recompute blocks)": 3.0},
        {"ddp": 0.5, "zero1": 0.8, "zero3": 1.6, "ddp (recompute blocks)": 3.0},
    ]
    judgment = judge(
        [Outcome(record, each) for record, each in zip((first, first, other), seconds, strict=True)],
    )
    assert judgment.fastest == "zero3"
    assert judgment.choices == {"zero1": 2, "zero3": 1}
    assert judgment.ratios == (2.0, 0.5, 1.0)
    assert judgment.median == 1.0
    assert judgment.ddp_ratios == ()
    assert judgment.thumb_ratios == (2.0, 0.5, 0.5)


def test_ddp_is_a_peer_where_it_fits() -> None:
    outcome = Outcome(replace(_RECORD, choice="pipeline"), {row.name: 2.0 for row in _ROWS} | {"pipeline": 1.0})
    judgment = judge([outcome])
    assert (judgment.ratios, judgment.ddp_ratios, judgment.thumb_ratios) == ((1.0,), (2.0,), (2.0,))
