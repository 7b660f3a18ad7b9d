"""Finds the modules that are gathered one at a time when a model's parameters are divided over ranks.

Good blocks are many modules of one class in a row, like the layers of a transformer or the blocks of a residual
network. One of them is small beside the whole. Parameters outside of all blocks are gathered with the model itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from torch import nn

from gangline.errors import invalid

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def find_blocks(model: nn.Module, class_names: Sequence[str] | None = None) -> list[nn.Module]:
    """Returns the outermost blocks, in the model's order. class_names: the user's choice of classes; None looks for
    members of the same class in the model's lists and sequences.

    A block that shares a parameter with anything outside of it is left out: both must be gathered together. Raises
    GanglineError `parallelism.blocks` for an unknown class name.
    """
    is_block = _by_name(model, class_names) if class_names is not None else _repeated(model)
    blocks = _outermost(model, is_block)
    owners = Counter(id(parameter) for block in blocks for parameter in _unique(block.parameters()))
    outside = {id(parameter) for parameter in _outside(model, blocks)}
    return [
        block
        for block in blocks
        if all(owners[id(parameter)] == 1 and id(parameter) not in outside for parameter in block.parameters())
    ]


def _by_name(model: nn.Module, class_names: Sequence[str]) -> set[int]:
    block_ids = {
        id(module) for module in model.modules() if type(module).__name__ in class_names and module is not model
    }
    present = {type(module).__name__ for module in model.modules()}
    for name in class_names:
        if name not in present:
            raise invalid(
                "parallelism.blocks",
                f"parallelism.blocks: {type(model).__name__} has no module of class {name!r}; its classes are "
                f"{', '.join(sorted(present))}",
            )
    return block_ids


def _repeated(model: nn.Module) -> set[int]:
    block_ids: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            # children() would skip a layer that is in the list a second time.
            children = [child for child in module._modules.values() if child is not None and is_callable_part(child)]
            counts = Counter(type(child) for child in children)
            block_ids |= {id(child) for child in children if counts[type(child)] > 1}
    return block_ids


def is_callable_part(module: nn.Module) -> bool:
    """Returns whether a module has parameters and a forward. Lists have no forward, so no hook shows when they are
    needed."""
    has_parameters = next(iter(module.parameters()), None) is not None
    return has_parameters and not isinstance(module, _CONTAINERS)


def _outermost(model: nn.Module, chosen: set[int]) -> list[nn.Module]:
    outermost: list[nn.Module] = []
    seen: set[int] = set()

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if id(child) in chosen and id(child) not in seen:
                seen.add(id(child))
                outermost.append(child)
            elif id(child) not in chosen:
                visit(child)

    visit(model)
    return outermost


def _outside(model: nn.Module, blocks: Sequence[nn.Module]) -> Iterable[nn.Parameter]:
    inside = {id(module) for block in blocks for module in block.modules()}
    for module in model.modules():
        if id(module) not in inside:
            yield from module.parameters(recurse=False)


def _unique(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return list({id(parameter): parameter for parameter in parameters}.values())
