"""Finds modules whose gradients are sparse tensors."""

from __future__ import annotations

from torch import nn


def sparse_module(model: nn.Module) -> str | None:
    """Returns the name of the first trained module with sparse gradients, as Net.table; None where there is none."""
    for path, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if getattr(module, "sparse", False) is True and isinstance(weight, nn.Parameter) and weight.requires_grad:
            return f"{type(model).__name__}.{path}" if path else type(model).__name__
    return None
