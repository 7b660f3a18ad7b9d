"""A GradScaler with models in parts: all ranks skip a step or none does, and train as a loop of plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.gang import run_gang
from tests.support.points_trial import Net
from tests.support.unusual_trial import State, UnusualTrial, difference, run

_NUM_BATCHES = 6
_OVERFLOWING = 3
_SIZE = 4
_BATCH = 8
_POINTS = torch.randn(_NUM_BATCHES * _BATCH, 6, generator=torch.Generator().manual_seed(5))


class ScaleFirstNet(nn.Module):
    """Its first parameter has no dimension, so it is kept whole. Its second output is one row of its stem."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.net = Net()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.net(x) * self.scale, self.net.stem(x)[:, -1].clone()


class DivisibleNet(ScaleFirstNet):
    """Has no parameter that is kept whole."""

    def __init__(self) -> None:
        super().__init__()
        scale = self.scale.detach()
        del self.scale
        self.register_buffer("scale", scale)


def _loss(model: nn.Module, inputs: torch.Tensor, *, overflows: bool) -> torch.Tensor:
    """overflows: whether the gradient of one row of the stem becomes infinite, which is on the last rank."""
    outputs, row = model(inputs)
    loss = functional.mse_loss(outputs.float(), inputs[:, :3])
    return loss + 1e35 * row.float().mean() if overflows else loss


class OverflowTrial(UnusualTrial):
    """The gradients of rank 1 overflow in one batch."""

    net: type[ScaleFirstNet] = ScaleFirstNet
    clips = False

    def prepare(self) -> None:
        self.scales: list[float] = []

    def make_model(self) -> nn.Module:
        return self.net()

    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)]

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.scales.append(self.context.scalers[0].get_scale())
        rank, size = self.context.distributed.rank, self.context.distributed.size
        inputs = _POINTS[batch_idx * _BATCH :][:_BATCH][rank::size]
        loss = _loss(self.model, inputs, overflows=rank == 1 and batch_idx == _OVERFLOWING)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizers[0], _clip if self.clips else None)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": _loss(self.model, batch[0], overflows=False)}

    def outcome(self) -> str:
        return repr(self.scales)


class ClippedTrial(OverflowTrial):
    clips = True


class DivisibleTrial(OverflowTrial):
    net = DivisibleNet


def _clip(parameters: Any) -> None:
    nn.utils.clip_grad_norm_(parameters, 0.5)


def _train_many(kind: type[OverflowTrial], directory: Path, strategies: list[str]) -> list[tuple[str, list[State]]]:
    options: dict[str, Any] = {"optimizations": {"mixed_precision": "fp16"}}
    return [run(kind, directory, _NUM_BATCHES, parallelism=strategy, **options) for strategy in strategies]


def _plain(kind: type[OverflowTrial]) -> tuple[str, State]:
    """A loop of plain torch in one process, with a backward pass for each rank's records."""
    torch.manual_seed(4)
    model = kind.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler, scales = torch.amp.GradScaler("cpu"), []
    for index in range(_NUM_BATCHES):
        scales.append(scaler.get_scale())
        for rank in range(_SIZE):
            inputs = _POINTS[index * _BATCH :][:_BATCH][rank::_SIZE]
            with torch.autocast("cpu", dtype=torch.float16):
                loss = _loss(model, inputs, overflows=rank == 1 and index == _OVERFLOWING)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= _SIZE
        if kind.clips:
            scaler.unscale_(optimizer)
            _clip(model.parameters())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scales[_OVERFLOWING + 1] < scales[_OVERFLOWING], "it does not overflow"
    return repr(scales), model.state_dict()


@pytest.mark.parametrize("kind", [OverflowTrial, ClippedTrial, DivisibleTrial], ids=lambda kind: kind.__name__)
def test_part_that_overflows_on_one_rank_skips_the_step_on_all(tmp_path: Path, kind: type[OverflowTrial]) -> None:
    strategies = ["ddp", "zero1", "zero2", "zero3", "hsdp"]
    scales, expected = _plain(kind)
    by_rank = run_gang(_SIZE, tmp_path / "gang", _train_many, kind, tmp_path, strategies)
    for strategy, *results in zip(strategies, *by_rank, strict=True):
        assert [outcome for outcome, _ in results] == [scales] * _SIZE, strategy
        for _, models in results:
            assert difference(models, by_rank[0][0][1]) < 2e-3, strategy
            assert difference(models, [expected]) < 5e-3, strategy
