"""Pipelines of models with skip connections carry, send and keep what the plan counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from benchmarks.sized import WARM_UP
from gangline import pytorch
from gangline.pytorch.parallel.staged.part import Layout, Parts
from gangline.pytorch.parallel.staged.schedule import ScheduleThread
from gangline.pytorch.parallel.staged.unit import divide_units
from gangline.pytorch.plan.live_bytes import ByteLedger, LiveBytes
from gangline.pytorch.plan.measure import Measured, measure_trial
from gangline.pytorch.plan.rule import Work, list_candidates
from gangline.pytorch.plan.stages import Pipeline, border_bytes, stage_memory
from gangline.pytorch.plan.step_time import Place
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang

_MICROBATCHES = 8
# Interleaved1F1B makes four parts on two ranks.
_CASES = (("unet", "1F1B"), ("unet", "Interleaved1F1B"), ("residual", "Interleaved1F1B"))
# Later parts do not need the stem of the other model.
_CARRY: dict[str, list[str]] = {"unet": [], "residual": ["stem"]}


def _section(model: str, schedule: str) -> dict[str, Any]:
    return {"strategy": "pipeline", "schedule": schedule, "microbatches": _MICROBATCHES, "carry": _CARRY[model]}


_NUM_RECORDS = 32


def _hparams(model: str) -> dict[str, Any]:
    return {"model": model, "global_batch_size": _NUM_RECORDS}


class _Down(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.convolution(x))


class _Up(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3 * width, width, 3, padding=1)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.convolution(torch.cat((functional.interpolate(x, scale_factor=2.0), skip), 1)))


class UNet(nn.Module):
    """Outputs on the way down are inputs on the way up, so the largest ones pass over all units between."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.downs = nn.ModuleList(_Down(width) for width in (16, 32))
        self.ups = nn.ModuleList(_Up(width) for width in (32, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        skips = []
        for down in self.downs:
            skips.append(x)
            x = down(x)
        for up in self.ups:
            x = up(x, skips.pop())
        out: torch.Tensor = self.head(x.mean((2, 3)))
        return out


class Residual(nn.Module):
    """The model's own code adds the outputs of its blocks, makes a mask from the first one and decides by it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](self.stem(x))
        mask = x > 0
        scale = 2.0 if x.sum() > 1e9 else 1.0
        x = self.blocks[1](x * scale)
        for block in self.blocks[2:]:
            x = x + block(x) * mask
        out: torch.Tensor = self.head(x)
        return out


_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "unet": (UNet, (3, 32, 32)),
    "residual": (Residual, (8,)),
}


class _Records(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Makes each record when it is read, so that the data take no memory beside the batch."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return 8 * _NUM_RECORDS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self.shape, generator=generator), torch.tensor(index % 10)


class CarriedTrial(pytorch.PyTorchTrial):
    """hyperparameters: model, the name of one above; global_batch_size."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        make, self.shape = _MODELS[str(context.get_hparam("model"))]
        self.model = context.wrap_model(make())
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters()))
        self.callback: pytorch.PyTorchCallback = pytorch.PyTorchCallback()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"meter": self.callback}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_Records(self.shape), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return self.build_training_data_loader()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        loss = functional.cross_entropy(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": 0.0}


def _measure(model: str) -> Measured:
    config = {"parallelism": {"strategy": "pipeline", "carry": _CARRY[model]}}
    return measure_trial(CarriedTrial, _hparams(model), config, 2, is_gpu=False)


def _pipeline(measured: Measured, schedule: str) -> Pipeline:
    counts = divide_units(measured.model, measured.units, 2, None, schedule)
    return Pipeline(tuple(counts), 2, schedule, _MICROBATCHES, _NUM_RECORDS)


def _paths(measured: Measured, pipeline: Pipeline) -> list[list[str]]:
    """The plan's connections over each border; none behind the last part."""
    connections = measured.size.connections
    return [sorted(each.path for each in connections if each.crosses(end - 1)) for end in pipeline.ends]


@dataclass(frozen=True)
class Carried:
    """The costs of one rank."""

    peak: int  # the most bytes of tensors in a step
    written: float  # bytes that the process writes to sockets in a step
    # paths of modules whose outputs go over each border, besides the output of the unit before it
    carried: list[list[str]]


@in_folder
def train_all(folder: Path, cases: list[tuple[dict[str, Any], Any]]) -> list[Carried]:
    """cases: hyperparameters and the section `parallelism` of each training."""
    return [_train(*case) for case in cases]


def _train(hparams: dict[str, Any], parallelism: Any) -> Carried:
    config = {"parallelism": parallelism, "scheduling_unit": 1, "checkpoint_policy": "none"}
    meter, carried = _Meter(ByteLedger("cpu")), list[list[str]]()
    start, layout_for = ScheduleThread.start, Parts.layout_for

    def counted(thread: ScheduleThread, run: Callable[[], None]) -> None:
        def call() -> None:
            with LiveBytes(meter.ledger):
                run()

        start(thread, call)

    def noted(parts: Parts, *inputs: Any) -> Layout:
        layout = layout_for(parts, *inputs)
        carried[:] = layout.carried
        return layout

    with LiveBytes(meter.ledger), pytorch.init(hparams=hparams, exp_conf=config) as context:
        trial = CarriedTrial(context)
        trial.callback = meter
        ScheduleThread.start, Parts.layout_for = counted, noted  # type: ignore[method-assign,assignment]  # put back below
        try:
            pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(WARM_UP + 3))
        finally:
            ScheduleThread.start, Parts.layout_for = start, layout_for  # type: ignore[method-assign]  # as before
    written = median(after - before for before, after in pairwise(meter.written[WARM_UP - 1 :]))
    return Carried(max(meter.peaks[WARM_UP:]), written, carried)


