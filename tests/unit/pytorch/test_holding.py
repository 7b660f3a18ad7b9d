"""The ranks that hold a model's tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from gangline.pytorch.parallel.shared.ownership import plain_name
from gangline.pytorch.parallel.staged.holding import Holding
from gangline.pytorch.parallel.staged.unit import find_units


class _Layer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("scale", torch.ones(4))


class _Nested(nn.Module):
    """Has all of its units inside of one module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"layers": nn.ModuleList(_Layer() for _ in range(4))})


def _compile(model: nn.Module) -> nn.Module:
    compiled: nn.Module = torch.compile(model)  # type: ignore[assignment]  # torch types it as a function
    return compiled


def _compile_inside(model: _Nested) -> nn.Module:
    model.inner["layers"] = _compile(model.inner["layers"])
    return model


@pytest.mark.parametrize(
    "change",
    [lambda model: model, _compile, _compile_inside, lambda model: _compile(_compile_inside(model))],
    ids=["plain", "whole", "inside", "both"],
)
def test_each_rank_holds_its_units_in_a_compiled_model_too(change: Callable[[_Nested], nn.Module]) -> None:
    model = change(_Nested())
    units = find_units(model)
    holding = Holding(model, units, [0, 0, 1, 1], 2)
    for rank in range(2):
        layers = (f"inner.layers.{2 * rank + place}" for place in range(2))
        wanted = {f"{layer}.{name}" for layer in layers for name in ("weight", "bias", "scale")}
        assert set(map(plain_name, holding.names_of(rank))) == wanted
