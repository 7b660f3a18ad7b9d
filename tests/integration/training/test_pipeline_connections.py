"""A pipeline trains to the numbers of one process where the model's own code connects units in other ways than a chain:
over others, in place, in another order, with random numbers or decisions between them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.once import make_once
from tests.support.pipeline_models import WIDTH, Chain, Skipping
from tests.support.pipeline_trial import Alone, ChainTrial, LateTrial, Result, Run, check_same, pipeline, train_by_name
from tests.support.points_trial import Block

_SGD = {"optimizer": "sgd"}


class SkippingTrial(ChainTrial):
    make = Skipping


class Sharing(Chain):
    """Which has one activation for all layers, and changes its own input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x *= 2
        x = self.activation(self.stem(x))
        for block in self.blocks:
            x = self.activation(block(x))
        out: torch.Tensor = self.head(x)
        return out


class SharingTrial(ChainTrial):
    make = Sharing


class Disordered(nn.Module):
    """Whose modules are defined in another order than that in which they run: a norm behind every layer is the first
    one, and what makes the first layer's input is the last."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 3)
        self.positions = Positions()
        self.stem = nn.Linear(6, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x) + self.positions(WIDTH)
        for block in self.blocks:
            x = self.norm(block(x))
        out: torch.Tensor = self.head(x)
        return out


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.25))

    def forward(self, count: int) -> torch.Tensor:
        return torch.arange(count) * self.get_buffer("scale")


class DisorderedTrial(ChainTrial):
    make = Disordered


class Changing(Chain):
    """A chain that changes outputs of its blocks in place, behind the last unit of a part and on later parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.blocks[0](self.stem(x))
        first.mul_(1.5)
        x = 1.0 * first
        for block in self.blocks[1:]:
            functional.leaky_relu_(x, 0.5)
            x = block(x)
            first += 0.125
        out: torch.Tensor = self.head(x + first)
        return out


class ChangingTrial(ChainTrial):
    make = Changing


class Noisy(Chain):
    """Which adds noise before its second block, and subtracts it behind that block, which returns its input."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1] = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](self.stem(x))
        noise = torch.randn_like(x)
        x = self.blocks[1](x + noise) - noise
        for block in self.blocks[2:]:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class NoisyTrial(ChainTrial):
    make = Noisy


class Deciding(Chain):
    """Whose later blocks depend on the first one's output by a decision, and by a factor without a gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x = self.blocks[0](self.stem(x))
        for block in self.blocks[1:]:
            x = block(x)
        # The same on the whole batch as on each microbatch.
        if first.abs().mean() > 0:
            x = 2 * x
        out: torch.Tensor = self.head(x * (first > 0))
        return out


class DecidingTrial(ChainTrial):
    make = Deciding


# The first batch finds the connections, and the second one goes without checks.
_run = partial(Run, batches=2)
_OF_TWO = {
    "skip connection": _run(SkippingTrial, pipeline(), hparams=_SGD),
    "changes in place": _run(ChangingTrial, pipeline(split=["blocks.1"]), hparams=_SGD),
    "one activation for all": _run(SharingTrial, pipeline(schedule="ZBVZeroBubble"), hparams=_SGD),
    "modules in another order": _run(DisorderedTrial, pipeline(), hparams=_SGD),
    "noise on both parts": _run(NoisyTrial, pipeline(split=["blocks.2"]), hparams=_SGD),
    "decision": _run(DecidingTrial, pipeline(split=["blocks.2"]), hparams=_SGD),
    "connection from the second batch on": _run(LateTrial, pipeline(carry=["blocks.0"]), batches=3, hparams=_SGD),
    "skip connection, zero bubble": _run(SkippingTrial, pipeline(schedule="ZBVZeroBubble"), hparams=_SGD),
    "decision, zero bubble": _run(DecidingTrial, pipeline(schedule="ZBVZeroBubble"), hparams=_SGD),
}
_OF_FOUR = {
    "changes in place over three stages": _run(ChangingTrial, pipeline(), hparams=_SGD),
    "skip connection over two stages": _run(SkippingTrial, pipeline(), hparams=_SGD),
    "divided, modules in another order": _run(
        DisorderedTrial, pipeline(stages=2, replicas="zero2", schedule="Interleaved1F1B")
    ),
}


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Result]]:
    return make_once(tmp_path_factory, "pipeline_connections_of_two", lambda folder: train_by_name(2, folder, _OF_TWO))


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Result]]:
    return make_once(
        tmp_path_factory, "pipeline_connections_of_four", lambda folder: train_by_name(4, folder, _OF_FOUR)
    )


@pytest.mark.parametrize("name", list(_OF_TWO))
def test_two_stages_train_as_one_process(name: str, of_two: dict[str, list[Result]], alone: Alone) -> None:
    check_same(of_two[name], alone(_OF_TWO[name]))


@pytest.mark.parametrize("name", list(_OF_FOUR))
def test_four_ranks_train_as_one_process(name: str, of_four: dict[str, list[Result]], alone: Alone) -> None:
    check_same(of_four[name], alone(_OF_FOUR[name]))
