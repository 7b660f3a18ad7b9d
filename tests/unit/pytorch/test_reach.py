"""How far an optimizer's update reaches is found out without a change of the optimizer, its parameters or random
numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from gangline.errors import GanglineError
from gangline.pytorch.parallel.shared.reach import Reach, check_reach
from tests.support.own_optimizer import Lamb, Lars, Lion, OwnOptimizer, Wrapping


def _parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(shape)) for shape in ((3, 2), (4,), (5, 2, 2))]


class Noisy(OwnOptimizer):
    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        return torch.randn_like(parameter)


class Idle(OwnOptimizer):
    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        return torch.zeros_like(parameter)


class Failing(OwnOptimizer):
    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        raise ValueError("no")


class Renamed(torch.optim.AdamW):
    """Is not torch's own class, so it is tried."""


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: torch.optim.AdamW(_parameters()), Reach.ELEMENT),
        (lambda: Renamed(_parameters()), Reach.ELEMENT),
        (lambda: Lion(_parameters()), Reach.ELEMENT),
        (lambda: torch.optim.Adafactor(_parameters()), Reach.TENSOR),
        (lambda: Lars(_parameters()), Reach.TENSOR),
    ],
)
def test_update_of_each_parameter_by_itself_is_divided(make: Any, expected: Reach) -> None:
    assert check_reach("zero3", make()) is expected


@pytest.mark.parametrize(
    ("optimizer_class", "reason"),
    [
        (Lamb, "Lamb updates a parameter differently when it holds other parameters too"),
        (Noisy, "Noisy updates a parameter differently when it holds other parameters too"),
        (Wrapping, "(its attribute base may hold parameters)"),
        (Idle, "(it changed nothing in 12 steps on small tensors)"),
        (Failing, "(its step failed on small tensors: ValueError: no)"),
    ],
)
def test_other_optimizers_are_refused(optimizer_class: type[OwnOptimizer], reason: str) -> None:
    with pytest.raises(GanglineError) as caught:
        check_reach("zero1", optimizer_class(_parameters()))
    assert reason in caught.value.message
    assert caught.value.message.endswith("; use ddp")
    assert caught.value.code == "parallelism.optimizer"


def test_trial_of_an_optimizer_leaves_no_trace() -> None:
    parameters = _parameters()
    optimizer: Optimizer = Lars(parameters)
    calls: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    check_reach("zero3", optimizer)
    assert torch.equal(torch.rand(3), expected)
    assert not calls
    assert not optimizer.state
    assert all(
        torch.equal(parameter, torch.ones_like(parameter)) and parameter.grad is None for parameter in parameters
    )
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_rate_of_0_and_a_scheduler_hide_nothing() -> None:
    optimizer = Lars(_parameters(), lr=0.05)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    assert optimizer.param_groups[0]["lr"] == 0.0
    assert check_reach("zero3", optimizer) is Reach.TENSOR


def test_a_group_may_have_no_parameters() -> None:
    groups: list[dict[str, Any]] = [{"params": []}, {"params": _parameters()}]
    optimizer = torch.optim.AdamW(groups)
    assert check_reach("zero1", optimizer) is Reach.ELEMENT
