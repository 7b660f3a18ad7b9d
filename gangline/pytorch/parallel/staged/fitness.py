"""Checks whether the strategy `pipeline` can train a model, before the model is cut."""

from __future__ import annotations

import torch
from torch import nn

from gangline.config.pipeline import SCHEDULES
from gangline.errors import invalid
from gangline.pytorch.parallel.shared.ownership import check_initialised, class_name, inner_of
from gangline.pytorch.parallel.shared.strategy import sparse_module
from gangline.pytorch.parallel.staged.compiled import (
    has_cuda_graphs,
    is_compiled,
    refuse_compilation,
    refuse_cuda_graphs,
)


def check_model(model: nn.Module, wrapped: nn.Module | None, schedule: str, device: torch.device | None = None) -> None:
    """Raises GanglineError `parallelism.*` for a model that cannot be trained. wrapped: the model that the trial has
    wrapped before it. device: of the rank; None for a CPU."""
    if wrapped is not None:
        raise invalid(
            "parallelism.model",
            f"pipeline trains one model, but {class_name(model)} is wrapped after {class_name(wrapped)}; put "
            "both into one nn.Module, or use ddp",
        )
    if isinstance(inner_of(model), torch.jit.ScriptModule):
        raise invalid(
            "parallelism.model",
            f"pipeline cannot cut {class_name(model)}, which TorchScript has compiled; pass the module itself, or "
            "torch.compile of it",
        )
    check_initialised(model)
    sparse = sparse_module(model)
    if sparse is not None:
        raise invalid(
            "parallelism.model",
            f"pipeline cannot join the sparse gradients of {sparse}; make it with sparse=False, or use ddp",
        )
    if is_compiled(model) and not SCHEDULES[schedule].can_compile:
        raise refuse_compilation(schedule)
    if device is not None and device.type == "cuda" and has_cuda_graphs(model):
        raise refuse_cuda_graphs(inner_of(model))
