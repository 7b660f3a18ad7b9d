"""Norms that a trial measures in clip_grads on one stage of a pipeline, with arguments of any kind that torch takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in __all__

from gangline.errors import GanglineError
from gangline.pytorch.parallel.staged.holding import Holding
from gangline.pytorch.parallel.staged.norm_agreement import NormAgreement


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _model(*gradient: float) -> tuple[nn.Linear, torch.Tensor]:
    """Returns a model of one weight with this gradient, in two rows, and the gradient."""
    model = nn.Linear(len(gradient) // 2, 2, bias=False)
    model.weight.grad = torch.tensor(gradient).reshape(2, -1)
    return model, model.weight.grad


def _agreement(model: nn.Module) -> NormAgreement:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return NormAgreement(Holding(model, [], [], 1), 0, None, torch.device("cpu"), optimizer)


def test_a_single_gradient_is_one_tensor_and_not_its_rows() -> None:
    model, gradient = _model(3.0, 0.0, 0.0, 4.0)
    with _agreement(model).over_torch():
        assert float(nn.utils.get_total_norm(gradient)) == 5.0
        assert float(nn.utils.get_total_norm(gradient, float("inf"))) == 4.0
        assert float(nn.utils.clip_grad_norm_(model.weight, 2.5)) == 5.0
    assert gradient.tolist() == [pytest.approx([1.5, 0.0]), pytest.approx([0.0, 2.0])]


def test_a_part_of_a_gradient_is_refused() -> None:
    model, gradient = _model(3.0, 0.0, 0.0, 4.0)
    with pytest.raises(GanglineError, match="norm of tensors that are no gradients"), _agreement(model).over_torch():
        nn.utils.get_total_norm(list(gradient))


def test_a_norm_that_is_not_finite_is_an_error_where_that_is_wanted() -> None:
    model, gradient = _model(float("inf"), 0.0)
    with _agreement(model).over_torch():
        assert float(nn.utils.get_total_norm([gradient])) == float("inf")
        with pytest.raises(RuntimeError, match="non-finite"):
            nn.utils.get_total_norm([gradient], error_if_nonfinite=True)
