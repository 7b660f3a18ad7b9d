"""The decision of `parallelism: auto`: what an earlier attempt changes, rounded rates, shared memory, and the section
that the chosen strategy gets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from gangline.config.optimization import Optimizations
from gangline.config.parallelism import Parallelism, parse_parallelism
from gangline.config.strategy_choice import MOST_ROWS, CandidateRow, StrategyChoice, parse_choice, table_lines
from gangline.errors import GanglineError
from gangline.pytorch.plan.decision import (
    Decision,
    decide,
    explain_failure,
    groups_by_machine,
    rate_of,
    recomputations_of,
    record_of,
    round_rate,
    settled_section,
    slot_share,
    work_of,
)
from gangline.pytorch.plan.memory import Memory
from gangline.pytorch.plan.model_size import ModelSize, UnitSize
from gangline.pytorch.plan.rule import Candidate, Work
from gangline.pytorch.plan.step_time import GIB, Place

_MODEL = ModelSize(round(0.35e9), 0, activation_bytes=2e9)
# Slots that exchange over gloo, where zero1 sends no more bytes than zero2.
# CPUs, which copy more slowly than they are linked here.
_PLACE = Place(4, 4, 16 * GIB, reduces_whole=True, copy_rate=2e9)
_WORK = Work()


def _record(decision: Decision, *failed: str, place: Place = _PLACE) -> StrategyChoice:
    return replace(record_of(decision, place, ()), out_of_memory=failed)


def _first() -> Decision:
    return decide([_MODEL], _WORK, _PLACE, None)


def _refusals(decision: Decision) -> dict[str, str]:
    return {candidate.name: candidate.refusal for candidate in decision.candidates}


def _choice(decision: Decision) -> str | None:
    return decision.chosen.name if decision.chosen else None


def test_the_first_attempt_takes_the_fastest_that_fits() -> None:
    assert (_choice(_first()), _first().is_kept, _first().out_of_memory) == ("ddp", False, ())


def test_an_attempt_on_as_many_slots_keeps_the_choice_though_another_would_be_faster() -> None:
    earlier = replace(_record(_first()), choice="zero3")
    decision = decide([_MODEL], _WORK, _PLACE, earlier)
    assert (_choice(decision), decision.is_kept) == ("zero3", True)


def test_another_number_of_slots_is_computed_anew() -> None:
    earlier = replace(_record(_first(), "ddp"), choice="zero3", slots=2)
    decision = decide([_MODEL], _WORK, _PLACE, earlier)
    assert (_choice(decision), decision.is_kept, decision.out_of_memory) == ("ddp", False, ())


@pytest.mark.parametrize("choice", ["hsdp", "pipeline (stages 9)"])
def test_a_choice_that_cannot_run_any_more_is_not_kept(choice: str) -> None:
    """hsdp is refused on one machine; the other is no candidate of this model."""
    assert _choice(decide([_MODEL], _WORK, _PLACE, replace(_record(_first()), choice=choice))) == "ddp"


def test_a_choice_that_does_not_fit_smaller_slots_is_not_kept() -> None:
    place = replace(_PLACE, memory_bytes=7 * GIB)
    assert _choice(decide([_MODEL], _WORK, place, _record(_first()))) == "zero1"


def test_after_out_of_memory_the_next_choice_needs_less_and_is_the_fastest_of_those() -> None:
    decision = decide([_MODEL], _WORK, _PLACE, _record(_first(), "ddp"))
    assert (_choice(decision), decision.is_kept, decision.out_of_memory) == ("zero1", False, ("ddp",))
    assert _refusals(decision)["ddp"] == "ran out of memory in an earlier attempt"


def test_candidates_that_need_no_less_than_the_smallest_that_failed_are_refused() -> None:
    sizes = {each.name: each.memory.total for each in _first().candidates if each.memory is not None}
    assert sizes["zero3"] < sizes["zero2"] < sizes["zero1"]
    decision = decide([_MODEL], _WORK, _PLACE, _record(_first(), "ddp", "zero2"))
    assert _choice(decision) == "zero3"
    assert "no less than zero2, which ran out of memory" in _refusals(decision)["zero1"]


def test_a_failed_candidate_that_is_no_candidate_any_more_still_bounds_the_next() -> None:
    failed = CandidateRow("zero9", "zero9", bytes={"total": 1})
    earlier = replace(_record(_first(), "zero9"), rows=(failed,), choice="zero9")
    decision = decide([_MODEL], _WORK, _PLACE, earlier)
    assert decision.chosen is None
    assert "no less than zero9" in _refusals(decision)["zero3"]


def test_a_record_of_the_step_down_keeps_its_choice_at_the_next_restart() -> None:
    second = decide([_MODEL], _WORK, _PLACE, _record(_first(), "ddp"))
    third = decide([_MODEL], _WORK, _PLACE, parse_choice(record_of(second, _PLACE, ()).to_json()))
    assert (_choice(third), third.is_kept, third.out_of_memory) == ("zero1", True, ("ddp",))


def test_nothing_is_left() -> None:
    names = ("ddp", "zero1", "zero2", "zero3")
    decision = decide([_MODEL], _WORK, _PLACE, _record(_first(), *names))
    assert decision.chosen is None
    assert explain_failure(decision, [_MODEL], _WORK, _PLACE).message == (
        "parallelism: ddp, zero1, zero2, zero3 ran out of memory on 4 slots, and no strategy that needs less fits; use "
        "a smaller batch, more slots, or slots with more memory"
    )
    assert table_lines(record_of(decision, _PLACE, ()))[0].startswith("parallelism: auto found no strategy for 4 slots")


def test_nothing_fits_names_the_smallest_number_of_slots() -> None:
    place = replace(_PLACE, slots=1, slots_per_machine=1, memory_bytes=3 * GIB)
    decision = decide([ModelSize(round(0.2e9), 0)], _WORK, place, None)
    error = explain_failure(decision, [ModelSize(round(0.2e9), 0)], _WORK, place)
    assert (error.code, decision.chosen) == ("parallelism.auto", None)
    assert error.message.endswith("none needs 2.98 GiB; 2 such slots would do")


@pytest.mark.parametrize(
    ("chosen", "written", "section"),
    [
        (("ddp", {}), {"static_graph": True, "blocks": ["B"]}, {"strategy": "ddp", "static_graph": True}),
        (("zero3", {}), {"static_graph": True, "blocks": ["B"]}, {"strategy": "zero3", "blocks": ["B"]}),
        (("none", {}), {"stages": 2}, {"strategy": "none"}),
        (
            ("pipeline", {"stages": 2, "microbatches": 8}),
            {"schedule": "gpipe", "split": "time", "find_unused_parameters": False},
            {"strategy": "pipeline", "stages": 2, "schedule": "GPipe", "split": "time"},
        ),
        (("pipeline", {"stages": 4}), {"microbatches": 8}, {"strategy": "pipeline", "stages": 4, "microbatches": 8}),
        (
            ("pipeline", {"stages": 2, "microbatches": 8, "replicas": "zero2"}),
            {},
            {"strategy": "pipeline", "stages": 2, "replicas": "zero2"},
        ),
    ],
)
def test_the_chosen_strategy_gets_the_options_that_it_knows(
    chosen: tuple[str, dict[str, int]], written: dict[str, Any], section: dict[str, Any]
) -> None:
    row = CandidateRow(chosen[0], chosen[0], chosen[1])
    settled = settled_section(row, parse_parallelism({"strategy": "auto", **written}))
    assert settled == section
    assert parse_parallelism(settled).strategy == chosen[0]


_UNITS = tuple(UnitSize(str(index), 1000) for index in range(8))


def _pipelines(work: Work, slots: int = 4) -> dict[str, str]:
    decision = decide([ModelSize(8000, 1000, units=_UNITS)], work, Place(slots, slots, 16 * GIB), None)
    return {each.name: each.refusal for each in decision.candidates if each.strategy == "pipeline"}


def _work(batch: Any, rounds: int = 1, **written: Any) -> Work:
    return work_of(parse_parallelism({"strategy": "auto", **written}), Optimizations(), batch, 1, rounds)


def test_options_of_a_pipeline_restrict_the_candidates() -> None:
    two, four = "pipeline (stages 2 microbatches 8)", "pipeline (stages 4 microbatches 16)"
    divided = "pipeline (stages 2 microbatches 8 replicas zero2)"
    assert list(_pipelines(_work(32))) == [two, divided, four]
    assert list(_pipelines(_work(32, replicas="ddp"))) == [two, four]
    assert list(_pipelines(_work(32, replicas="zero2"))) == [divided, four]
    assert _pipelines(_work(32, stages=2, microbatches=4), slots=2) == {"pipeline (stages 2 microbatches 4)": ""}
    assert list(_pipelines(_work(32, split=["1"]))) == [two, divided]
    assert list(_pipelines(_work(32, split=["1", "2", "3"], schedule="Interleaved1F1B"))) == [two, divided]
    assert _pipelines(_work(32, stages=3)) == {
        "pipeline (stages 3)": "the 4 slots are no multiple of the 3 stages that parallelism sets"
    }
    assert (
        "cannot be cut into 5 equal microbatches"
        in _pipelines(_work(32, stages=4, microbatches=5))["pipeline (stages 4)"]
    )


def test_options_restrict_nothing_where_the_strategy_is_named() -> None:
    section = Parallelism(strategy="pipeline", stages=2)
    assert work_of(section, Optimizations(), 32, 1) == Work(32)


def test_fewer_slots_train_their_rounds_one_after_another() -> None:
    assert (_work(64).records, _work(64, rounds=2).records, _work(None).records) == (64, 32, None)


def test_rates_are_rounded_so_that_noise_seldom_matters() -> None:
    assert [round_rate(2**30 * noise) for noise in (0.86, 1.0, 1.17)] == [2**30] * 3
    assert round_rate(2**7.5) == pytest.approx(2**7.5)
    assert rate_of(2**30, 2, 7.0) == 2**30
    assert rate_of(2**30, 4, 7.0) == pytest.approx(2**30.5)
    assert [rate_of(rate, 2, 7.0) for rate in (0.0, math.inf, math.nan)] == [7.0] * 3


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        ([(0, {"machine": 800})] * 2, 400),
        ([(0, {"machine": 800, "a": 100}), (0, {"machine": 800, "b": 200})], 100),
        ([(0, {"machine": 800, "a": 100})] * 2, 50),
        ([(0, {"machine": 800}), (1, {"machine": 600})], 600),
        ([(0, {"cuda:0": 80}), (0, {"cuda:1": 40})], 40),
        ([(0, {"cuda:0": 80})] * 2, 40),
        ([(0, {"machine": 800}), (0, {})], None),
    ],
)
def test_a_slot_has_its_share_of_each_limit(limits: list[tuple[int, dict[str, int]]], share: float | None) -> None:
    assert slot_share(limits) == share


def test_ranks_by_machine() -> None:
    assert groups_by_machine([0, 0, 1, 1]) == [[0, 1], [2, 3]]


def test_recomputation_is_chosen_where_activations_do_not_fit() -> None:
    """20 x 10^9 bytes of activations, or 2 with the blocks computed again; everything else fits."""
    plain = ModelSize(10**8, 0, activation_bytes=20e9, forward_flops=1e12)
    again = replace(plain, activation_bytes=2e9, recomputation="blocks")
    decision = decide([plain, again], _WORK, _PLACE, None)
    assert _choice(decision) == "ddp (recompute blocks)"
    record = record_of(decision, replace(_PLACE, broadcast_rate=5e9), ())
    assert record.broadcast_rate == 5e9
    row = record.chosen
    assert (row.strategy, row.activation_checkpointing) == ("ddp", "blocks")
    section = parse_parallelism({"strategy": "auto", "blocks": ["Layer"]})
    assert settled_section(row, section) == {
        "strategy": "ddp",
        "activation_checkpointing": "blocks",
        "blocks": ["Layer"],
    }
    assert len({each.name for each in decision.candidates}) == len(decision.candidates)


def test_recomputation_costs_a_forward_pass_so_it_is_not_chosen_without_need() -> None:
    plain = ModelSize(10**8, 0, activation_bytes=2e9, forward_flops=1e12)
    decision = decide([plain, replace(plain, activation_bytes=1e9, recomputation="full")], _WORK, _PLACE, None)
    assert _choice(decision) == "ddp"
    seconds = {each.name: each.seconds for each in decision.candidates}
    assert seconds["ddp (recompute full)"] > seconds["ddp"]


def test_no_recomputation_with_a_schedule_that_cannot() -> None:
    work = _work(32, schedule="ZBVZeroBubble")
    model = ModelSize(8000, 1000, units=_UNITS, recomputation="blocks")
    decision = decide([replace(model, recomputation="none"), model], work, _PLACE, None)
    pipelines = [each for each in decision.candidates if each.strategy == "pipeline" and not each.refusal]
    assert pipelines
    assert {each.recomputation for each in pipelines} == {"none"}


def test_a_record_of_a_long_table_can_be_read_again() -> None:
    """It has the fastest rows, the choice, and those that ran out of memory, in the order of the table."""
    memory = Memory(1e9, 1e9, 2e9, 1e9, 1e9)
    rows = tuple(
        Candidate("pipeline", (("stages", 400 - place), ("microbatches", 9999), ("replicas", "zero2")), memory, place)
        for place in range(300)
    )
    failed = replace(rows[299], refusal="ran out of memory in an earlier attempt")
    decision = Decision((*rows[:299], failed), rows[200], (failed.name,))
    parsed = parse_choice(record_of(decision, _PLACE, ("measured",)).to_json())
    assert parsed.choice == rows[200].name
    assert [row.name for row in parsed.rows] == [row.name for row in (*rows[: MOST_ROWS - 2], rows[200], failed)]
    assert parsed.notes == ("measured", f"the table has {300 - MOST_ROWS} further rows, see gangline plan")


def test_the_longest_record_can_be_read_again() -> None:
    """Each row that fits no more says why, with the longest name twice."""
    memory = Memory(*(1.23456789e14 for _ in range(5)))
    longest = Candidate(
        "pipeline",
        (("stages", 1000), ("microbatches", 10**6), ("replicas", "zero2")),
        memory,
        12345.678901234567,
        recomputation="blocks",
    )
    refusal = f"needs 574950.53 GiB, no less than {longest.name}, which ran out of memory"
    rows = [
        replace(longest, options=(("stages", 1000 + place), *longest.options[1:]), refusal=refusal if place else "")
        for place in range(300)
    ]
    parsed = parse_choice(record_of(Decision(tuple(rows), rows[0]), _PLACE, ("x" * 200,) * 3).to_json())
    assert len(parsed.rows) == MOST_ROWS


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (None, ("none", "blocks", "full")),
        ("auto", ("none", "blocks", "full")),
        ("none", ("none",)),
        ("full", ("full",)),
    ],
)
def test_a_configured_recomputation_is_the_only_one(value: str | None, kinds: tuple[str, ...]) -> None:
    written = {} if value is None else {"activation_checkpointing": value}
    assert recomputations_of(parse_parallelism({"strategy": "auto", **written})) == kinds


def test_auto_recomputation_belongs_to_auto() -> None:
    with pytest.raises(GanglineError, match="auto belongs to the strategy auto, but the strategy is ddp"):
        parse_parallelism({"strategy": "ddp", "activation_checkpointing": "auto"})


def test_a_strategy_that_has_refused_the_trial_is_refused_with_its_line_on_any_number_of_slots() -> None:
    earlier = replace(_record(_first()), refused={"ddp": "no ddp"})
    for slots in (4, 2):
        place = replace(_PLACE, slots=slots, slots_per_machine=slots)
        decision = decide([_MODEL, replace(_MODEL, recomputation="blocks")], _WORK, place, earlier)
        assert (_choice(decision), decision.is_kept) == ("zero1", False)
        assert {each.name: each.refusal for each in decision.candidates if each.strategy == "ddp"} == {"ddp": "no ddp"}
        record = record_of(decision, place, ())
        assert record.refused == {"ddp": "no ddp"}
        # A later attempt keeps the new choice and the refusals.
        later = decide([_MODEL], _WORK, place, parse_choice(record.to_json()))
        assert (_choice(later), later.is_kept, later.refused) == ("zero1", True, {"ddp": "no ddp"})


def test_all_pipelines_are_refused_together() -> None:
    model = ModelSize(8000, 1000, units=_UNITS)
    earlier = replace(record_of(decide([model], _WORK, _PLACE), _PLACE, ()), refused={"pipeline": "calls it twice"})
    decision = decide([model], _WORK, _PLACE, earlier)
    assert [each.refusal for each in decision.candidates if each.strategy == "pipeline"] == ["calls it twice"]


def test_refusals_and_lack_of_memory_add_up() -> None:
    earlier = replace(_record(_first(), "ddp"), refused={"zero1": "no"})
    decision = decide([_MODEL], _WORK, _PLACE, earlier)
    assert (_choice(decision), decision.out_of_memory, decision.refused) == ("zero2", ("ddp",), {"zero1": "no"})


def test_the_error_without_a_choice_has_the_refusals() -> None:
    earlier = replace(_record(_first()), refused=dict.fromkeys(("ddp", "zero1", "zero2", "zero3"), "no"))
    decision = decide([_MODEL], _WORK, _PLACE, earlier)
    assert decision.chosen is None
    error = explain_failure(decision, [_MODEL], _WORK, _PLACE)
    assert error.code == "parallelism.auto"
    assert "ddp refused the trial in an earlier attempt: no; zero1 refused the trial" in error.message