@dataclass
class _Meter(pytorch.PyTorchCallback):
    """Notes the peak of each step, and the bytes written until its end."""

    ledger: ByteLedger
    peaks: list[int] = field(default_factory=list)
    written: list[float] = field(default_factory=list)

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.peaks.append(self.ledger.peak)
        self.ledger.restart()
        lines = Path("/proc/self/io").read_text().splitlines()
        self.written.append(float(dict(line.split(": ") for line in lines)["wchar"]))


def test_ranks_carry_send_and_keep_the_bytes_of_the_plan(tmp_path: Path) -> None:
    cases = [(_hparams(model), _section(model, schedule)) for model, schedule in _CASES]
    ranks = list(zip(*run_gang(2, tmp_path, train_all, tmp_path / "work", cases), strict=True))
    for (model, schedule), found in zip(_CASES, ranks, strict=True):
        measured = _measure(model)
        pipeline = _pipeline(measured, schedule)
        paths = _paths(measured, pipeline)
        assert [rank.carried for rank in found] == [paths, paths], (model, schedule)
        assert any(paths)
        if model != "unet":
            # Its tensors are smaller than what ranks tell each other in a step.
            continue
        # Outputs go over the borders and gradients come back.
        sent = 2 * _NUM_RECORDS * sum(border_bytes(measured.size, pipeline))
        assert sum(rank.written for rank in found) == pytest.approx(sent, rel=0.05), schedule
        for rank, memory in zip(found, stage_memory(measured.size, pipeline), strict=True):
            assert rank.peak == pytest.approx(memory.total, rel=0.15), (schedule, rank)
    # The table's row has the same numbers.
    place = Place(2, 2, slot_flops=math.inf, inside_rate=1, message_seconds=0)
    work = Work(_NUM_RECORDS, stages=2, microbatches=_MICROBATCHES)
    [row] = [each for each in list_candidates(_measure("unet").size, work, place) if each.strategy == "pipeline"]
    [first, *_] = ranks
    assert row.memory is not None
    assert max(rank.peak for rank in first) == pytest.approx(row.memory.total, rel=0.15)
    assert sum(rank.written for rank in first) == pytest.approx(row.seconds, rel=0.05)
