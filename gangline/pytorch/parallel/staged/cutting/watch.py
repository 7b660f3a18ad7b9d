"""Follows values through one run of a part: parameters without values, and placeholders for outputs of other parts.

A placeholder may be computed with as long as nothing comes of it. The watch finds those that reach the part's output,
those by whose values the model decides what to run, and what the model changes in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import torch
from torch.overrides import _get_current_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from gangline.pytorch.parallel.staged.cutting.drawing import SharedDraws, is_random
from gangline.pytorch.parallel.staged.cutting.inner import InnerValues
from gangline.pytorch.parallel.staged.cutting.marks import Marks, ReadWatch, Sources, depends_on_values
from gangline.pytorch.parallel.staged.layout import tensors_of

# Before the path of a module in a mark: of a value that the module computes and does not return, and of an input that
# it changes in place.
INSIDE = "inside of "
CHANGED_BY = "changed by "


class ValuesNeeded(BaseException):
    """Ends a run that needs values of other parts. parameters: read outside of their modules. outputs: paths of modules
    of earlier parts whose outputs it needs. inside, changed_by: paths of modules, of which it needs a value that they
    do not return, or an input as they have changed it; neither can go along."""

    def __init__(self, parameters: Sequence[torch.Tensor] = (), sources: Iterable[str] = ()) -> None:
        super().__init__()
        self.parameters = list(parameters)
        sources = sorted(sources)
        self.inside = [each.removeprefix(INSIDE) for each in sources if each.startswith(INSIDE)]
        self.changed_by = [each.removeprefix(CHANGED_BY) for each in sources if each.startswith(CHANGED_BY)]
        self.outputs = [each for each in sources if not each.startswith((INSIDE, CHANGED_BY))]


class ValueWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Raises ValuesNeeded where an operation reads a parameter without a value, as torch 2.13 returns arbitrary numbers
    for some operations on a CPU tensor and one on the meta device. Also where a Python value, or the shape of a result,
    comes from a placeholder."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        # Where the model's own code draws random numbers from.
        self.draws = SharedDraws(0)
        self.is_in_unit = False
        self.marks = Marks()
        self._reads = ReadWatch(self.marks, _need)
        # In runs with checks only.
        self.inner: InnerValues | None = None
        # Called before each operation with the function and its arguments, in runs that leave no trace.
        self.note_write: Callable[[Any, tuple[Any, ...], dict[str, Any]], None] | None = None

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Lets torch compile functions that the model calls between its units."""
        return True

    @contextmanager
    def watching(self, used_graph: Callable[[str, torch.Tensor | None], None]) -> Iterator[None]:
        """used_graph: as in ReadWatch."""
        self._reads.used_graph = used_graph
        try:
            with self, self._reads:
                yield
        finally:
            self._reads.used_graph = None

    @contextmanager
    def in_unit(self, *, is_paused: bool) -> Iterator[None]:
        """Around a unit of this part. is_paused: whether its operations run unwatched."""
        self.is_in_unit = True
        try:
            with self.pausing() if is_paused else nullcontext():
                yield
        finally:
            self.is_in_unit = False

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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operands = tensors_of((args, kwargs))
        without_values = [tensor for tensor in operands if tensor.is_meta]
        if without_values:
            raise ValuesNeeded(without_values)
        if self.inner is not None:
            self.check_inner(operands)
        if self.note_write is not None:
            self.note_write(func, args, kwargs)
        sources = self.marks.sources_of(operands)
        if sources and depends_on_values(func):
            _need(sources)
        # A checkpoint that runs again draws from the rank's own generators.
        is_shared = is_random(func) and not self.is_in_unit and checkpoint_around() is None
        with self.draws.drawing() if is_shared else nullcontext():
            result = func(*args, **kwargs)
        if sources:
            self.marks.note(func, args, kwargs, result, sources)
        if self.inner is not None:
            self.inner.note(func, operands, result)
        return result

    def check_inner(self, value: Any) -> None:
        """Raises ValuesNeeded for a value from inside of another unit."""
        path = None if self.inner is None else self.inner.unit_of(value)
        if path is not None:
            _need(frozenset((f"{INSIDE}{path}",)))


