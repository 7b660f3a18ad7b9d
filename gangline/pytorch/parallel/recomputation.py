"""Activation checkpointing: modules keep their inputs alone in the forward pass, and run again in the backward pass.

Works below every strategy: a module's own forward is replaced, so hooks, names and the module itself stay as they are.
Random numbers are the same in both runs, and a buffer that the first run changed, as a running statistic, is not
changed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.divided.block import find_blocks
from gangline.pytorch.parallel.shared.ownership import class_name
from gangline.pytorch.parallel.staged.unit import find_units


def recompute(model: nn.Module, kind: str, blocks: Sequence[str] | None = None) -> None:
    """Lets parts of a model run again in the backward pass. Called before the strategy prepares the model.

    kind: `none`; `blocks`: each repeated block; `full`: also the modules before and after the blocks, each by itself.
    blocks: names of the blocks' classes; None finds them. Raises GanglineError `parallelism.activation_checkpointing`
    for a model without blocks.
    """
    if kind == "none":
        return
    chosen = find_blocks(model, blocks)
    if not chosen:
        raise invalid(
            "parallelism.activation_checkpointing",
            f"parallelism.activation_checkpointing: {class_name(model)} has no repeated blocks in an nn.ModuleList or "
            "nn.Sequential; name the classes of its layers with parallelism.blocks, or leave it out",
        )
    if kind == "full":
        chosen += _others(model, chosen)
    for module in chosen:
        module.forward = Recomputed(module)


class Recomputed:
    """The forward of one module. A plain object that refers to the module, so that a copy of the module recomputes the
    copy."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        # A module may have a forward of its own instance, as a compiled one has.
        self._own: Callable[..., Any] | None = vars(module).get("forward")

    def change(self, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Puts `change(forward)` in the place of the forward that runs again."""
        self._own = change(self._forward())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self._forward()
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        buffers = _Buffers(self._module)

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), buffers

        result = checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)
        buffers.note_changes()
        return result

    def _forward(self) -> Callable[..., Any]:
        return self._own or type(self._module).forward.__get__(self._module)


class _Buffers:
    """The buffers that a module's forward changes in place. A context in which it changes copies of them."""

    def __init__(self, module: nn.Module) -> None:
        self._places = [
            (inner, name, buffer, buffer._version)
            for inner in module.modules()
            for name, buffer in inner._buffers.items()
            if buffer is not None
        ]
        self._changed: list[tuple[nn.Module, str]] = []
        self._kept: list[list[tuple[nn.Module, str, torch.Tensor | None]]] = []

    def note_changes(self) -> None:
        self._changed = [
            (inner, name)
            for inner, name, buffer, version in self._places
            # torch changes running statistics without a new version.
            if buffer._version != version or isinstance(inner, _NormBase)
        ]
        self._places.clear()

    def __enter__(self) -> None:
        """Gives the module copies of these buffers until the end of the context. A double backward pass enters it
        twice."""
        kept = [(inner, name, inner._buffers[name]) for inner, name in self._changed]
        for inner, name, buffer in kept:
            inner._buffers[name] = None if buffer is None else buffer.clone()
        self._kept.append(kept)

    def __exit__(self, *failure: object) -> None:
        for inner, name, buffer in self._kept.pop():
            inner._buffers[name] = buffer


def _others(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Returns the modules of a model's chain that are no blocks and have none inside."""
    inside = {id(module) for block in blocks for module in block.modules()}
    try:
        paths = [path for unit in find_units(model) for path in unit.paths]
    except GanglineError:
        return []
    modules = [model.get_submodule(path) for path in paths]
    return [module for module in modules if not any(id(inner) in inside for inner in module.modules())]
