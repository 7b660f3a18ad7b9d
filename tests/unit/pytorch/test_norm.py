"""The norm of gradients of any type is exact, and clipping by it reaches all of their numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gangline.pytorch.parallel.choice import SingleStrategy
from gangline.pytorch.parallel.shared.norm import clip_to_norm


def _parameter(gradient: torch.Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros(gradient.shape, dtype=gradient.dtype))
    parameter.grad = gradient
    return parameter


def test_norm_of_fp16_does_not_overflow() -> None:
    parameter = _parameter(torch.full((4,), 30000.0, dtype=torch.float16))
    assert float(clip_to_norm([parameter], 1.0)) == pytest.approx(60000.0)
    assert parameter.grad is not None
    assert parameter.grad.tolist() == pytest.approx([0.5] * 4, rel=1e-3)


def test_norm_is_over_all_types() -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    parameters = [_parameter(torch.full((4,), 3.0, dtype=dtype)) for dtype in dtypes]
    assert float(clip_to_norm(parameters, 6.0)) == pytest.approx(12.0)
    for parameter in parameters:
        assert parameter.grad is not None
        assert parameter.grad.tolist() == pytest.approx([1.5] * 4, rel=1e-2)


def test_rows_of_a_sparse_gradient_are_added_before_their_norm() -> None:
    indices, values = torch.tensor([[1, 1, 3]]), torch.tensor([[1.0], [2.0], [4.0]])
    parameter = nn.Parameter(torch.zeros(5, 1))
    parameter.grad = torch.sparse_coo_tensor(indices, values, (5, 1), check_invariants=True)
    assert float(clip_to_norm([parameter, _parameter(torch.zeros(2))], 2.5)) == pytest.approx(5.0)
    assert parameter.grad is not None
    assert parameter.grad.to_dense().flatten().tolist() == pytest.approx([0.0, 1.5, 0.0, 2.0, 0.0])


def test_a_single_parameter_is_clipped_as_one_of_several() -> None:
    parameter = _parameter(torch.tensor([3.0, 4.0]))
    assert float(SingleStrategy().clip_gradients(parameter, 2.5)) == pytest.approx(5.0)
    assert parameter.grad is not None
    assert parameter.grad.tolist() == pytest.approx([1.5, 2.0])
