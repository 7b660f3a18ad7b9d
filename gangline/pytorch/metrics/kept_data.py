"""Restores the data that a metric reducer keeps, for a batch whose records must not count.

Values are restored in place, because other objects may hold a list, a tensor or a buffer of the reducer too. Objects
and tensors of wrapped models are left as they are: the batch has changed them for the training. Used by Reducers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

# Types of attributes that are copied and restored.
_PLAIN = (int, float, complex, str, bytes, list, tuple, set, dict, deque, np.ndarray, torch.Tensor, type(None))
# Attributes of a module that are no data of a metric. `_parameters` and `_modules` keep their entries.
_LEFT_OUT = ("_modules", "_parameters")


class KeptData:
    """The present data of a reducer: the numbers, collections, arrays and tensors in its attributes, and in those of
    modules and of objects with nothing but such data that it keeps there. models: the trial's wrapped ones."""

    def __init__(self, reducer: Any, models: Iterable[nn.Module]) -> None:
        modules = [module for model in models for module in model.modules()]
        self._modules = set(map(id, modules))
        self._tensors = {
            id(tensor) for module in modules for tensor in (*module._parameters.values(), *module._buffers.values())
        }
        self._restorers = [(vars(each), self._attributes_of(each)) for each in self._owners(reducer)]

    def restore(self) -> None:
        for attributes, restorers in self._restorers:
            attributes.update({name: restore() for name, restore in restorers.items()})

    def _owners(self, reducer: Any) -> Iterator[Any]:
        """Yields the reducer and the objects among its attributes that may be its data."""
        if isinstance(reducer, nn.Module):
            yield from self._own_modules(reducer)
        else:
            yield reducer
        for value in vars(reducer).values():
            if isinstance(value, nn.Module):
                yield from self._own_modules(value)
            elif all(isinstance(entry, _PLAIN) for entry in getattr(value, "__dict__", {"": reducer}).values()):
                yield value

    def _own_modules(self, module: nn.Module) -> Iterator[nn.Module]:
        """Yields a module and those inside of it, without any that is, contains or belongs to a wrapped model."""
        for each in module.modules():
            if not any(id(part) in self._modules for part in each.modules()):
                yield each

    def _attributes_of(self, owner: Any) -> dict[str, Callable[[], Any]]:
        return {
            name: self._restorer(value)
            for name, value in vars(owner).items()
            if isinstance(value, _PLAIN) and not (isinstance(owner, nn.Module) and _is_left_out(name))
        }

    def _restorer(self, value: Any) -> Callable[[], Any]:
        """Returns a function that gives a value its present content again and returns the value."""
        if isinstance(value, torch.Tensor) and id(value) not in self._tensors:
            content = value.detach().clone()
            return lambda: _restore_tensor(value, content)
        if isinstance(value, np.ndarray) and value.flags.writeable:
            array = value.copy()
            return lambda: _restore_array(value, array)
        if isinstance(value, dict):
            entries = {key: self._restorer(entry) for key, entry in value.items()}
            return lambda: _restore_dict(value, entries)
        if isinstance(value, list | tuple | deque):
            parts = [self._restorer(entry) for entry in value]
            return lambda: _restore_sequence(value, parts)
        if isinstance(value, set):
            members = set(value)
            return lambda: _restore_set(value, members)
        return lambda: value


def _is_left_out(name: str) -> bool:
    # A hook that the block registers or removes stays so.
    return name in _LEFT_OUT or "_hooks" in name


@torch.no_grad()
def _restore_tensor(value: torch.Tensor, content: torch.Tensor) -> torch.Tensor:
    if value.is_inference():
        # torch changes such a tensor in inference mode only.
        return content
    if value.shape != content.shape or value.dtype is not content.dtype:
        value.data = content
    elif value.layout is not torch.strided or not torch.equal(value, content):
        # An unchanged tensor is not written to: a backward pass may still need it.
        value.copy_(content)
    return value


def _restore_array(value: Any, content: Any) -> Any:
    if value.shape != content.shape:
        return content
    value[...] = content
    return value


def _restore_dict(value: dict[Any, Any], entries: dict[Any, Callable[[], Any]]) -> dict[Any, Any]:
    restored = {key: restore() for key, restore in entries.items()}
    value.clear()
    value.update(restored)
    return value


def _restore_sequence(value: Any, parts: list[Callable[[], Any]]) -> Any:
    restored = [restore() for restore in parts]
    if not isinstance(value, tuple):
        value.clear()
        value.extend(restored)
    return value


def _restore_set(value: set[Any], members: set[Any]) -> set[Any]:
    value.clear()
    value.update(members)
    return value