def checkpoint_around() -> Any:
    """Returns a mark of the innermost checkpoint that runs, without reentrant ones; None outside of them."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    pack = hooks[0] if hooks else None
    return pack if getattr(pack, "__qualname__", "").startswith("_checkpoint_hook.") else None


def _need(sources: Sources) -> NoReturn:
    raise ValuesNeeded(sources=sources)


class Versions:
    """Finds out what one run of a part changes in place."""

    def __init__(self) -> None:
        self._inputs: list[tuple[torch.Tensor, int]] = []
        self._arguments: list[tuple[torch.Tensor, int]] = []
        self._outputs: dict[str, list[tuple[torch.Tensor, int]]] = {}
        self._buffers: dict[str, tuple[torch.Tensor, int]] | None = None

    def note_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Called before the run with what came from other parts."""
        self._inputs = versions_of(inputs)

    def note_arguments(self, arguments: Sequence[torch.Tensor]) -> None:
        """Called before the run with the tensors that the model itself is called with."""
        self._arguments = versions_of(arguments)

    def arguments(self) -> list[tuple[torch.Tensor, int]]:
        """Returns the noted arguments with their present versions."""
        return versions_of([tensor for tensor, _ in self._arguments])

    def note_outputs(self, path: str, outputs: Sequence[torch.Tensor]) -> None:
        """Called when a module has run whose output goes to later parts, and for outputs of earlier parts that do."""
        self._outputs[path] = versions_of(outputs)

    def outputs(self) -> dict[str, list[tuple[torch.Tensor, int]]]:
        """Returns the noted outputs by path, with their present versions."""
        return {path: versions_of([tensor for tensor, _ in noted]) for path, noted in self._outputs.items()}

    def changed_since(self, before: Mapping[str, Sequence[tuple[torch.Tensor, int]]]) -> str | None:
        """Returns the path of an output that was changed since `outputs` returned these; None where there is none."""
        return next((path for path, noted in before.items() if is_changed(noted)), None)

    def note_buffers(self, buffers: Mapping[str, torch.Tensor | None]) -> None:
        """Called when the first unit runs, or before."""
        self._buffers = versions_by_name(buffers)

    @property
    def has_buffers(self) -> bool:
        return self._buffers is not None

    @property
    def changes_inputs(self) -> bool:
        return is_changed(self._inputs)

    @property
    def changes_arguments(self) -> bool:
        return is_changed(self._arguments)

    @property
    def changes_outputs(self) -> bool:
        return any(map(is_changed, self._outputs.values()))

    def changed_buffer(self, buffers: Mapping[str, torch.Tensor | None]) -> str | None:
        """Returns the name of a buffer that was changed or replaced since they were noted; None where there is none.
        buffers: as they are now."""
        return changed_name(self._buffers or {}, buffers)


def versions_by_name(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, tuple[torch.Tensor, int]]:
    """Returns tensors by name with their present versions."""
    return {name: (tensor, _version_of(tensor)) for name, tensor in tensors.items() if tensor is not None}


def changed_name(
    noted: Mapping[str, tuple[torch.Tensor, int]], tensors: Mapping[str, torch.Tensor | None]
) -> str | None:
    """Returns the name of a tensor that was changed or replaced since versions_by_name; None where there is none."""
    return next((name for name, entry in noted.items() if not is_unchanged(entry, tensors.get(name))), None)


def is_unchanged(noted: tuple[torch.Tensor, int], tensor: torch.Tensor | None) -> bool:
    """Returns whether a tensor is the noted one, in the same version."""
    return tensor is noted[0] and _version_of(tensor) == noted[1]


def _version_of(tensor: torch.Tensor) -> int:
    # Tensors of torch.inference_mode have no versions.
    return 0 if tensor.is_inference() else tensor._version


def is_changed(noted: Sequence[tuple[torch.Tensor, int]]) -> bool:
    """Returns whether one of the tensors has another version by now."""
    return any(_version_of(tensor) != version for tensor, version in noted)


def versions_of(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """Returns the tensors with their present versions."""
    return [(tensor, _version_of(tensor)) for tensor in tensors]
