"""A fixed part of benchmarks.random_programs: random modules with state, and random orders of wrapping, initialising,
loading and freezing, train as in one process of plain PyTorch, or are refused in one line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.random_program.alone import train_alone
from benchmarks.random_program.draw import draw_program
from benchmarks.random_program.judgment import Kind, Verdict, judge
from benchmarks.random_program.program import Program, from_json
from benchmarks.random_programs import Bench
from benchmarks.warm_gang import Answer

# Seeds of the programs, with every strategy. `python -m benchmarks.random_programs --only SEED` prints one of them.
_RIGHT = (3, 7, 8, 34, 39, 41, 44, 51, 55, 65, 66, 73, 115, 158)
_REFUSED = {
    26: "parallelism.model: pipeline cannot cut Net, whose forward changes blocks.0.shared.calls, which blocks.0 and "
    "blocks.1 have in common, and each stage has a copy of its own; give each of them its own, put them into one stage "
    "with parallelism.split, or use ddp",
    283: "parallelism.model: pipeline cannot cut Net, whose forward changes blocks.0.calls in a hook of blocks.0, "
    "which each of the parts on a rank would do; change it inside of a unit, or use a schedule with one part on each "
    "rank, as 1F1B",
    358: "parallelism.model: pipeline cannot cut Net, whose forward changes number between its units, which each of "
    "the parts on a rank would do; change it inside of a unit, or use a schedule with one part on each rank, as 1F1B",
    77: "parallelism.model: pipeline cannot cut Net, whose forward changes its buffer calls, which each of the parts "
    "on a rank would do; change it inside of a unit, or use a schedule with one part on each rank, as 1F1B",
}
# Programs that have shown a fault, in the words of --program.
_MENDED = {
    "zero1 resumes the sums that Adagrad makes in its constructor": (
        '{"seed": 1, "parallelism": {"strategy": "zero1"}, "optimizer": "adagrad", "saved": 2}'
    ),
    "a pipeline saves the sums of its own parameters": (
        '{"seed": 1, "parallelism": {"strategy": "pipeline", "stages": 2, "microbatches": 2}, "optimizer": "adagrad", '
        '"saved": 2}'
    ),
    "a whole tensor is copied into divided parameters": (
        '{"seed": 1, "parallelism": {"strategy": "zero3"}, "after": [["draw_whole", -1]], "batches": 2}'
    ),
    "a pipeline draws nothing from the trial's generators": (
        '{"seed": 1, "parallelism": {"strategy": "pipeline", "stages": 2, "microbatches": 2}, "after": [["look", 3], '
        '["xavier", -1]], "events": [[1, ["own_jitter", -1]]]}'
    ),
    "a slot without gradients of an optimizer clips none by their value": (
        '{"seed": 1, "parallelism": {"strategy": "pipeline", "stages": 2, "microbatches": 2}, "has_two": true, '
        '"clip": "value", "batches": 2}'
    ),
}

# Each rank multiplies the parameters by a number of its own, behind the first epoch's last report.
_HIDDEN = {
    "zero1": '{"seed": 1, "parallelism": {"strategy": "zero1"}, "epoch": 1, "events": [[1, ["own_scale", -1]]]}',
    "replicas of a pipeline": (
        '{"seed": 1, "ranks": 4, "parallelism": {"strategy": "pipeline", "stages": 2, "replicas": "zero2", '
        '"microbatches": 2}, "epoch": 1, "events": [[1, ["own_scale", -1]]]}'
    ),
}


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.end()


@pytest.mark.parametrize("seed", _RIGHT)
def test_a_random_program_trains_as_in_one_process(seed: int, bench: Bench) -> None:
    assert bench.run(draw_program(seed)) == Verdict(Kind.EQUAL)


@pytest.mark.parametrize("seed", _REFUSED)
def test_a_random_program_is_refused_in_one_line(seed: int, bench: Bench) -> None:
    assert bench.run(draw_program(seed)) == Verdict(Kind.REFUSED, _REFUSED[seed])


@pytest.mark.parametrize("text", _MENDED.values(), ids=_MENDED.keys())
def test_mended_programs_stay_right(text: str, bench: Bench) -> None:
    assert bench.run(from_json(text)) == Verdict(Kind.EQUAL)


@pytest.mark.parametrize("text", _HIDDEN.values(), ids=_HIDDEN.keys())
def test_changes_that_differ_from_rank_to_rank_end_before_a_step_hides_them(text: str, bench: Bench) -> None:
    verdict = bench.run(from_json(text))
    assert verdict.kind is Kind.REFUSED
    assert verdict.text.startswith("training.drift: Net.")
    assert ", whose value all ranks get in a step; change parameters in the same way on all ranks" in verdict.text


def test_another_program_differs() -> None:
    """The comparison sees one change in any part of a program."""
    program = Program(1)
    reference = train_alone(program)
    assert judge([Answer("done", value=train_alone(program))], reference).kind is Kind.EQUAL
    for change in (
        Program(1, blocks=("Plain", "CounterBuffer", "Plain", "Plain")),
        Program(1, after=(("halve", 1),)),
        Program(1, optimizer="momentum"),
        Program(1, events=((1, ("freeze", 0)),)),
        Program(1, scheduler="step"),
        Program(1, clip="norm"),
        Program(1, is_ragged=True),
    ):
        assert judge([Answer("done", value=train_alone(change))], reference).kind is Kind.SILENT, change
