"""Finds the tensors that a unit leaves in attributes and buffers, and puts placeholders there on later parts.

A later part runs the model's own code on a rank where the unit has not run, and would read what is there from before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gangline.pytorch.parallel.staged.cutting.watch import is_unchanged, versions_by_name
from gangline.pytorch.parallel.staged.layout import Kept, KeptValue, TensorShape, shape_of

_MISSING = object()


class KeptValues:
    """The tensors in attributes and buffers of a unit's module, and of those inside, before it runs."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = versions_by_name(_values_of(module))

    def changed(self, is_computed: Callable[[torch.Tensor], bool]) -> Kept:
        """Returns those that are others by now, as in Described. is_computed: whether a value comes from the input of
        the module."""
        found = []
        for name, value in _values_of(self._module).items():
            noted = self._before.get(name)
            if value is not None and (noted is None or not is_unchanged(noted, value)):
                path, _, key = name.rpartition(".")
                found.append(KeptValue(path, key, shape_of(value), value.requires_grad and is_computed(value)))
        return tuple(found)


@contextmanager
def replaced(module: nn.Module, kept: Kept, make: Callable[[TensorShape], torch.Tensor]) -> Iterator[None]:
    """Puts what `make` returns into the place of values that a unit's module keeps. They are as before afterwards."""
    places: list[tuple[dict[str, Any], str, Any]] = []
    for each in kept:
        owner = module.get_submodule(each.path)
        values: dict[str, Any] = owner._buffers if each.name in owner._buffers else vars(owner)
        places.append((values, each.name, values.get(each.name, _MISSING)))
        values[each.name] = make(each.shape)
    try:
        yield
    finally:
        for values, key, value in reversed(places):
            if value is _MISSING:
                values.pop(key, None)
            else:
                values[key] = value


def _values_of(module: nn.Module) -> dict[str, torch.Tensor | None]:
    found: dict[str, torch.Tensor | None] = {}
    for path, inner in module.named_modules():
        own = {key: value for key, value in vars(inner).items() if isinstance(value, torch.Tensor)}
        found |= {f"{path}.{key}" if path else key: value for key, value in (*inner._buffers.items(), *own.items())}
    return found
