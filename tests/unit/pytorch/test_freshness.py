"""Which backward passes are refused because torch would leave their gradients on one rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from gangline.errors import GanglineError
from gangline.pytorch.parallel.whole.freshness import FreshForwards

_AGAIN = (
    "context.backward was called again without another forward pass of a wrapped model since the last time, so its "
    "gradients would stay on this rank; add losses up for one context.backward, or call the wrapped model itself again "
    "before the next one"
)
_NONE = (
    "context.backward was called, but no wrapped model has made a forward pass with gradients in this batch, so its "
    "gradients would stay on this rank; call the wrapped model itself and not a part of it"
)


class _Batch:
    """A batch of a trial with a few models, with the calls that the strategy and the context make."""

    def __init__(self, count: int) -> None:
        self.forwards = FreshForwards()
        self.models = [nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)) for _ in range(count)]
        self.tell = [self.forwards.add(f"Net{index}", model) for index, model in enumerate(self.models)]
        self.begin()

    def begin(self) -> None:
        self._is_first = True

    def forward(self, index: int) -> torch.Tensor:
        self.tell[index]()
        loss: torch.Tensor = self.models[index](torch.ones(3, 2)).sum()
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        is_first, self._is_first = self._is_first, False
        self.forwards.begin_backward(is_first)
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.forwards.end_backward()


def _refusal(work: Callable[[], None]) -> str:
    with pytest.raises(GanglineError) as caught:
        work()
    assert caught.value.code == "parallelism.backward"
    return caught.value.message


@pytest.mark.parametrize("count", [1, 2])
def test_a_second_backward_pass_and_a_missing_forward_pass_are_told_apart(count: int) -> None:
    batch = _Batch(count)
    part = batch.models[0][2](torch.ones(3, 2)).sum()
    assert _refusal(lambda: batch.backward(part)) == _NONE
    batch.begin()
    loss = batch.forward(0)
    batch.backward(loss)
    assert _refusal(lambda: batch.backward(loss)) == _AGAIN
    batch.backward(batch.forward(0))
    batch.begin()
    assert _refusal(lambda: batch.backward(part)) == _NONE


def test_each_of_several_models_has_its_own_backward_pass() -> None:
    batch = _Batch(3)
    for _ in range(2):
        batch.begin()
        losses = [batch.forward(index) for index in range(3)]
        for loss in losses:
            batch.backward(loss)
    batch.begin()
    batch.backward(batch.forward(0) + batch.forward(2))
    batch.backward(batch.forward(1))


def test_one_model_cannot_use_another_ones_forward_pass() -> None:
    batch = _Batch(2)
    loss, _ = batch.forward(0), batch.forward(1)
    batch.backward(loss)
    assert _refusal(lambda: batch.backward(loss)).startswith("context.backward reached Net0 again without another ")
    batch.begin()
    batch.forward(0)
    part = batch.models[1][2](torch.ones(3, 2)).sum()
    batch.forwards.forget()
    batch.forward(0)
    assert _refusal(lambda: batch.backward(part)) == (
        "context.backward reached Net1, but that model has made no forward pass with gradients in this batch, so its "
        "gradients would stay on this rank; call the wrapped model itself and not a part of it"
    )


def test_other_gradients_count_for_nothing() -> None:
    batch = _Batch(2)
    loss, other_loss = batch.forward(0), batch.forward(1)
    (loss + other_loss).backward(retain_graph=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    batch.backward(loss)
    batch.backward(other_loss)


def test_a_forward_pass_without_exchange_allows_no_backward_pass_with_one() -> None:
    batch = _Batch(1)
    loss = batch.forward(0)
    batch.forwards.forget()
    assert _refusal(lambda: batch.backward(loss)) == _NONE


def test_parameters_that_are_thawed_are_watched_from_then_on() -> None:
    forwards = FreshForwards()
    models = [nn.Linear(2, 1), nn.Linear(2, 1)]
    models[1].requires_grad_(False)
    tell, _ = (forwards.add(f"Net{index}", model) for index, model in enumerate(models))
    models[1].requires_grad_(True)
    forwards.renew(1, models[1])
    tell()
    forwards.begin_backward(True)
    refusal = _refusal(lambda: models[1](torch.ones(3, 2)).sum().backward())
    assert refusal.startswith("context.backward reached Net1, but that model has made no forward pass")
