"""Ranks send the bytes that the plan counts for each strategy, and keep those of its memory formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.sized import SizedTrial, kept_bytes
from gangline import pytorch
from gangline.pytorch.plan.measure import measure_trial
from gangline.pytorch.plan.rule import Candidate, Work, list_candidates
from gangline.pytorch.plan.step_time import Place
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang

_WHOLE: dict[str, Any] = {name: name for name in ("ddp", "zero1", "zero2", "zero3")}
_STAGES = {"strategy": "pipeline", "stages": 2}
# One replica sends activations alone.
_ALONE = "pipeline (stages 2)"
_CASES: dict[int, dict[str, Any]] = {
    2: _WHOLE | {_ALONE: _STAGES},
    4: _WHOLE
    | {
        "hsdp": "hsdp",
        _ALONE: _STAGES,
        "pipeline (stages 2 replicas zero2)": {**_STAGES, "replicas": "zero2"},
    },
}
_HPARAMS: dict[str, Any] = {"global_batch_size": 8, "model": "recommender", "optimizer": "adamw", "is_half": False}


def _rows(size: int, *, reduces_whole: bool) -> dict[str, Candidate]:
    """The plan's rows, in which seconds are bytes: a byte takes a second, everything else no time."""
    measured = measure_trial(SizedTrial, _HPARAMS, {}, size, is_gpu=False)
    # hsdp makes two copies on four ranks of one machine, as on two machines.
    place = Place(
        size,
        2,
        slot_flops=math.inf,
        inside_rate=1,
        across_rate=1,
        message_seconds=0,
        reduces_whole=reduces_whole,
        kernel_seconds=0,
        memory_rate=math.inf,
        copy_rate=math.inf,
    )
    rows = list_candidates(measured.size, Work(_HPARAMS["global_batch_size"]), place)
    # The owners of zero1 send one after the other, and each waits for the parts that the others receive.
    waited = measured.size.gradient * measured.size.parameters / size
    rows = [replace(row, seconds=row.seconds - waited) if row.strategy == "zero1" else row for row in rows]
    return {_short_name(row): row for row in rows if row.memory is not None}


def _short_name(row: Candidate) -> str:
    words = " ".join(f"{key} {value}" for key, value in row.options if key != "microbatches")
    return f"{row.strategy} ({words})" if words else row.strategy


def _most(values: list[float], is_pipeline: bool) -> float:
    """The mean of the ranks, in a pipeline of the two replicas of the stage that has most."""
    if not is_pipeline:
        return sum(values) / len(values)
    return max((values[stage] + values[stage + 2]) / 2 for stage in (0, 1))


_STEPS = 3
# How often a ring sends the bytes of a collective, in parts (n - 1) / n, as a mean over the ranks.
_TIMES = {"allreduce_": 2, "_allgather_base_": 1, "_reduce_scatter_base_": 1, "broadcast_": 1, "reduce_": 1}


@dataclass(frozen=True)
class Sent:
    """Bytes of one rank."""

    written: float  # bytes that the process writes in a step
    in_rings: float  # bytes of the step's collectives, if rings carry them
    kept: dict[str, int]  # as benchmarks.sized.kept_bytes counts them


@in_folder
def train_all(folder: Path, cases: list[Any]) -> list[Sent]:
    return [_train(case) for case in cases]


def _train(parallelism: Any) -> Sent:
    config = {"parallelism": parallelism, "scheduling_unit": 1, "checkpoint_policy": "none"}
    counter, meter, kept = _Counter(), _Meter(), {}
    meter.counter = counter
    with pytorch.init(hparams=_HPARAMS, exp_conf=config) as context:
        trial = SizedTrial(context)
        trial.callback = meter
        trial.optimizer.register_step_post_hook(lambda *_: kept.update(kept_bytes(trial.model, trial.optimizer)))
        with counter:
            pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(_STEPS))
    return Sent(_median_step(meter.written), _median_step(meter.in_rings), kept)


def _median_step(totals: list[float]) -> float:
    return median(after - before for before, after in pairwise(totals))


@dataclass
class _Meter(pytorch.PyTorchCallback):
    """Notes the sums at the end of each step."""

    written: list[float] = field(default_factory=list)
    in_rings: list[float] = field(default_factory=list)

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        lines = Path("/proc/self/io").read_text().splitlines()
        self.written.append(float(dict(line.split(": ") for line in lines)["wchar"]))
        self.in_rings.append(self.counter.sent)

    counter: _Counter = field(init=False)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Sums the bytes of collectives, without messages between two ranks, which are those of a pipeline's schedule."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.sent = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if func.namespace == "c10d" and name in _TIMES:
            group = next(value for value in args if isinstance(value, torch.ScriptObject))
            ranks = dist.ProcessGroup.unbox(group).size()
            # The whole tensor is the output of a gathering and the input of a reduction of parts.
            whole = args[1] if name == "_reduce_scatter_base_" else args[0]
            count = sum(value.nbytes for value in tree_leaves(whole) if isinstance(value, torch.Tensor))
            self.sent += _TIMES[name] * (ranks - 1) / ranks * count
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_send_and_keep_the_bytes_of_the_plan(size: int, tmp_path: Path) -> None:
    cases = _CASES[size]
    found: list[list[Sent]] = run_gang(size, tmp_path, train_all, tmp_path / "work", list(cases.values()))
    over_gloo, in_rings = (_rows(size, reduces_whole=whole) for whole in (True, False))
    for name, ranks in zip(cases, zip(*found, strict=True), strict=True):
        is_pipeline = name.startswith("pipeline")
        if (size, name) != (2, _ALONE):
            written, counted = (
                _most([getattr(rank, key) for rank in ranks], is_pipeline) for key in ("written", "in_rings")
            )
            assert written == pytest.approx(over_gloo[name].seconds, rel=0.05), name
            # Modules outside of blocks are gathered once in zero3.
            assert counted == pytest.approx(in_rings[name].seconds, rel=0.06 if name == "zero3" else 0.05), name
        memory = over_gloo[name].memory
        assert memory is not None
        for part in ("parameters", "gradients", "optimizer"):
            most = max(rank.kept[part] for rank in ranks)
            assert most == pytest.approx(getattr(memory, part), rel=0.05), (name, part)
