"""Finds values that a unit computes and does not return, where other code of the model uses them.

Such a value has another way than the unit's output: an attribute, a list, a hook. A part has it of its own units only,
so a model that adds such values up would train on some of them without an error.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from gangline.pytorch.parallel.staged.cutting.marks import is_value_free, storages_of
from gangline.pytorch.parallel.staged.layout import tensors_of


class InnerValues:
    """Follows what units compute from their inputs and do not return, as losses of their own that the model adds up. No
    other part has such values. Values of parameters and integers alone, as tables that a model caches, are none."""

    def __init__(self) -> None:
        self._path_by_storage: weakref.WeakKeyDictionary[torch.UntypedStorage, str] = weakref.WeakKeyDictionary()
        self._inputs: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._outputs: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._path = ""

    def enter(self, path: str, inputs: Any) -> None:
        """Called before a unit's module runs."""
        self._path = path
        floats = [tensor for tensor in tensors_of(inputs) if tensor.is_floating_point()]
        self._inputs = weakref.WeakSet(storages_of(floats))

    def leave(self, output: Any) -> None:
        """Called with what the module returns."""
        self._path = ""
        for storage in storages_of(output):
            self._path_by_storage.pop(storage, None)
            self._outputs.add(storage)

    def note(self, func: Any, operands: Sequence[torch.Tensor], result: Any) -> None:
        """Called after each operation."""
        if not self._path or is_value_free(func):
            return
        given = list(storages_of(operands))
        if any(storage in self._inputs or self._path_by_storage.get(storage) == self._path for storage in given):
            for storage in storages_of(result):
                if storage not in given:
                    self._path_by_storage[storage] = self._path

    def unit_of(self, value: Any) -> str | None:
        """Returns another module from whose inside a value comes; None for none."""
        paths = (self._path_by_storage.get(storage) for storage in storages_of(value))
        return next((path for path in paths if path not in (None, self._path)), None)

    def is_computed(self, value: torch.Tensor) -> bool:
        """Returns whether a unit has computed a value from its inputs, whether it returns it or not."""
        return any(each in self._path_by_storage or each in self._outputs for each in storages_of(value))
