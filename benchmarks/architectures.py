"""Trains small models of public libraries under every strategy, and compares each with one process of plain PyTorch.

The libraries are transformers, timm, torchvision, diffusers and peft; rows of missing ones are not run. All weights are
random. Models are in double precision, or in single precision where they allow no other. Dropout is off. Differences
are exact, so the machine and its load do not matter.

A cell is equal (with the largest difference of losses, validation, parameters and buffers), refused with one line, or a
fault: torch's own error, a hang, or a silent difference. Where the line names an option that helps, the cell runs once
more with it.

Run it with `python -m benchmarks.architectures --libraries FOLDER`, and parts of it with `--only NAME` and `--strategy
NAME`. `--write` writes the results into results.json and docs/architectures.md. Without it, the benchmark names the
cells that differ from results.json, and exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.architecture import library
from benchmarks.architecture.catalogue import list_architectures
from benchmarks.architecture.model import Architecture
from benchmarks.architecture.table import (
    EQUAL,
    MISSING,
    REFUSED,
    Cell,
    Results,
    Row,
    from_json,
    merge,
    replace_part,
    to_json,
    to_page,
)
from benchmarks.architecture.trial import Order, train_alone, train_in_rank
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.random_program.judgment import Kind, judge, largest_difference
from benchmarks.random_program.outcome import Outcome
from benchmarks.warm_gang import Gangs

_PIPELINE = {"strategy": "pipeline", "stages": 2, "microbatches": 2}
# Ranks and the section, by the name in the table.
STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {
    **{name: (2, {"strategy": name}) for name in ("ddp", "zero1", "zero2", "zero3")},
    "hsdp": (4, {"strategy": "hsdp"}),
    "pipeline 1F1B": (2, _PIPELINE),
    "pipeline Interleaved1F1B": (2, {**_PIPELINE, "schedule": "Interleaved1F1B"}),
}
RESULTS = Path(__file__).parent / "architecture" / "results.json"
PAGE = Path(__file__).parents[1] / "docs" / "architectures.md"
LIMIT_SECONDS = 200.0
# Options of the section that a line of refusal may name, by its words.
_OPTIONS: dict[str, tuple[str, Any]] = {
    "find_unused_parameters: true": ("find_unused_parameters", True),
    "set parallelism.blocks to []": ("blocks", []),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", help="a folder with the libraries, beside this environment's packages")
    parser.add_argument("--only", nargs="+", help="names of architectures")
    parser.add_argument("--strategy", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--write", action="store_true", help="writes the results of what runs")
    arguments = parser.parse_args()
    print(describe_machine())
    if arguments.libraries:
        library.add_folder(arguments.libraries)
    if library.missing_libraries():
        print(library.describe_missing())
    torch.set_num_threads(1)
    rows = run_all(arguments.only, arguments.strategy, arguments.libraries or "")
    results = Results(library.versions(), rows)
    print(to_page(results))
    faults = sum(cell.is_fault for row in rows for cell in row.cells.values())
    print(f"{len(rows)} architectures, {sum(len(row.cells) for row in rows)} cells, {faults} faults")
    is_other = _write(results) if arguments.write else _print_changes(rows)
    return 1 if faults or is_other else 0


def run_all(only: Sequence[str] | None, strategies: Sequence[str], folder: str) -> list[Row]:
    bench = Bench(folder)
    rows = []
    try:
        for architecture in list_architectures():
            if only is None or architecture.name in only:
                rows.append(bench.run(architecture, strategies))
    finally:
        bench.end()
    return rows


class Bench:
    """Runs architectures in warm gangs, and their reference in this process. folder: of the libraries, or empty."""

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        self._missing = library.missing_libraries()
        self._train_alone = lru_cache(maxsize=8)(_try_alone)
        self._gangs = Gangs(train_in_rank, ["benchmarks.architecture.preload", "benchmarks.architecture.trial"])

    def run(self, architecture: Architecture, strategies: Sequence[str]) -> Row:
        """Returns the row, which it prints cell by cell."""
        precision = "fp64" if architecture.number_type is torch.float64 else "fp32"
        cells: dict[str, Cell] = {}
        for name in strategies:
            cell = cells[name] = self.run_cell(architecture, *STRATEGIES[name])
            amount = f" {cell.difference:.0e}" if cell.kind == EQUAL else ""
            print(f"{architecture.name:28} {name:24} {cell.kind}{amount} {cell.text}", flush=True)
            if cell.way_out:
                print(f"{'':28} {'':24} {EQUAL} with {cell.way_out}", flush=True)
        return Row(architecture.name, architecture.family, architecture.library, precision, cells)

    def run_cell(self, architecture: Architecture, ranks: int, section: Mapping[str, Any]) -> Cell:
        """Returns the cell. A fault is looked at again in a gang that has run nothing before."""
        if architecture.library in self._missing:
            return Cell(MISSING)
        cell = self._run_once(architecture, ranks, section)
        if cell.is_fault:
            self._gangs.renew(ranks)
            cell = self._run_once(architecture, ranks, section)
        for words, (option, value) in _OPTIONS.items() if cell.kind == REFUSED else ():
            if words in cell.text:
                again = self._run_once(architecture, ranks, {**section, option: value})
                if again.kind == EQUAL:
                    return Cell(REFUSED, again.difference, cell.text, f"{option}: {json.dumps(value)}")
        return cell

    def _run_once(self, architecture: Architecture, ranks: int, section: Mapping[str, Any]) -> Cell:
        order = Order(architecture.name, ranks, dict(section), self._folder)
        self._gangs.begin(ranks, order)
        reference = self._train_alone(order.name, order.replicas, order.microbatches)
        answers = self._gangs.answers(ranks, LIMIT_SECONDS)
        verdict = judge(answers, reference, tolerance=architecture.tolerance)
        if verdict.kind is Kind.EQUAL:
            assert reference is not None
            return Cell(EQUAL, max(largest_difference(answer.value, reference) for answer in answers))
        return Cell(str(verdict.kind), text=verdict.text.strip() or "plain PyTorch does not train it")

    def end(self) -> None:
        self._gangs.end()


def _try_alone(name: str, replicas: int, microbatches: int) -> Outcome | None:
    """Returns None where plain PyTorch does not train the model."""
    try:
        return train_alone(name, replicas, microbatches)
    except (RuntimeError, ValueError, TypeError) as error:
        print(f"{name} alone: {error}", flush=True)
        return None


def _write(results: Results) -> bool:
    """Writes what has run; other cells stay as they are recorded. Returns whether it cannot be written."""
    recorded = from_json(RESULTS.read_text()) if RESULTS.exists() else Results(results.versions, [])
    cells = [cell for row in results.rows for cell in row.cells.values()]
    if results.versions != recorded.versions and len(cells) < len(list_architectures()) * len(STRATEGIES):
        print("nothing is written: the versions are other than recorded, so the whole table has to run")
        return True
    whole = merge(recorded, results, [each.name for each in list_architectures()], list(STRATEGIES))
    if any(cell.kind == MISSING for row in whole.rows for cell in row.cells.values()):
        print("nothing is written: a part of the table has never run")
        return True
    RESULTS.write_text(to_json(whole))
    PAGE.write_text(replace_part(PAGE.read_text(), to_page(whole)))
    print(f"written: {RESULTS.name}, {PAGE.name}")
    return False


def _print_changes(rows: Sequence[Row]) -> bool:
    """Prints the cells that are other than in the recorded results. Returns whether there are any."""
    known = {row.name: row.cells for row in from_json(RESULTS.read_text()).rows}
    is_changed = False
    for row in rows:
        for name, cell in row.cells.items():
            before = known.get(row.name, {}).get(name, Cell(MISSING))
            if cell.kind != MISSING and (cell.kind, cell.way_out) != (before.kind, before.way_out):
                is_changed = True
                print(f"{row.name} with {name}: {cell.kind}; {RESULTS.name} has: {before.kind}")
    return is_changed


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run_benchmark(main)
