"""Follows values through one run of a part: parameters without values, and placeholders for outputs of other parts.

A placeholder may be computed with as long as nothing comes of it. The watch finds those that reach the part's output,
those by whose values the model decides what to run, and what the model changes in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gangline.pytorch.parallel.staged.layout import tensors_of


class ValuesNeeded(BaseException):
    """Ends a run that needs values of other parts. parameters: read outside of their modules. outputs: paths of modules
    of earlier parts."""

    def __init__(self, parameters: Sequence[torch.Tensor] = (), outputs: Iterable[str] = ()) -> None:
        super().__init__()
        self.parameters = list(parameters)
        self.outputs = sorted(outputs)


class ValueWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Raises ValuesNeeded where an operation reads a parameter without a value, as torch 2.13 returns arbitrary numbers
    for some operations on a CPU tensor and one on the meta device. Also where a Python value, or the shape of a result,
    comes from a placeholder."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.versions = Versions()
        # Paths of the modules whose placeholders are in a storage's values.
        self._sources: dict[Any, frozenset[str]] = {}
        # Tensors whose storages must not be used again meanwhile.
        self._kept: list[torch.Tensor] = []

    def add(self, placeholder: torch.Tensor, path: str) -> None:
        self._mark(placeholder, frozenset((path,)))

    def sources_of(self, tensors: Sequence[torch.Tensor]) -> frozenset[str]:
        """Returns the paths of the modules whose placeholders are in these tensors' values."""
        if not self._sources:
            return frozenset()
        return frozenset().union(*(self._sources.get(_key_of(tensor), ()) for tensor in tensors))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = tensors_of((args, kwargs or {}))
        without_values = [tensor for tensor in read if tensor.is_meta]
        if without_values:
            raise ValuesNeeded(without_values)
        sources = self.sources_of(read)
        if sources and (torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags):
            raise ValuesNeeded(outputs=sources)
        result = func(*args, **(kwargs or {}))
        if sources and not _is_value_free(func):
            for tensor in tensors_of(result):
                self._mark(tensor, sources)
        return result

    def _mark(self, tensor: torch.Tensor, sources: frozenset[str]) -> None:
        key = _key_of(tensor)
        if key not in self._sources:
            self._kept.append(tensor)
        self._sources[key] = self._sources.get(key, frozenset()) | sources


class ReadWatch(TorchFunctionMode):
    """Raises ValuesNeeded where values of a placeholder are read without an operation. It runs beside the watch."""

    def __init__(self, watch: ValueWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS:
            sources = self._watch.sources_of(tensors_of(args))
            if sources:
                raise ValuesNeeded(outputs=sources)
        return func(*args, **(kwargs or {}))


_READS = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__)


class Versions:
    """Finds out what one run of a part changes in place."""

    def __init__(self) -> None:
        self._inputs: list[tuple[torch.Tensor, int]] = []
        self._outputs: dict[str, list[tuple[torch.Tensor, int]]] = {}
        self._buffers: dict[str, tuple[torch.Tensor, int]] | None = None

    def note_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Called before the run with what came from other parts."""
        self._inputs = _versions_of(inputs)

    def note_outputs(self, path: str, outputs: Sequence[torch.Tensor]) -> None:
        """Called when a module has run whose output goes to later parts, and for outputs of earlier parts that do."""
        self._outputs[path] = _versions_of(outputs)

    def outputs(self) -> dict[str, list[tuple[torch.Tensor, int]]]:
        """Returns the noted outputs by path, with their present versions."""
        return {path: _versions_of([tensor for tensor, _ in noted]) for path, noted in self._outputs.items()}

    def changed_since(self, before: Mapping[str, Sequence[tuple[torch.Tensor, int]]]) -> str | None:
        """Returns the path of an output that was changed since `outputs` returned these; None where there is none."""
        return next((path for path, noted in before.items() if _is_changed(noted)), None)

    def note_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Called when a unit runs. The first call counts."""
        if self._buffers is None:
            self._buffers = {name: (buffer, _version_of(buffer)) for name, buffer in buffers.items()}

    @property
    def changes_inputs(self) -> bool:
        return _is_changed(self._inputs)

    @property
    def changes_outputs(self) -> bool:
        return any(map(_is_changed, self._outputs.values()))

    def changed_buffer(self) -> str | None:
        """Returns the name of a buffer that was changed since the first unit ran; None where there is none."""
        noted = self._buffers or {}
        return next((name for name, (buffer, version) in noted.items() if _version_of(buffer) != version), None)


def _version_of(tensor: torch.Tensor) -> int:
    # Tensors of torch.inference_mode have no versions.
    return 0 if tensor.is_inference() else tensor._version


def _is_changed(noted: Sequence[tuple[torch.Tensor, int]]) -> bool:
    return any(_version_of(tensor) != version for tensor, version in noted)


def _versions_of(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    return [(tensor, _version_of(tensor)) for tensor in tensors]


def _key_of(tensor: torch.Tensor) -> Any:
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        # Sparse tensors have no storage.
        return id(tensor)


def _is_value_free(func: Any) -> bool:
    """Returns whether an operation reads only the shape, the type and the device of its input, as zeros_like."""
    name = str(func._schema.name).partition("::")[2]
    return name.endswith("_like") or name.startswith("new_")
