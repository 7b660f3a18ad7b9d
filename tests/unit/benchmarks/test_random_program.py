"""The vocabulary of random programs, their text, and the judgment of their outcome."""

from __future__ import annotations

import torch

from benchmarks.random_program import build, draw, model, program
from benchmarks.random_program.block import BLOCKS
from benchmarks.random_program.draw import draw_program
from benchmarks.random_program.judgment import Kind, judge
from benchmarks.random_program.outcome import Outcome
from benchmarks.random_program.program import Program, describe, from_json, smaller, to_json
from benchmarks.warm_gang import Answer

_SEEDS = range(400)


def test_every_name_that_is_drawn_has_a_meaning() -> None:
    programs = [draw_program(seed) for seed in _SEEDS]
    steps = {name for each in programs for name, _ in (*each.before, *each.after, *each.last)}
    events = {name for each in programs for _, (name, _) in each.events}
    assert steps | events <= set(build.STEPS)
    assert set(build.STEPS) >= build.OF_EACH_COPY
    assert {kind for each in programs for kind in each.blocks} == set(BLOCKS) == program.ALL_BLOCKS
    assert {each.form for each in programs} == set(model.FORMS)
    assert {name for each in programs for name in each.own} == set(model.OWN)
    assert {each.optimizer for each in programs} == set(build.OPTIMIZERS)
    assert {each.scheduler for each in programs} == {"none", *build.SCHEDULERS}


def test_every_strategy_is_drawn_with_and_without_recomputation() -> None:
    drawn = {(each.strategy, each.recomputation != "none") for each in map(draw_program, _SEEDS)}
    named = {"ddp", "zero1", "zero2", "zero3", "hsdp", "pipeline"}
    assert drawn == {(name, is_on) for name in named for is_on in (False, True)} | {("none", True)}
    schedules = {each.parallelism.get("schedule") for each in map(draw_program, _SEEDS)}
    assert schedules == {None, "1F1B", "GPipe", "Interleaved1F1B", "ZBVZeroBubble"}


def test_a_seed_is_one_program_which_its_text_gives_back() -> None:
    for seed in _SEEDS:
        drawn = draw_program(seed)
        assert from_json(to_json(drawn)) == drawn == draw_program(seed)
        assert all(name in describe(drawn) for name in (drawn.strategy, *drawn.blocks))


def test_smaller_programs_end_at_the_smallest_one() -> None:
    least = Program(3, form="list", batches=2, period=9)
    assert list(smaller(least)) == []
    for seed in _SEEDS:
        drawn = draw_program(seed)
        assert all(each != drawn and each.section.keys() == drawn.section.keys() for each in smaller(drawn))


def _outcome(loss: float = 1.0, value: float = 2.0) -> Outcome:
    return Outcome([loss], [0.5], {"weight": torch.tensor([value])}, [0.1])


def test_outcomes_are_equal_up_to_rounding() -> None:
    reference = _outcome()
    assert judge([Answer("done", value=_outcome(1 + 1e-12))] * 2, reference).kind is Kind.EQUAL
    assert judge([Answer("done", value=_outcome(1 + 1e-12))], reference, is_exact=True).kind is Kind.SILENT


def test_a_difference_on_one_rank_is_silent() -> None:
    wrong = judge([Answer("done", value=_outcome()), Answer("done", value=_outcome(value=2.1))], _outcome())
    assert wrong.kind is Kind.SILENT
    assert wrong.text == "1 of 1 tensors: weight 5.0e-02"
    assert judge([Answer("done", value=_outcome(float("nan")))], _outcome()).kind is Kind.SILENT


def test_a_refusal_is_one_line() -> None:
    assert judge([Answer("refused", "a: b"), Answer("hang")], _outcome()).kind is Kind.REFUSED
    assert judge([Answer("refused", "a: b\nc")], _outcome()).kind is Kind.ERROR


def test_errors_and_hangs_are_faults_where_plain_torch_trains() -> None:
    assert judge([Answer("error", "traceback"), Answer("hang")], _outcome()).kind is Kind.ERROR
    assert judge([Answer("done", value=_outcome()), Answer("hang")], _outcome()).kind is Kind.HANG
    assert judge([Answer("error", "traceback")], None).kind is Kind.UNFIT
    assert judge([Answer("done", value=_outcome())], _outcome(float("inf"))).kind is Kind.UNFIT
    assert draw.draw_program(1) != draw.draw_program(2)
