"""A pipeline trains models out of the ordinary to the numbers of one process: with state that each microbatch changes,
with several losses, with gradients inside of a unit."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gangline import pytorch
from gangline.pytorch.parallel.shared.ownership import inner_of
from tests.support.once import make_once
from tests.support.pipeline_models import WIDTH, Chain, Recurrent, make_norm
from tests.support.pipeline_trial import Alone, ChainTrial, Result, Run, check_same, penalty_of, pipeline, train_by_name
from tests.support.points_trial import Block

_SGD = {"optimizer": "sgd"}


class RecurrentTrial(ChainTrial):
    make = Recurrent


class NormTrial(ChainTrial):
    """The reference in one process normalises each microbatch by itself, too."""

    make = make_norm

    def loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        count = self.context.get_hparams()["parts"] if self.model.training and self.context.distributed.size == 1 else 1
        losses = [
            functional.mse_loss(self.model(x), y)
            for x, y in zip(inputs.chunk(count), targets.chunk(count), strict=True)
        ]
        return torch.stack(losses).mean()


class Remembering(Chain):
    """Whose blocks keep a memory, a number of calls, a list and a generator in attributes, and compute with them."""

    def __init__(self) -> None:
        super().__init__()
        for place in range(4):
            self.blocks[place] = _RememberingBlock(WIDTH, place)


class _RememberingBlock(Block):
    def __init__(self, width: int, number: int) -> None:
        super().__init__(width)
        self.memory: torch.Tensor | None = None
        self.calls = 0
        self.means: list[float] = []
        self.generator = torch.Generator().manual_seed(number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = super().forward(x) + (0 if self.memory is None else self.memory)
        self.memory = y.detach().mean(0)
        self.means.append(float(self.memory.mean()))
        noise = torch.rand((), generator=self.generator)
        return y * (1 + 1 / self.calls + noise) + sum(self.means[-3:])


class RememberingTrial(NormTrial):
    """Runs each microbatch by itself in one process, too, because its model has a state."""

    make = Remembering


class ReturningScores(Chain):
    """Whose blocks return a loss of their own, and which returns the sum."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]  # two values
        x = self.stem(x)
        total = torch.zeros((), dtype=x.dtype)
        for block in self.blocks:
            x, score = block(x)
            total = total + score
        return self.head(x), total

    def __init__(self) -> None:
        super().__init__()
        for place in range(4):
            self.blocks[place] = _ReturningBlock(WIDTH)


class _ReturningBlock(Block):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]  # two values
        y = super().forward(x)
        return y, y.square().mean()


class ReturningScoresTrial(ChainTrial):
    """Adds the losses that the model returns to its own."""

    make = ReturningScores

    def loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        output, total = self.model(inputs)
        loss: torch.Tensor = functional.mse_loss(output, targets) + 0.1 * total
        return loss


class ActivationTrial(ChainTrial):
    """Adds what hooks keep of the outputs of blocks to its loss."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.kept: dict[int, torch.Tensor] = {}
        model: Any = inner_of(self.model)
        for place, block in enumerate(model.blocks):
            block.register_forward_hook(partial(self._keep, place))

    def _keep(self, place: int, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        self.kept[place] = output

    def loss(self, batch: Any) -> torch.Tensor:
        return super().loss(batch) + 0.1 * sum(value.square().mean() for value in self.kept.values())


class SumTrial(ChainTrial):
    """Whose loss sums over records. One process divides the sum by the microbatches of the pipeline, to train alike."""

    def loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        is_reference = self.model.training and self.context.distributed.size == 1
        total = functional.mse_loss(self.model(inputs), targets, reduction="sum")
        return total / (self.context.get_hparams()["parts"] if is_reference else 1)

    def clip(self, parameters: Any) -> None:
        """Leaves gradients as they are, so that their scale shows."""


class Exiting(Chain):
    """Which leaves out the last block where the output of the one before it has a mean above 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for place, block in enumerate(self.blocks):
            x = block(x)
            if place == 2 and x.mean() > 0:
                break
        out: torch.Tensor = self.head(x)
        return out


class ExitingTrial(NormTrial):
    """Decides for each microbatch by itself, as its reference in one process does."""

    make = Exiting


class _CountingBlock(Block):
    """Uses and changes a counter in a buffer, as a warm-up does."""

    def __init__(self) -> None:
        super().__init__(WIDTH)
        self.register_buffer("count", torch.zeros(()))
        self.count: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
        return super().forward(x) / (1 + self.count.clone())


class Counting(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_CountingBlock() for _ in range(4))


