"""What a trial's gradient guard puts into torch and into a trial's objects, and what it leaves as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.utils import _foreach_utils

from gangline import pytorch
from gangline.errors import GanglineError
from gangline.pytorch.trial.gradient_guard import _ASKS, _check_step
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang
from tests.support.small_trial import SmallTrial, fit

TWO_BATCHES: dict[str, Any] = {"exp_conf": {"optimizations": {"aggregation_frequency": 2}}}
LENGTH = pytorch.Batch(4)


class _Own:
    """An optimizer of a trial's own class, with what a trial of one slot needs."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        self.param_groups = inner.param_groups
        self.state = inner.state

    def step(self) -> None:
        self.inner.step()

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()


class _PassingOn:
    """Passes everything on to the optimizer inside."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _trial_with(make: Callable[[Optimizer], Any], *, clears: bool) -> type[SmallTrial]:
    class Trial(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            torch.manual_seed(3)
            nn.init.normal_(self.model.weight)  # type: ignore[arg-type]  # torch types attributes loosely
            inner = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
            self.optimizer = context.wrap_optimizer(make(inner))

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if clears:
                self.optimizer.zero_grad()
            return super().train_batch(batch, epoch_idx, batch_idx)

    return Trial


@pytest.mark.parametrize("make", [lambda inner: inner, _Own, _PassingOn])
def test_an_optimizer_of_any_class_keeps_gradients_of_earlier_calls(make: Callable[[Optimizer], Any]) -> None:
    cleared, plain = (
        fit(_trial_with(make, clears=clears), init=TWO_BATCHES, max_length=LENGTH) for clears in (True, False)
    )
    assert torch.equal(cleared.model.weight, plain.model.weight)  # type: ignore[arg-type]  # torch types loosely


def test_a_copy_of_an_optimizer_clears_its_own_gradients() -> None:
    def check(optimizer: Any, copied: Any) -> None:
        (weight, *_), (other, *_) = (each.param_groups[0]["params"] for each in (optimizer, copied))
        weight.grad, other.grad = torch.ones_like(weight), torch.ones_like(other)
        copied.zero_grad()
        assert other.grad is None
        assert (weight.grad is None) is (weight is other)

    for make in (_Own, lambda inner: inner):
        trial = fit(_trial_with(make, clears=True), init=TWO_BATCHES, max_length=LENGTH)
        check(trial.optimizer, copy.deepcopy(trial.optimizer))
        shallow = copy.copy(trial.optimizer)
        shallow.param_groups = copy.deepcopy(trial.optimizer.param_groups)
        check(trial.optimizer, shallow)


@pytest.mark.parametrize("init", [{}, TWO_BATCHES])
def test_a_late_use_of_amp_puts_the_refusal_before_other_work_of_a_step_once(init: dict[str, Any]) -> None:
    class Late(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            self.optimizer.register_step_pre_hook(lambda *_: None)
            context.use_amp()
            self.clear = self.optimizer.zero_grad

    with pytorch.init(**init) as context:
        trial = Late(context)
        hooks = list(trial.optimizer._optimizer_step_pre_hooks.values())
        assert [hook is _check_step for hook in hooks] == [True, False]
        assert hasattr(trial.clear, _ASKS)
        assert not hasattr(trial.clear.__wrapped__, _ASKS)  # type: ignore[attr-defined]  # of functools.wraps


class _OwnHead(SmallTrial):
    """Trains a head by hand, beside the wrapped model. measures: what it does with the head's gradients."""

    measures: Callable[[Any, list[nn.Parameter]], Any]

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.head = nn.Linear(1, 1)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.context.backward((self.model(batch[0]) ** 2).mean())
        (self.head(batch[0]) ** 2).mean().backward()
        type(self).measures(self, self.chosen())
        with torch.no_grad():
            for parameter in self.head.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
        self.head.zero_grad()
        assert self.head.weight.grad is None
        self.context.step_optimizer(self.optimizer)
        return {}

    def chosen(self) -> list[nn.Parameter]:
        return list(self.head.parameters())


class _BothHeads(_OwnHead):
    def chosen(self) -> list[nn.Parameter]:
        return [*self.head.parameters(), *self.model.parameters()]


MEASURES = [
    lambda trial, parameters: nn.utils.clip_grad_norm_(parameters, 0.1),
    lambda trial, parameters: nn.utils.clip_grad_value_(parameters, 0.1),
    lambda trial, parameters: trial.context.clip_grad_norm(iter(parameters), 0.1),
    lambda trial, parameters: [trial.context.clip_grad_norm(parameter, 0.1) for parameter in parameters],
    lambda trial, parameters: nn.utils.clip_grad_value_(_detached(parameters), 0.1),
]


def _detached(parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    """Returns tensors with views of these gradients."""
    tensors = []
    for parameter in parameters:
        tensor = torch.zeros_like(parameter)
        assert parameter.grad is not None
        tensor.grad = parameter.grad.detach().view_as(parameter)
        tensors.append(tensor)
    return tensors


@pytest.mark.parametrize("measures", MEASURES)
@pytest.mark.parametrize("init", [TWO_BATCHES, {"exp_conf": {"optimizations": {"mixed_precision": "fp16"}}}])
def test_gradients_of_no_wrapped_model_may_be_clipped(
    measures: Callable[[Any, list[nn.Parameter]], Any], init: dict[str, Any]
) -> None:
    fit(type("Trial", (_OwnHead,), {"measures": measures}), init=init, max_length=LENGTH)
    with pytest.raises(GanglineError, match="measures or clips gradients itself"):
        fit(type("Trial", (_BothHeads,), {"measures": measures}), init=init, max_length=LENGTH)


@in_folder
def _look_at_torch(directory: Path, init: dict[str, Any]) -> list[bool]:
    """Returns whether torch's own functions are as they were after a training."""
    before = nn.Module.zero_grad, Optimizer.zero_grad
    trial = fit(_trial_with(lambda inner: inner, clears=True), init=init, max_length=LENGTH)
    return [
        nn.Module.zero_grad is before[0],
        Optimizer.zero_grad is before[1],
        vars(clip_grad)["_group_tensors_by_device_and_dtype"] is _foreach_utils._group_tensors_by_device_and_dtype,
        "zero_grad" not in vars(trial.optimizer),
        not trial.optimizer._optimizer_step_pre_hooks,
    ]


def test_a_step_of_one_call_leaves_torch_as_it_is(tmp_path: Path) -> None:
    assert run_gang(1, tmp_path / "gang", _look_at_torch, tmp_path / "work", {}) == [[True] * 5]
    changed = run_gang(1, tmp_path / "other", _look_at_torch, tmp_path / "work", TWO_BATCHES)
    assert changed == [[False, True, False, False, False]]
