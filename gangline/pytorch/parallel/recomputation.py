"""Activation checkpointing: modules keep their inputs alone in the forward pass, and run again in the backward pass.

Works below every strategy: a module's own forward is replaced, so hooks, names and the module itself stay as they are.
A module runs again from the state that it had before its first run, and leaves the present state as it is. A module
with state that cannot be put back does not run again.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.divided.block import find_blocks
from gangline.pytorch.parallel.forward_state import find_obstacle
from gangline.pytorch.parallel.recomputed import Recomputed, log_chosen
from gangline.pytorch.parallel.shared.ownership import class_name
from gangline.pytorch.parallel.staged.unit import find_units


def recompute(model: nn.Module, kind: str, blocks: Sequence[str] | None = None, *, is_logged: bool = True) -> list[str]:
    """Lets parts of a model run again in the backward pass, and logs which. Called before the strategy prepares the
    model. Returns a line for each part that is left out, because it has state that cannot be put back.

    kind: `none`; `blocks`: each repeated block; `full`: also the modules before and after the blocks, each by itself.
    blocks: names of the blocks' classes; None finds them. is_logged: False for a plan, which trains nothing. Raises
    GanglineError `parallelism.activation_checkpointing` for a model without blocks, and where none of the parts can run
    again.
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
    class_names: list[str] = []
    for module in chosen:
        name, obstacle = f"{names[id(module)]} ({class_name(module)})", find_obstacle(module)
        if obstacle:
            left_out.append(f"{name} has {obstacle}")
        else:
            module.forward = Recomputed(module, name)
            class_names.append(class_name(module))
    if len(left_out) == len(chosen):
        raise invalid(
            "parallelism.activation_checkpointing",
            f"parallelism.activation_checkpointing: no part of {class_name(model)} can run again: {left_out[0]}; leave "
            "it out",
        )
    if is_logged:
        log_chosen(class_names)
    return left_out


def _others(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Returns the modules of a model's chain that are no blocks and have none inside."""
    inside = {id(module) for block in blocks for module in block.modules()}
    try:
        paths = [path for unit in find_units(model) for path in unit.paths]
    except GanglineError:
        return []
    modules = [model.get_submodule(path) for path in paths]
    return [module for module in modules if not any(id(inner) in inside for inner in module.modules())]
