"""Trains small random models of transformers, timm, torchvision, diffusers and peft under every strategy, and compares
each with one process of plain PyTorch in double precision.

Prints a table of what works, and the line with which a strategy refuses a model. Models of a library that is not
installed are left out, by name. Dropout is off, as each rank has a stream of random numbers of its own. Differences are
exact, so the machine and its load do not matter. Run it with `python -m benchmarks.architectures`; `--libraries FOLDER`
names a folder in which pip has installed the libraries beside this environment, as `pip install --no-deps --target
FOLDER`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.architecture.catalogue import Architecture, list_architectures, missing_libraries
from benchmarks.architecture.table import WORKS, Row, parse, to_markdown
from benchmarks.architecture.trial import Order, train_alone, train_in_rank
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.random_program.judgment import Kind, judge
from benchmarks.random_program.outcome import Outcome
from benchmarks.warm_gang import Gangs

STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {
    **{name: (2, {"strategy": name}) for name in ("ddp", "zero1", "zero2", "zero3")},
    "hsdp": (4, {"strategy": "hsdp"}),
    "pipeline": (2, {"strategy": "pipeline", "microbatches": 2}),
}
_PAGE = Path(__file__).parent.parent / "docs" / "architectures.md"
_LIMIT_SECONDS = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--libraries", help="a folder with the libraries")
    parser.add_argument("--only", nargs="+", help="names of architectures")
    parser.add_argument("--markdown", action="store_true", help="prints the table as the page has it")
    parser.add_argument("--compare", action="store_true", help=f"compares the result with {_PAGE.name}")
    arguments = parser.parse_args()
    if arguments.libraries:
        sys.path.append(arguments.libraries)
    print(describe_machine())
    torch.set_num_threads(1)
    rows, is_right = [], True
    for row, faults in run_all(_chosen(arguments.only)):
        rows.append(row)
        is_right &= not faults
    if arguments.markdown:
        print(to_markdown(rows, list(STRATEGIES), describe_versions()))
    if arguments.compare:
        is_right &= _is_as_in_page(rows)
    return 0 if is_right else 1


def _chosen(only: Sequence[str] | None) -> list[Architecture]:
    """Returns the architectures to run; prints those whose library is missing."""
    missing = missing_libraries()
    chosen = [each for each in list_architectures() if only is None or each.name in only]
    for library in missing:
        names = ", ".join(each.name for each in chosen if each.library == library)
        if names:
            print(f"{library} is not installed; left out: {names}")
    return [each for each in chosen if each.library not in missing]


def run_all(architectures: Sequence[Architecture]) -> Iterator[tuple[Row, int]]:
    """Yields the row of each architecture, which is printed, and its number of faults."""
    gangs = Gangs(train_in_rank, ["benchmarks.architecture.trial"])
    try:
        for architecture in architectures:
            cells: dict[str, str] = {}
            faults = 0
            for name, (ranks, parallelism) in STRATEGIES.items():
                kind, cells[name] = _run(gangs, Order(architecture.name, ranks, parallelism))
                faults += kind not in (Kind.EQUAL, Kind.REFUSED)
                print(f"{architecture.name:24} {name:9} {kind}: {cells[name]}", flush=True)
            yield Row(architecture.name, architecture.library, cells), faults
    finally:
        gangs.end()


def _run(gangs: Gangs, order: Order) -> tuple[Kind, str]:
    gangs.begin(order.ranks, order)
    reference: Outcome | None = None
    try:
        reference = train_alone(order)
    finally:
        answers = gangs.answers(order.ranks, _LIMIT_SECONDS)
    verdict = judge(answers, reference)
    return verdict.kind, WORKS if verdict.kind is Kind.EQUAL else verdict.text.strip().splitlines()[-1]


def describe_versions() -> str:
    """Returns the versions of the libraries that are installed."""
    names = ["torch", *(each.library for each in list_architectures())]
    versions = {name: importlib.import_module(name).__version__ for name in names if name not in missing_libraries()}
    return "With " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ":"


def _is_as_in_page(rows: Sequence[Row]) -> bool:
    known = parse(_PAGE.read_text())
    is_right = True
    for row in rows:
        for strategy, cell in row.cells.items():
            before = known.get(row.name, {}).get(strategy, "nothing")
            if before != cell:
                is_right = False
                print(f"{_PAGE.name}: {row.name} with {strategy} is: {cell}; the page has: {before}")
    return is_right


if __name__ == "__main__":
    run_benchmark(main)
