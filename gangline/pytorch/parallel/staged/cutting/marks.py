"""Marks where values come from: for each storage the modules from whose outputs its values were computed.

Used by gangline.pytorch.parallel.staged.cutting.watch in one part of a model, and by gangline.pytorch.plan.connections
in a whole one. Marks keep no tensor alive, so that neither bytes in training nor those that a plan measures change.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gangline.pytorch.parallel.staged.layout import tensors_of

Sources = frozenset[str]
NONE: Sources = frozenset()
# Functions that read values without an operation.
_READS = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.tensor, torch.as_tensor, torch.asarray)
# Functions that need the graph from a tensor on, or behind it.
_GRADIENTS = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)
_HOOKS = (torch.Tensor.register_hook, torch.Tensor.retain_grad)


class Marks:
    """The paths of modules by storage. Sparse tensors have no storage, and no marks."""

    def __init__(self) -> None:
        self._sources: weakref.WeakKeyDictionary[torch.UntypedStorage, Sources] = weakref.WeakKeyDictionary()

    def add(self, value: Any, sources: Sources) -> None:
        """Adds paths to the tensors of a nested value."""
        for storage in storages_of(value):
            self._sources[storage] = self._sources.get(storage, NONE) | sources

    def replace(self, value: Any, sources: Sources) -> None:
        """Gives the tensors of a nested value these paths alone."""
        for storage in storages_of(value):
            self._sources[storage] = sources

    def clear(self) -> None:
        self._sources.clear()

    def sources_of(self, value: Any) -> Sources:
        """Returns the paths of the modules from whose outputs a nested value comes."""
        if not self._sources:
            return NONE
        return NONE.union(*(self._sources.get(storage, NONE) for storage in storages_of(value)))

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, sources: Sources) -> None:
        """Adds the sources of an operation's arguments to its result, and to the arguments that it has changed."""
        if not is_value_free(func):
            self.add(result, sources)
            if func._schema.is_mutable:
                self.add(changed_by(func, args, kwargs), sources)


class ReadWatch(TorchFunctionMode):
    """Calls `found` with the sources of values that are read without an operation, and `used_graph` with the name of a
    function that uses graphs. hooked: the tensor that a hook or a gradient is to stay at; None for gradients computed
    at once."""

    def __init__(self, marks: Marks, found: Callable[[Sources], None]) -> None:
        super().__init__()
        self._marks = marks
        self._found = found
        self.used_graph: Callable[[str, torch.Tensor | None], None] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS:
            sources = self._marks.sources_of(args)
            if sources:
                self._found(sources)
        if self.used_graph is not None and (func in _GRADIENTS or func in _HOOKS):
            self.used_graph(func.__name__, args[0] if func in _HOOKS else None)
        return func(*args, **(kwargs or {}))


def depends_on_values(func: Any) -> bool:
    """Returns whether an operation gives Python a value of its input, or a shape that comes of such values."""
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def storages_of(value: Any) -> Iterator[torch.UntypedStorage]:
    """Yields the storages of a nested value's tensors."""
    for tensor in tensors_of(value):
        try:
            yield tensor.untyped_storage()
        except NotImplementedError:
            continue


def changed_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Returns the arguments that an operation writes to."""
    schema = func._schema.arguments
    by_place = [value for argument, value in zip(schema, args, strict=False) if _is_written(argument)]
    return by_place + [
        kwargs[argument.name] for argument in schema if argument.name in kwargs and _is_written(argument)
    ]


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def is_value_free(func: Any) -> bool:
    """Returns whether an operation reads only the shape, the type and the device of its input, as zeros_like."""
    name = str(func._schema.name).partition("::")[2]
    return name.endswith("_like") or name.startswith("new_")
