"""The forward pass of one module in mixed precision."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import nn

from gangline import pytorch


class Pair(NamedTuple):
    first: Any
    second: Any


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, values: torch.Tensor) -> Any:
        """Returns results whose type the test looks at, and that of the product itself."""
        product = self.linear(values)
        return OrderedDict(
            pair=Pair([product], (product, 7)), kind=str(product.dtype), whole=torch.ones(1, dtype=torch.int64)
        )


def test_the_forward_pass_runs_in_half_precision_and_returns_float32() -> None:
    with pytorch.init() as context:
        model = context.wrap_model(Nested())
        names = list(model.state_dict())
        assert context.autocast_forward_pass(model) is model
        results = model(torch.ones(2, 4, device=context.device))
    assert results["kind"] in ("torch.bfloat16", "torch.float16")
    assert isinstance(results, OrderedDict)
    assert isinstance(results["pair"], Pair)
    assert results["pair"].first[0].dtype == results["pair"].second[0].dtype == torch.float32
    assert (results["pair"].second[1], results["whole"].dtype) == (7, torch.int64)
    assert list(model.state_dict()) == names
    results["pair"].first[0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
