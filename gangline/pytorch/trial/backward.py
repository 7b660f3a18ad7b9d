"""Checks the arguments of context.backward, and notices a backward pass that bypasses it. Used by the context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.staged.absent import Absent, refuse_read


def check_loss(loss: Any, gradient: Any) -> None:
    """Raises GanglineError `pytorch.loss` for a loss without a gradient."""
    if not isinstance(loss, torch.Tensor):
        raise invalid(
            "pytorch.loss",
            f"context.backward got a {type(loss).__name__}; pass the loss as the tensor that it was computed as, "
            "without .item()",
        )
    if isinstance(loss, DTensor):
        raise invalid(
            "pytorch.shard_used",
            "context.backward got a loss that uses parameters of which each rank has a part; compute penalties on "
            "weights in the forward pass of the module that has them, or set parallelism.blocks to [] so that the "
            "whole model is gathered at once, or use the optimizer's weight_decay, ddp or zero1",
        )
    if isinstance(loss, Absent):
        raise refuse_read(loss)
    if gradient is None and loss.numel() != 1:
        raise invalid(
            "pytorch.loss",
            f"context.backward got a loss of shape {list(loss.shape)} where it needs one number; pass its mean, as in "
            "context.backward(loss.mean())",
        )
    if not loss.requires_grad:
        raise invalid(
            "pytorch.loss",
            "context.backward got a loss that depends on no trained parameter; compute it from the output of a wrapped "
            "model, without torch.no_grad() and .detach(), and leave some parameters with requires_grad",
        )


def watch_gradients(model: nn.Module, on_gradient: Callable[[], None]) -> None:
    """Adds hooks to a model. on_gradient: called when a backward pass has made gradients of this model. Only the first
    and the last trained parameter get a hook, because a hook on each would cost time in every pass."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad and not is_lazy(parameter)]
    for parameter in {id(parameter): parameter for parameter in (*trained[:1], *trained[-1:])}.values():
        parameter.register_post_accumulate_grad_hook(lambda _: on_gradient())  # type: ignore[no-untyped-call]  # torch leaves it untyped


def own_backward() -> GanglineError:
    return invalid(
        "pytorch.own_backward",
        "train_batch made gradients without context.backward, so they lack its weights for the last records of an "
        "epoch, for aggregation and for fp16; call context.backward(loss) in the place of loss.backward(), or "
        "torch.autograd.grad where no optimizer uses the gradients",
    )


def second_order(strategy: str) -> GanglineError:
    return invalid(
        "pytorch.second_order",
        f"context.backward(create_graph=True) with {strategy}: the exchange of gradients between ranks cannot be "
        "differentiated; make a penalty with torch.autograd.grad(..., create_graph=True) and add it to the loss of one "
        "context.backward, or train on one slot",
    )
