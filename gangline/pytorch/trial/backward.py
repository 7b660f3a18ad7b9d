"""Checks the arguments of context.backward, and notices a backward pass that bypasses it. Used by the context."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.staged.absent import Absent, refuse_read


def check_loss(loss: Any, gradient: Any) -> None:
    """Raises GanglineError `pytorch.loss` for a loss without a gradient."""
    if type(loss) is not torch.Tensor:
        _check_type(loss)
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


def _check_type(loss: Any) -> None:
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


class _Passes:
    """depth: of the backward passes of context.backward that run, in which torch may begin others. An attribute of an
    object, because each assignment to one of a class makes Python look the class up again."""

    __slots__ = ("depth",)

    def __init__(self) -> None:
        self.depth = 0


PASSES = _Passes()


class OwnBackward:
    """Notices backward passes of a trial past context.backward. is_refused: returns whether a pass that begins now is
    such a one, and may not reach a wrapped model.

    Looks at the beginning of each of torch's backward passes, and adds hooks to the parameters for a refused pass
    alone. Hooks on every pass would cost time in every step.
    """

    def __init__(self, is_refused: Callable[[], bool]) -> None:
        self.is_refused = is_refused
        self._models: list[nn.Module] = []
        _notice_passes()
        _watching[:] = [other for other in _watching if other() is not None] + [weakref.ref(self)]

    def watch(self, model: nn.Module) -> None:
        """Adds a wrapped model."""
        self._models.append(model)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Returns a context for a backward pass. One that reaches a trained parameter of a watched model ends with
        GanglineError `pytorch.own_backward`."""
        with ExitStack() as handles:
            for model in self._models:
                for parameter in model.parameters():
                    if parameter.requires_grad and parameter.is_leaf and not is_lazy(parameter):
                        handle = parameter.register_post_accumulate_grad_hook(_refuse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
                        handles.callback(handle.remove)
            yield


# torch's own name for what runs a backward pass.
_ENGINE = "_engine_run_backward"
_MARK = "_gangline_looks"
# Those of this process's trials.
_watching: list[weakref.ref[OwnBackward]] = []


def _notice_passes() -> None:
    """Puts a look before torch's backward passes. Tensor.backward and torch.autograd.backward call the engine by this
    name; so does torch.autograd.grad, which leaves the gradients of parameters alone. May be called again."""
    for module in (torch.autograd.graph, torch.autograd):
        run = vars(module).get(_ENGINE)
        # torch.compiler takes the name from the first module, and gives it back to both.
        if run is not None and not hasattr(run, _MARK):
            setattr(module, _ENGINE, _noticed(run))


def _noticed(run: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run)
    def noticed(*arguments: Any, **options: Any) -> Any:
        if PASSES.depth or not options.get("accumulate_grad"):
            return run(*arguments, **options)
        living = [watch for reference in _watching if (watch := reference()) is not None]
        refusing = [watch for watch in living if watch.is_refused()]
        if not refusing:
            return run(*arguments, **options)
        with ExitStack() as stack:
            for watch in refusing:
                stack.enter_context(watch.refusing())
            return run(*arguments, **options)

    setattr(noticed, _MARK, True)
    return noticed


def _refuse(_parameter: torch.Tensor) -> None:
    raise own_backward()


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
