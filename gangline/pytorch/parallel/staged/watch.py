"""Follows values through one run of a part: parameters without values, and placeholders for outputs of other parts.

A placeholder may be computed with as long as nothing comes of it. The watch finds those that reach the part's output,
those by whose values the model decides what to run, and what the model changes in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from gangline.pytorch.parallel.staged.layout import tensors_of


class ValuesNeeded(BaseException):
    """Ends a run that needs values of other parts. parameters: read outside of their modules. outputs: paths of modules
    of earlier parts."""

    def __init__(self, parameters: Sequence[torch.Tensor] = (), outputs: Iterable[str] = ()) -> None:
        super().__init__()
        self.parameters = list(parameters)
        self.outputs = sorted(outputs)


class _Marks:
    """Which storages have values that come from placeholders."""

    def __init__(self) -> None:
        # Paths of the modules whose placeholders are in a storage's values.
        self._sources: dict[Any, frozenset[str]] = {}
        # Tensors whose storages must not be used again meanwhile.
        self._kept: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor, sources: frozenset[str]) -> None:
        key = _key_of(tensor)
        if key not in self._sources:
            self._kept.append(tensor)
        self._sources[key] = self._sources.get(key, frozenset()) | sources

    def sources_of(self, tensors: Sequence[torch.Tensor]) -> frozenset[str]:
        if not self._sources:
            return frozenset()
        return frozenset().union(*(self._sources.get(_key_of(tensor), ()) for tensor in tensors))

    def concern(self, values: Any) -> bool:
        return bool(self._sources) and bool(self.sources_of(tensors_of(values)))


class ValueWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Raises ValuesNeeded where an operation reads a parameter without a value, as torch 2.13 returns arbitrary numbers
    for some operations on a CPU tensor and one on the meta device. Also where a Python value, or the shape of a result,
    comes from a placeholder.

    A placeholder that is changed in place stays as it is, because its elements share their memory.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._marks = _Marks()
        self._placeholders: set[Any] = set()
        self._reads = _ReadWatch(self._marks)

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Lets torch compile functions that the model calls between its units."""
        return True

    @contextmanager
    def watching(self) -> Iterator[None]:
        with self, self._reads:
            yield

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Lets operations run unwatched, as each watched one takes some microseconds of Python. Where the model itself
        has entered a mode since then, the watch goes on."""
        modes = (_get_current_dispatch_mode(), _get_current_function_mode())  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if modes != (self, self._reads):
            yield
            return
        self._reads.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        try:
            yield
        finally:
            self.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._reads.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def add(self, placeholder: torch.Tensor, path: str) -> None:
        self._marks.add(placeholder, frozenset((path,)))
        self._placeholders.add(_key_of(placeholder))

    def sources_of(self, tensors: Sequence[torch.Tensor]) -> frozenset[str]:
        """Returns the paths of the modules whose placeholders are in these tensors' values."""
        return self._marks.sources_of(tensors)

    def concerns(self, *values: Any) -> bool:
        """Returns whether nested values come from a placeholder."""
        return self._marks.concern(values)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = _operands_of(args, kwargs)
        without_values = [tensor for tensor in read if tensor.is_meta]
        if without_values:
            raise ValuesNeeded(without_values)
        sources = self.sources_of(read)
        if not sources:
            return func(*args, **(kwargs or {}))
        if depends_on_values(func):
            raise ValuesNeeded(outputs=sources)
        if _changes_first(func) and _key_of(args[0]) in self._placeholders:
            self._marks.add(args[0], sources)
            return args[0]
        result = func(*args, **(kwargs or {}))
        if not is_value_free(func):
            for tensor in tensors_of(result):
                self._marks.add(tensor, sources)
        return result


class _ReadWatch(TorchFunctionMode):
    """Raises ValuesNeeded where values of a placeholder are read without an operation. It runs beside the watch, and
    does not refer to it, so that both are freed with their run."""

    def __init__(self, marks: _Marks) -> None:
        super().__init__()
        self._marks = marks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            sources = self._marks.sources_of(tensors_of(args))
            if sources:
                raise ValuesNeeded(outputs=sources)
        return func(*args, **(kwargs or {}))


# Functions that read values without an operation.
READS = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__)


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


def _operands_of(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[torch.Tensor]:
    """Returns the tensors among an operation's arguments, where lists are not nested."""
    found: list[torch.Tensor] = []
    for value in (*args, *(kwargs or {}).values()):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [each for each in value if isinstance(each, torch.Tensor)]
    return found


def _key_of(tensor: torch.Tensor) -> Any:
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        # Sparse tensors have no storage.
        return id(tensor)


def _changes_first(func: Any) -> bool:
    """Returns whether an operation changes its first operand in place and returns it, as add_."""
    schema = func._schema
    if not schema.is_mutable or len(schema.returns) != 1:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and alias.is_write and str(schema.arguments[0].type) == "Tensor"


def depends_on_values(func: Any) -> bool:
    """Returns whether an operation gives Python a value of its input, or a shape that comes of such values."""
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def is_value_free(func: Any) -> bool:
    """Returns whether an operation reads only the shape, the type and the device of its input, as zeros_like."""
    name = str(func._schema.name).partition("::")[2]
    return name.endswith("_like") or name.startswith("new_")
