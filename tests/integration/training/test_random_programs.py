"""A fixed part of benchmarks.random_programs: random modules with state, and random orders of wrapping, initialising,
loading and freezing, train under each strategy as in one process of plain PyTorch, or are refused in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from benchmarks.random_program.alone import train_alone
from benchmarks.random_program.draw import draw_program
from benchmarks.random_program.judgment import Kind, Verdict, judge
from benchmarks.random_program.program import Program, from_json
from benchmarks.random_programs import Bench
from benchmarks.warm_gang import Answer

_SEEDS = range(40)
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
}


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.end()


def test_random_programs_train_as_in_one_process_or_are_refused(bench: Bench) -> None:
    verdicts = {seed: bench.run(draw_program(seed)) for seed in _SEEDS}
    assert {seed: verdict for seed, verdict in verdicts.items() if verdict.is_fault} == {}
    assert Counter(verdict.kind for verdict in verdicts.values())[Kind.EQUAL] >= len(verdicts) // 2


@pytest.mark.parametrize("text", _MENDED.values(), ids=_MENDED.keys())
def test_mended_programs_stay_right(text: str, bench: Bench) -> None:
    assert bench.run(from_json(text)) == Verdict(Kind.EQUAL)


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