class CountingTrial(NormTrial):
    make = Counting


class PenaltyTrial(ChainTrial):
    """Adds the gradient of a penalty on all weights. One process adds the penalty to its loss."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = self.loss(batch)
        penalty = penalty_of(self.model) if self.context.distributed.size == 1 else 0.0
        self.context.backward(loss + penalty)
        self.context.step_optimizer(self.optimizer, self.clip)
        return {"loss": loss}

    def clip(self, parameters: Any) -> None:
        if self.context.distributed.size > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach().sign(), alpha=0.01)
        super().clip(parameters)


class UnitGradientTrial(ChainTrial):
    """Has a penalty on gradients by a hidden state, which a unit computes and returns."""

    class make(Chain):  # noqa: N801  takes the place of a function
        def __init__(self) -> None:
            super().__init__()
            self.head = _SteepnessHead(WIDTH, 3)

        def forward(self, x: torch.Tensor) -> Any:
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    def loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        outputs, steepness = self.model(inputs)
        loss: torch.Tensor = functional.mse_loss(outputs, targets) + 0.1 * steepness.mean()
        return loss


class _SteepnessHead(nn.Linear):
    def forward(self, input: torch.Tensor) -> Any:
        out = torch.tanh(super().forward(input))
        if not torch.is_grad_enabled():
            return out, out.new_zeros(len(input))
        (gradient,) = torch.autograd.grad(out.sum(), input, create_graph=True)
        return out, gradient.square().sum(dim=1)


class ConvolutionTrial(ChainTrial):
    """Whose convolutions run over turned pictures, so that gradients by hidden states are not contiguous."""

    class make(nn.Module):  # noqa: N801  takes the place of a function
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(1, 4, 3, padding=1)
            self.blocks = nn.ModuleList(_TurningConvolution(4, 4, 3, padding=1) for _ in range(4))
            self.head = nn.Linear(4 * 6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x.reshape(-1, 1, 2, 3))
            for block in self.blocks:
                x = block(x)
            out: torch.Tensor = self.head(x.flatten(1))
            return out


class _TurningConvolution(nn.Conv2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.gelu(super().forward(input.transpose(2, 3)))


_OF_TWO = {
    "lstm": Run(RecurrentTrial, pipeline()),
    "penalty in the gradients": Run(PenaltyTrial, pipeline(), hparams=_SGD),
    "gradients inside of a unit": Run(UnitGradientTrial, pipeline(), batches=2, hparams=_SGD),
    "convolutions, zero bubble": Run(ConvolutionTrial, pipeline(schedule="ZBVZeroBubble"), batches=2, hparams=_SGD),
    "batch norm": Run(NormTrial, pipeline(microbatches=4), hparams={"parts": 4, **_SGD}),
    "early exit in a part": Run(ExitingTrial, pipeline(microbatches=4), batches=3, hparams={"parts": 4, **_SGD}),
    "losses of blocks that the model returns": Run(ReturningScoresTrial, pipeline(), batches=2, hparams=_SGD),
    "outputs that hooks keep": Run(ActivationTrial, pipeline(), batches=2, hparams=_SGD),
    # The last batch of the epoch has another shape, and so has the last one of the validation.
    "state of modules": Run(
        RememberingTrial, pipeline(microbatches=4), batches=5, hparams={"parts": 4, "records": 52, **_SGD}
    ),
    "state of modules, by time": Run(
        RememberingTrial,
        pipeline(microbatches=4, split="time", schedule="Interleaved1F1B"),
        batches=2,
        hparams={"parts": 4, **_SGD},
    ),
    "loss that is a sum": Run(SumTrial, pipeline(microbatches=4), batches=3, hparams={"parts": 4, **_SGD}),
    "recomputed counters": Run(
        CountingTrial,
        pipeline(microbatches=4, activation_checkpointing="blocks"),
        hparams={"parts": 4, **_SGD},
    ),
    "recomputed norms": Run(
        NormTrial,
        pipeline(microbatches=4, activation_checkpointing="blocks", blocks=["BatchNorm1d"]),
        hparams={"parts": 4, **_SGD},
    ),
}


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Result]]:
    return make_once(tmp_path_factory, "pipeline_models_of_two", lambda folder: train_by_name(2, folder, _OF_TWO))


@pytest.mark.parametrize("name", list(_OF_TWO))
def test_two_stages_train_as_one_process(name: str, of_two: dict[str, list[Result]], alone: Alone) -> None:
    check_same(of_two[name], alone(_OF_TWO[name]))
