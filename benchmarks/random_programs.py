"""Runs random training programs under all strategies, and compares each with one process of plain PyTorch.

A program has random blocks with state (buffers, attributes, generators, hooks, dropout), random steps before and after
wrap_model (initialising, loading, freezing), an optimizer, a scheduler, clipping and aggregation, with and without
activation checkpointing, in double precision. It is right (losses, validations, parameters and buffers as in one
process), refused with one line, or a fault: torch's own error, a hang, or a silent difference. Where a pipeline draws
random numbers in training, which one process draws in another order, the same pipeline without recomputation is the
reference, bit for bit. Faults are printed with their seed and the smallest program that still shows them. Differences
are exact, so the machine and its load do not matter. Run it with `python -m benchmarks.random_programs --programs 2000
--seed 0`, one program with `--only SEED`, and a printed one with `--program JSON`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Iterator

import torch

from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.random_program.alone import train_alone
from benchmarks.random_program.draw import draw_program
from benchmarks.random_program.judgment import Kind, Verdict, judge
from benchmarks.random_program.outcome import Outcome
from benchmarks.random_program.program import Program, describe, from_json, smaller, to_json
from benchmarks.random_program.trial import train_in_rank
from benchmarks.warm_gang import Answer, Gangs

LIMIT_SECONDS = 100.0
# Programs that are tried to make a fault smaller.
_MOST_SMALLER = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the others follow on it")
    parser.add_argument("--only", type=int, help="runs the program of this seed alone")
    parser.add_argument("--program", help="runs this program alone, in JSON as a fault has it")
    parser.add_argument("--strategy", help="runs the programs of one strategy alone")
    parser.add_argument("--refusals", action="store_true", help="prints each refusal")
    parser.add_argument("--whole", action="store_true", help="makes no fault smaller")
    arguments = parser.parse_args()
    print(describe_machine())
    torch.set_num_threads(1)
    bench = Bench()
    try:
        is_right = run_all(bench, list(_programs(arguments)), arguments)
    finally:
        bench.end()
    return 0 if is_right else 1


def _programs(arguments: argparse.Namespace) -> Iterator[Program]:
    if arguments.program is not None:
        yield from_json(arguments.program)
    elif arguments.only is not None:
        yield draw_program(arguments.only)
    else:
        for seed in range(arguments.seed, arguments.seed + arguments.programs):
            program = draw_program(seed)
            if arguments.strategy in (None, program.strategy):
                yield program


def run_all(bench: Bench, programs: list[Program], arguments: argparse.Namespace) -> bool:
    """Prints each fault and a summary. Returns whether there is no fault."""
    counts: Counter[tuple[str, str]] = Counter()
    seeds: dict[str, list[int]] = {}
    refusals: Counter[str] = Counter()
    began_at = time.monotonic()
    for number, program in enumerate(programs, 1):
        verdict = bench.run(program)
        counts[_row_of(program), verdict.kind] += 1
        if verdict.is_fault:
            seeds.setdefault(verdict.kind, []).append(program.seed)
            _print_fault(bench, program, verdict, is_whole=arguments.whole)
        elif verdict.kind is Kind.REFUSED:
            refusals[_first_words(verdict.text)] += 1
            if arguments.refusals:
                print(f"seed {program.seed} refused: {verdict.text}", flush=True)
        if number % 100 == 0:
            print(f"{number} programs, {time.monotonic() - began_at:.0f} s", flush=True)
    _print_summary(counts, refusals, seeds)
    return not seeds


class Bench:
    """Runs programs in warm gangs, and their reference in this process."""

    def __init__(self) -> None:
        self._gangs = Gangs(train_in_rank, ["benchmarks.random_program.trial"])

    def run(self, program: Program) -> Verdict:
        """Returns the verdict. A fault is looked at again in a gang that has run nothing before."""
        verdict = self._run_once(program)
        if verdict.is_fault:
            self._gangs.renew(program.ranks)
            verdict = self._run_once(program)
        return verdict

    def _run_once(self, program: Program) -> Verdict:
        if program.draws and program.strategy == "pipeline":
            plain = dataclasses.replace(program, recomputation="none")
            (first, *_), reference_verdict = self._train(plain, None)
            if first.value is None:
                return reference_verdict
            return judge(self._train(program, first.value)[0], first.value, is_exact=True)
        self._gangs.begin(program.ranks, program)
        reference = _train_alone(program)
        return judge(self._gangs.answers(program.ranks, LIMIT_SECONDS), reference)

    def _train(self, program: Program, reference: Outcome | None) -> tuple[list[Answer], Verdict]:
        self._gangs.begin(program.ranks, program)
        answers = self._gangs.answers(program.ranks, LIMIT_SECONDS)
        return answers, judge(answers, reference or Outcome())

    def make_smaller(self, program: Program, kind: Kind) -> tuple[Program, Verdict]:
        """Returns the smallest program found with a fault of the same kind."""
        verdict = Verdict(kind)
        tries = 0
        is_smaller = True
        while is_smaller:
            is_smaller = False
            for candidate in smaller(program):
                tries += 1
                if tries > _MOST_SMALLER:
                    return program, verdict
                result = self._run_once(candidate)
                if result.kind is kind:
                    program, verdict, is_smaller = candidate, result, True
                    break
        return program, verdict

    def end(self) -> None:
        self._gangs.end()


def _train_alone(program: Program) -> Outcome | None:
    """Returns None where plain PyTorch refuses the program."""
    try:
        return train_alone(program)
    except (RuntimeError, ValueError, TypeError):
        return None


def _row_of(program: Program) -> str:
    words = [program.strategy, program.parallelism.get("schedule", ""), f"{program.ranks} ranks"]
    return " ".join(word for word in words if word)


def _print_fault(bench: Bench, program: Program, verdict: Verdict, *, is_whole: bool) -> None:
    print(f"seed {program.seed}: {verdict.kind}: {_short(verdict)}")
    if not is_whole:
        program, least = bench.make_smaller(program, verdict.kind)
        print(f"  the smallest program found: {_short(least) or 'the same'}")
    print("    " + describe(program).replace("\n", "\n    "))
    print(f"    python -m benchmarks.random_programs --program '{to_json(program)}'", flush=True)


def _short(verdict: Verdict) -> str:
    """Returns the end of a traceback, or a verdict's line."""
    lines = verdict.text.strip().splitlines()
    places = [line.strip() for line in lines if line.startswith("  File")]
    return " | ".join([*lines[-1:], *places[-2:]])


def _first_words(text: str) -> str:
    return " ".join(text.split()[:9])


def _print_summary(counts: Counter[tuple[str, str]], refusals: Counter[str], seeds: dict[str, list[int]]) -> None:
    rows = sorted({row for row, _ in counts})
    width = max(map(len, rows), default=0)
    print(f"{'':{width}} " + " ".join(f"{kind:>17}" for kind in Kind))
    for row in [*rows, "all"]:
        numbers = [
            sum(count for (name, of), count in counts.items() if of == kind and row in (name, "all")) for kind in Kind
        ]
        print(f"{row:{width}} " + " ".join(f"{number:17}" for number in numbers))
    for text, count in refusals.most_common(40):
        print(f"{count:5} refused: {text} ...")
    for kind, numbers in seeds.items():
        print(f"{kind}, seeds: {', '.join(map(str, numbers))}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run_benchmark(main)
