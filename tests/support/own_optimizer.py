"""Optimizers of a user's own: some look at one number at a time, at a whole tensor, or at all tensors together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


class OwnOptimizer(torch.optim.Optimizer):
    """Steps by `change`, of a gradient and the state of its parameter."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # as most are written
        self.begin()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(self.change(parameter, self.state[parameter]), alpha=-group["lr"])

    def begin(self) -> None: ...

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        raise NotImplementedError


class Lion(OwnOptimizer):
    """Looks at one number at a time."""

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        moment = state.setdefault("moment", torch.zeros_like(parameter))
        sign = torch.sign(0.9 * moment + 0.1 * parameter.grad)
        moment.mul_(0.99).add_(parameter.grad, alpha=0.01)
        return sign


class Lars(OwnOptimizer):
    """Looks at a whole tensor."""

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        weight, gradient = float(parameter.norm()), float(parameter.grad.norm())
        moment: torch.Tensor = state.setdefault("moment", torch.zeros_like(parameter))
        return moment.mul_(0.9).add_(parameter.grad, alpha=weight / (gradient + 1e-6))


class Lamb(OwnOptimizer):
    """Looks at all tensors together."""

    def begin(self) -> None:
        gradients = [
            parameter.grad for group in self.param_groups for parameter in group["params"] if parameter.grad is not None
        ]
        self.norm = float(nn.utils.get_total_norm(gradients))

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        return parameter.grad / self.norm


class Wrapping(OwnOptimizer):
    """Keeps another optimizer."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        parameters = list(parameters)
        super().__init__(parameters)
        self.base = torch.optim.SGD(parameters, lr=0.1)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # as most are written
        self.base.step()
