"""Compares the memory that `gangline plan` predicts with the memory that every strategy takes, on 1, 2 and 4 ranks.

Kept: the bytes of parameters, gradients and optimizer state of each rank after a step, each storage once, beside the
formulas of gangline/pytorch/plan (memory.py, stages.py), with AdamW and SGD, fp32 and bf16. Peak: the most bytes of a
later step, beside the plan's prediction, for five models in fp32 and under bf16 autocast, on 1 and 2 ranks also with
recomputation. On the CPU live tensors are counted as operations return them, without the working memory inside of
kernels; with --device cuda torch's allocator counts, and each rank needs a GPU. There the working memory of cuBLAS and
cuDNN is as large as these models, so give --batch 1024 as well. The peer of a prediction is the sum that is usual on
paper: 16 bytes for each parameter, divided as the strategy divides, and the tensors that the forward pass keeps. Byte
figures do not depend on the machine's load. Run it with `python -m benchmarks.parallel_memory`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark, torchrun
from benchmarks.sized import SizedTrial
from gangline.pytorch.plan.measure import Measured, measure_trial
from gangline.pytorch.plan.rule import Candidate, Work, list_candidates
from gangline.pytorch.plan.step_time import Place

WORKLOAD = Path(__file__).parent / "sized.py"
# Bars: differences of a prediction from what was counted.
KEPT_BAR, PEAK_BAR = 0.05, 0.15
MODELS, OPTIMIZERS = ("gpt", "cnn", "recommender", "encoder", "recurrent"), ("adamw", "momentum", "sgd")
AUTOCAST = "bf16 autocast"
BATCH = 64
# Names of candidates, without the number of microbatches, by the number of ranks.
STRATEGIES: dict[int, dict[str, Any]] = {
    1: {"none": "none"},
    2: {name: name for name in ("ddp", "zero1", "zero2", "zero3")} | {"pipeline (stages 2)": "pipeline"},
    4: {name: name for name in ("ddp", "zero1", "zero2", "zero3", "hsdp")}
    | {
        "pipeline (stages 4)": "pipeline",
        "pipeline (stages 2)": {"strategy": "pipeline", "stages": 2},
        "pipeline (stages 2 replicas zero2)": {"strategy": "pipeline", "stages": 2, "replicas": "zero2"},
    },
}


@dataclass(frozen=True, slots=True)
class Case:
    """A form of spreading."""

    name: str  # name of the plan's row, without the number of microbatches and the recomputation
    parallelism: Any  # section of this name
    recomputation: str = "none"

    @property
    def label(self) -> str:
        return self.name if self.recomputation == "none" else f"{self.name} recompute {self.recomputation}"


CASES = {size: [Case(name, section) for name, section in rows.items()] for size, rows in STRATEGIES.items()}
# On 1 and 2 ranks some strategies recompute, too.
RECOMPUTING = {1: {"none": "none"}, 2: {"ddp": "ddp", "zero3": "zero3", "pipeline (stages 2)": "pipeline"}, 4: {}}
CASES_OF_PEAKS = {
    size: cases
    + [
        Case(name, {"strategy": strategy, "activation_checkpointing": kind}, kind)
        for name, strategy in RECOMPUTING[size].items()
        for kind in ("blocks", "full")
    ]
    for size, cases in CASES.items()
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", choices=("kept", "peak"))
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--ranks", type=int, nargs="+", choices=sorted(STRATEGIES), default=sorted(STRATEGIES))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    arguments = parser.parse_args()
    print(describe_machine())
    worst: dict[str, list[float]] = {}
    for number in range(arguments.runs):
        with tempfile.TemporaryDirectory(prefix="gl-memory-") as folder:
            place = Run(Path(folder), arguments, is_printed=number == 0)
            if arguments.only != "peak":
                worst.setdefault("kept", []).append(max(place.compare_kept()))
            if arguments.only != "kept":
                worst.setdefault("peak", []).append(max(place.compare_peaks()))
    is_good = True
    for name, bar in (("kept", KEPT_BAR), ("peak", PEAK_BAR)):
        if name in worst:
            is_good &= max(worst[name]) <= bar
            runs = ", ".join(f"{value:.2%}" for value in worst[name])
            print(f"largest difference of a prediction, {name}, by run: {runs} (bar {bar:.0%})")
    print("all within their bounds" if is_good else "NOT within their bounds")
    if not is_good:
        raise SystemExit(1)


class Run:
    """One run of all cases. is_printed: whether each line is printed."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, is_printed: bool) -> None:
        self._folder, self._is_printed = folder, is_printed
        self._device, self._batch = arguments.device, arguments.batch
        self._ranks, self._models = arguments.ranks, arguments.models

    def compare_kept(self) -> Iterator[float]:
        """Yields the difference of each strategy's bytes for a parameter."""
        self._print("bytes for a parameter after a step, parameters + gradients + optimizer: counted, by the formula")
        # AMP computes in bf16 and keeps fp32; half keeps bf16.
        for optimizer, kind in (*product(OPTIMIZERS, ("fp32",)), ("adamw", "bf16 weights"), ("adamw", AUTOCAST)):
            for size in self._ranks:
                cases = CASES[size]
                hparams = self._hparams("gpt", optimizer, kind == "bf16 weights")
                for case, ranks in zip(cases, self._measure(size, cases, hparams, kind), strict=True):
                    measured, row = self._predict(size, hparams, case, kind)
                    assert row.memory is not None
                    expected = [row.memory.parameters, row.memory.gradients, row.memory.optimizer]
                    # The rank that keeps most, as a row of the plan is the slot that needs most.
                    most = max(ranks, key=lambda kept: sum(map(float, _sizes(kept))))
                    counts, numel = _sizes(most), measured.size.parameters
                    self._print(
                        f"  {size} x {case.label:34} {optimizer:9} {kind:14} {_sum_of(counts, numel)}   "
                        f"{_sum_of(expected, numel)}"
                    )
                    yield abs(sum(expected) / sum(counts) - 1)

    def compare_peaks(self) -> Iterator[float]:
        """Yields the difference of each strategy's peak."""
        self._print("peak of a step in MB, AdamW: counted, predicted, difference; on paper, difference")
        for model, kind, size in product(self._models, ("fp32", AUTOCAST), self._ranks):
            cases = CASES_OF_PEAKS[size]
            hparams = self._hparams(model, "adamw", is_half=False)
            for case, ranks in zip(cases, self._measure(size, cases, hparams, kind), strict=True):
                measured, row = self._predict(size, hparams, case, kind)
                assert row.memory is not None
                counted = max(kept["peak"] for kept in ranks)
                paper = _on_paper(measured, row, size, self._batch)
                difference = row.memory.total / counted - 1
                self._print(
                    f"  {model:12} {kind:14} {size} x {case.label:36} {counted / 1e6:8.2f} "
                    f"{row.memory.total / 1e6:8.2f} {difference:+7.1%} {paper / 1e6:8.2f} {paper / counted - 1:+7.1%}"
                )
                yield abs(difference)

    def _hparams(self, model: str, optimizer: str, is_half: bool) -> dict[str, Any]:
        return {"global_batch_size": self._batch, "model": model, "optimizer": optimizer, "is_half": is_half}

    def _predict(self, size: int, hparams: dict[str, Any], case: Case, kind: str) -> tuple[Measured, Candidate]:
        """Returns the measured trial, and the plan's row of a case."""
        measured = measure_trial(
            SizedTrial,
            hparams,
            {"optimizations": _options(kind)},
            size,
            is_gpu=self._device == "cuda",
            recomputation=case.recomputation,
        )
        # hsdp makes two copies of a model on four ranks of one machine, as on two machines.
        rows = list_candidates(measured.size, Work(self._batch), Place(size, max(1, size // 2) if size == 4 else size))
        (row,) = (row for row in rows if row.memory is not None and _short_name(row) == case.name)
        return measured, row

    def _measure(
        self, size: int, cases: Sequence[Case], hparams: dict[str, Any], kind: str
    ) -> list[list[dict[str, int]]]:
        """Returns the bytes of all ranks for each case."""
        options = _options(kind)
        written = [{"parallelism": case.parallelism, "hparams": hparams, "optimizations": options} for case in cases]
        launcher = torchrun(size) if size > 1 else [sys.executable]
        command = [*launcher, str(WORKLOAD), str(self._folder), self._device, json.dumps(written)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        found: list[list[dict[str, int]]] = json.loads((self._folder / "found.json").read_text())
        return found

    def _print(self, line: str) -> None:
        if self._is_printed:
            print(line, flush=True)


def _options(kind: str) -> dict[str, Any]:
    return {"mixed_precision": "bf16"} if kind == AUTOCAST else {}


def _short_name(row: Candidate) -> str:
    words = " ".join(f"{key} {value}" for key, value in row.options if key != "microbatches")
    return f"{row.strategy} ({words})" if words else row.strategy


def _sizes(kept: dict[str, int]) -> list[float]:
    return [kept["parameters"], kept["gradients"], kept["optimizer"]]


def _sum_of(sizes: list[float], numel: int) -> str:
    return " + ".join(f"{size / numel:5.2f}" for size in sizes) + f" = {sum(sizes) / numel:5.2f}"


def _on_paper(measured: Measured, row: Candidate, size: int, batch: int) -> float:
    """Returns 16 bytes for each parameter, divided as the strategy divides, and what the forward pass keeps of this
    slot's records, or of a stage's part of all records in the microbatches that are in flight."""
    numel, kept = measured.size.parameters, measured.size.activation_bytes
    options = dict(row.options)
    if "stages" in options:
        stages, microbatches = int(options["stages"]), int(options["microbatches"])
        replicas = size // stages
        records = batch / replicas / microbatches * stages
        per_parameter = 8 + 8 / replicas if "replicas" in options else 16
        return per_parameter * numel / stages + kept / stages * records
    divided = {"zero1": 8 + 8 / size, "zero2": 4 + 16 / size, "zero3": 16 / size, "hsdp": 32 / size}
    return divided.get(row.strategy, 16) * numel + kept * batch / size


if __name__ == "__main__":
    run_benchmark(main)
