"""A trial's own clipping with torch on one stage of a pipeline, which may lack gradients of an optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad

from gangline.pytorch.parallel.staged.gradient import torch_clipping_over


def _unmeasured(*_: Any) -> torch.Tensor:
    raise AssertionError("no norm is asked for")


def _clip(*gradients: torch.Tensor | None) -> list[torch.Tensor | None]:
    parameters = [nn.Parameter(torch.zeros(2)) for _ in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    with torch_clipping_over(_unmeasured):
        nn.utils.clip_grad_value_(parameters, 0.5)
    return [parameter.grad for parameter in parameters]


def test_a_rank_without_gradients_clips_none_by_their_value() -> None:
    assert _clip() == []
    assert _clip(None, None) == [None, None]


def test_gradients_are_clipped_by_their_value() -> None:
    clipped = _clip(torch.tensor([1.0, -0.25]), None, torch.tensor([-3.0, 0.5]))
    assert [None if gradient is None else gradient.tolist() for gradient in clipped] == [
        [0.5, -0.25],
        None,
        [-0.5, 0.5],
    ]


def test_a_norm_is_asked_for_with_the_parameters_of_torch_s_clipping() -> None:
    asked: list[Any] = []

    def measure(parameters: Any, tensors: Any, *_: Any) -> torch.Tensor:
        asked.append((parameters, tensors))
        return torch.tensor(4.0)

    weight, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    weight.grad = gradient = torch.ones(2)
    with torch_clipping_over(measure):
        nn.utils.clip_grad_norm_([weight, other], 2.0)
        nn.utils.get_total_norm(gradient)
    (parameters, gradients), (unknown, single) = asked
    assert [id(each) for each in parameters] == [id(weight), id(other)]
    assert [id(each) for each in gradients] == [id(gradient)]
    assert (unknown, single is gradient) == (None, True)
    assert gradient.tolist() == pytest.approx([0.5, 0.5])


def test_torch_is_as_before_behind_an_error() -> None:
    before = dict(vars(clip_grad))
    with pytest.raises(ZeroDivisionError), torch_clipping_over(_unmeasured):
        raise ZeroDivisionError
    assert vars(clip_grad) == before
