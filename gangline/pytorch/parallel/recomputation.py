"""Activation checkpointing: modules keep their inputs alone in the forward pass, and run again in the backward pass.

Works below every strategy: a module's own forward is replaced, so hooks, names and the module itself stay as they are.
A module runs again from the state that it had before its first run, and leaves the present state as it is. A module
with state that cannot be put back does not run again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.divided.block import find_blocks
from gangline.pytorch.parallel.forward_state import ForwardState, find_obstacle
from gangline.pytorch.parallel.shared.ownership import class_name
from gangline.pytorch.parallel.staged.unit import find_units
from gangline.pytorch.parallel.state_place import Unrestorable

_log = logging.getLogger("gangline")


def recompute(model: nn.Module, kind: str, blocks: Sequence[str] | None = None) -> list[str]:
    """Lets parts of a model run again in the backward pass. Called before the strategy prepares the model. Returns a
    line for each part that is left out, because it has state that cannot be put back.

    kind: `none`; `blocks`: each repeated block; `full`: also the modules before and after the blocks, each by itself.
    blocks: names of the blocks' classes; None finds them. Raises GanglineError `parallelism.activation_checkpointing`
    for a model without blocks, and where none of the parts can run again.
    """
    if kind == "none":
        return []
    chosen = find_blocks(model, blocks)
    if not chosen:
        raise invalid(
            "parallelism.activation_checkpointing",
            f"parallelism.activation_checkpointing: {class_name(model)} has no repeated blocks in an nn.ModuleList or "
            "nn.Sequential; name the classes of its layers with parallelism.blocks, or leave it out",
        )
    if kind == "full":
        chosen += _others(model, chosen)
    names = {id(module): name for name, module in model.named_modules()}
    left_out: list[str] = []
    for module in chosen:
        name, obstacle = f"{names[id(module)]} ({class_name(module)})", find_obstacle(module)
        if obstacle:
            left_out.append(f"{name} has {obstacle}")
        else:
            module.forward = Recomputed(module, name)
    if len(left_out) == len(chosen):
        raise invalid(
            "parallelism.activation_checkpointing",
            f"parallelism.activation_checkpointing: no part of {class_name(model)} can run again: {left_out[0]}; leave "
            "it out",
        )
    return left_out


def log_left_out(lines: Sequence[str]) -> None:
    """Logs the parts that are left out, in one line of one rank."""
    if lines and (not dist.is_initialized() or dist.get_rank() == 0):
        _log.info("activation_checkpointing leaves out what cannot run again from the same state: %s", "; ".join(lines))


class Recomputed:
    """The forward of one module. A plain object that refers to the module, so that a copy of the module recomputes the
    copy. name: of the module, for messages."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module = module
        self._name = name
        self._is_left_out = False
        # Paths of large tensors that the forward passes so far have not changed.
        self._unchanged: set[tuple[Any, ...]] = set()
        # A module may have a forward of its own instance, as a compiled one has.
        self._own: Callable[..., Any] | None = vars(module).get("forward")

    def change(self, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Puts `change(forward)` in the place of the forward that runs again."""
        self._own = change(self._forward())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self._forward()
        if not torch.is_grad_enabled() or self._is_left_out:
            return forward(*args, **kwargs)
        try:
            state = ForwardState(self._module, self._unchanged, (*args, *kwargs.values()))
        except Unrestorable as obstacle:
            self._is_left_out = True
            log_left_out([f"{self._name} has {obstacle}"])
            return forward(*args, **kwargs)
        state.copy()

        def run(*values: Any) -> Any:
            return forward(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))

        # torch looks for devices, whose random numbers it repeats, among the positional arguments alone.
        result = checkpoint(
            run, *args, *kwargs.values(), use_reentrant=False, context_fn=lambda: (nullcontext(), state)
        )
        state.settle(self._name)
        return result

    def _forward(self) -> Callable[..., Any]:
        return self._own or type(self._module).forward.__get__(self._module)


def _others(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Returns the modules of a model's chain that are no blocks and have none inside."""
    inside = {id(module) for block in blocks for module in block.modules()}
    try:
        paths = [path for unit in find_units(model) for path in unit.paths]
    except GanglineError:
        return []
    modules = [model.get_submodule(path) for path in paths]
    return [module for module in modules if not any(id(inner) in inside for inner in module.modules())]
