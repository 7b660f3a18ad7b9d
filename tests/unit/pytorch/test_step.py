"""What a step leaves out because it costs time, without another result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gangline.config.optimization import Optimizations
from gangline.pytorch.data import seed
from gangline.pytorch.parallel.choice import SingleStrategy
from gangline.pytorch.profile.clock import StepClock
from gangline.pytorch.trial.backward import PASSES
from gangline.pytorch.trial.update import ParameterUpdate, Precision


class _Counting(torch.optim.SGD):
    num_cleared = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.num_cleared += 1
        super().zero_grad(set_to_none)


def _update() -> ParameterUpdate:
    return ParameterUpdate(Optimizations(), SingleStrategy(), Precision(torch.device("cpu"), None), StepClock())


def _step(optimizer: torch.optim.Optimizer) -> None:
    _update().step(optimizer, None, auto_zero_grads=True, scaler=None, closure=None)


def test_gradients_are_cleared_in_an_optimizers_own_way() -> None:
    layer = nn.Linear(2, 1)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer = _Counting(layer.parameters())
    _step(optimizer)
    assert optimizer.num_cleared == 1
    assert layer.weight.grad is None


def test_gradients_are_cleared_as_the_trial_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters())
    calls: list[Any] = []
    monkeypatch.setattr(optimizer, "zero_grad", lambda: calls.append(None))
    _step(optimizer)
    assert calls == [None]


def test_a_trace_shows_that_gradients_are_cleared() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
        _step(optimizer)
    assert "Optimizer.zero_grad#SGD.zero_grad" in {event.key for event in trace.key_averages()}


class _Around:
    """A trial's own wrapper, which passes everything on."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_wrapper_of_a_trials_own_may_clear_the_gradients() -> None:
    layer = nn.Linear(2, 1)
    layer(torch.ones(1, 2)).sum().backward()
    around: Any = _Around(torch.optim.SGD(layer.parameters()))
    _step(around)
    assert layer.weight.grad is None


def test_gradients_of_all_groups_are_cleared() -> None:
    first, second = nn.Linear(2, 1), nn.Linear(1, 1)
    second(first(torch.ones(1, 2))).sum().backward()
    groups: list[dict[str, Any]] = [{"params": first.parameters()}, {"params": second.parameters(), "lr": 0.1}]
    _step(torch.optim.SGD(groups))
    assert all(parameter.grad is None for layer in (first, second) for parameter in layer.parameters())


def test_seed_gives_the_numbers_of_torchs_own() -> None:
    torch.manual_seed(7)
    expected = torch.rand(4)
    seed.seed_build(7)
    assert torch.equal(torch.rand(4), expected)


def test_backward_pass_inside_of_another_leaves_that_one_to_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a hook that calls context.backward; torch may begin more passes in the outer one."""
    monkeypatch.setattr(PASSES, "depth", 1)
    _update().backward(nn.Linear(2, 1)(torch.ones(1, 2)).sum(), None, retain_graph=False, create_graph=False)
    assert PASSES.depth == 1


@pytest.mark.parametrize("kind", [None, "bf16"])
def test_autocast_may_be_a_decorator(kind: str | None) -> None:
    @Precision(torch.device("cpu"), kind).autocast()  # type: ignore[operator]  # as contextlib makes its contexts
    def is_cast() -> bool:
        return torch.is_autocast_enabled("cpu")

    assert is_cast() is (kind is not None)
