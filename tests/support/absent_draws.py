"""Draws of random numbers for a model of which a stage has a part, on any device."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional, init

# Before the first stage gives up a parameter, as models import them.
from torch.nn.init import orthogonal_, sparse_, trunc_normal_

from gangline.pytorch.parallel.staged.holding import Holding, move_to
from gangline.pytorch.parallel.staged.unit import find_units

_CPU = torch.device("cpu")


def make_whole() -> nn.Module:
    torch.manual_seed(0)
    sizes = (5, 7, 3, 7, 5)
    return nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(sizes)))


def make_stage(rank: int, device: torch.device = _CPU) -> tuple[nn.Module, Holding]:
    """Returns the model as the first or the second of two stages has it."""
    model = make_whole()
    holding = Holding(model, find_units(model), [0, 0, 1, 1], 2, device)
    holding.give_up(rank)
    move_to(model, device)
    return model, holding


def _own_truncation(parameter: nn.Parameter) -> None:
    """As many models bring one along."""
    bound = math.erf(0.5)
    parameter.uniform_(-bound, bound).erfinv_().mul_(math.sqrt(2.0)).clamp_(-1, 1)


_generators: dict[str, torch.Generator] = {}


def _generator(device: torch.device) -> torch.Generator:
    return _generators.setdefault(str(device), torch.Generator(device))


DRAWS: dict[str, Callable[[nn.Parameter], Any]] = {
    "in place": lambda parameter: parameter.normal_(),
    "in place through data": lambda parameter: parameter.data.uniform_(-1, 1),
    "other distributions": lambda parameter: parameter.exponential_().add_(parameter.clone().cauchy_()).log_normal_(),
    "flags": lambda parameter: parameter.mul_(parameter.clone().bernoulli_(0.3)),
    "integers": lambda parameter: parameter.add_(torch.randint_like(parameter, 9)).random_(7),
    "alike": lambda parameter: parameter.add_(torch.randn_like(parameter)).mul_(torch.rand_like(parameter)),
    "a new tensor": lambda parameter: parameter.copy_(parameter.new_empty(parameter.shape).normal_()),
    "an empty tensor": lambda parameter: parameter.copy_(torch.empty_like(parameter).uniform_()),
    "beside it": lambda parameter: parameter.copy_(torch.randn(parameter.shape, device=parameter.device)),
    "into it": lambda parameter: torch.randn(parameter.shape, out=parameter.data),
    "around it": lambda parameter: parameter.copy_(torch.normal(parameter, 0.1)),
    "a part": lambda parameter: parameter[1:].normal_(),
    "turned": lambda parameter: parameter.t().normal_(),
    "of a generator": lambda parameter: parameter.normal_(generator=_generator(parameter.device)),
    "an assignment": lambda parameter: setattr(parameter, "data", torch.randn(parameter.shape)),
    "dropout": lambda parameter: parameter.copy_(functional.dropout(parameter, 0.4)),
    "own truncation": _own_truncation,
    "normal": lambda parameter: init.normal_(parameter, 1.0, 0.1),
    "uniform": lambda parameter: init.uniform_(parameter, generator=_generator(parameter.device)),
    "truncated": lambda parameter: trunc_normal_(parameter, std=1.0, a=-0.5, b=2.0),
    "far truncated": lambda parameter: trunc_normal_(parameter, std=1.0, a=1.0, b=2.0),
    "xavier": lambda parameter: init.xavier_normal_(parameter) if parameter.dim() > 1 else None,
    "kaiming": lambda parameter: init.kaiming_uniform_(parameter) if parameter.dim() > 1 else None,
    "orthogonal": lambda parameter: orthogonal_(parameter, 1.5) if parameter.dim() > 1 else None,
    "sparse": lambda parameter: sparse_(parameter, 0.4) if parameter.dim() > 1 else None,
    "by place": lambda parameter: init.eye_(parameter).add_(torch.rand(())) if parameter.dim() > 1 else None,
}


def check_draws(name: str, device: torch.device) -> None:
    """The parameters of each stage get the numbers that one process gives them, and generators go on alike."""

    def run(model: nn.Module) -> list[float]:
        torch.manual_seed(3)
        _generator(device).manual_seed(4)
        with torch.no_grad():
            for parameter in model.parameters():
                DRAWS[name](parameter)
        return [float(torch.rand((), device=device, generator=each)) for each in (None, _generator(device))]

    whole = make_whole().to(device)
    expected = run(whole)
    for rank in range(2):
        model, _ = make_stage(rank, device)
        assert run(model) == expected
        pairs = list(zip(model.parameters(), whole.parameters(), strict=True))
        assert [parameter.is_meta for parameter, _ in pairs] == [rank == 1] * 4 + [rank == 0] * 4
        assert all(torch.equal(parameter, value) for parameter, value in pairs if not parameter.is_meta)
