"""Puts a model back into its state of before a run that must leave no trace: one that finds shapes, or that measures.

The state is all that the model's own code can change: modules with everything in their attributes, what hooks and other
functions refer to, class attributes and global variables of the user's code, and generators of random numbers. Objects
keep their identity. What a run has made anew is gone afterwards, as a table that a module makes once, and the next run
makes it again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from gangline.errors import GanglineError
from gangline.pytorch.data import seed
from gangline.pytorch.parallel.staged.cutting.object_content import (
    Kind,
    are_same,
    is_followed,
    kinds_of,
    parts_of,
)
from gangline.pytorch.parallel.staged.cutting.tensor_content import Memory, TensorContent
from gangline.pytorch.parallel.staged.cutting.watch import ValuesNeeded, ValueWatch

_log = logging.getLogger("gangline")
# Objects that are looked into. A model has about 14 for each module.
_MOST_OBJECTS = 500_000
_EXTRA_RUN = "the run that finds out shapes or times"
_PLAIN = frozenset((int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size, slice))
# Attributes of modules that are no part of the names of what is in them.
_OF_MODULES = frozenset(("_modules", "_parameters", "_buffers"))


@contextmanager
def leaving_no_trace(
    model: nn.Module, watch: ValueWatch, refuse: Callable[[str], GanglineError], given: Iterable[Any] = ()
) -> Iterator[None]:
    """Runs the model without a trace in anything. watch: of the run. given: objects that the model is called with.
    refuse: makes the error for what cannot be put back, from words after "whose forward"."""
    state = ModelState(model, given)
    watch.note_write = state.memory.note_write
    numbers = seed.capture()
    is_failed = True
    try:
        yield
        is_failed = False
    except ValuesNeeded:
        is_failed = False
        raise
    finally:
        watch.note_write = None
        lost = state.restore()
        seed.restore(numbers)
        # Casts of values that the run has changed.
        torch.clear_autocast_cache()
        if lost is not None and not is_failed:
            raise refuse(lost) from None


@dataclass(slots=True)
class _Content:
    """What an object has consisted of. place: its name, for errors."""

    holder: Any
    kind: Kind
    content: Any
    place: str

    def restore(self) -> str | None:
        """Returns what cannot be put back, as words after "whose forward"; None for nothing."""
        if self.kind.write is None:
            if self.kind.read(self.holder) == self.content:
                return None
            return (
                f"moves on {self.place}, a {type(self.holder).__name__}, which {_EXTRA_RUN} cannot set back; keep a "
                "number in its place, and compute the next value from it"
            )
        try:
            if self.kind.is_state or not are_same(self.content, self.kind.read(self.holder)):
                self.kind.write(self.holder, self.content)
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            return (
                f"changes {self.place}, a {type(self.holder).__name__}, which {_EXTRA_RUN} cannot set back ({error}); "
                "keep plain values or tensors in its place"
            )
        return None


class ModelState:
    """The state of a model. given: objects that are not in it, and that it is called with."""

    def __init__(self, model: nn.Module, given: Iterable[Any] = ()) -> None:
        self.memory = Memory()
        self._contents: list[_Content] = []
        self._tensors: list[tuple[str, TensorContent]] = []
        # Keeps all objects, so that no other one gets the id of one of them.
        self._seen: dict[int, Any] = {}
        roots: list[tuple[str, Any]] = [("", model), *(("its input", each) for each in given)]
        for hooks in (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks):
            roots.append(("a hook of all modules", hooks))
        self._waiting = deque(roots)
        with torch.no_grad():
            while self._waiting and len(self._seen) < _MOST_OBJECTS:
                self._look_into(*self._waiting.popleft())
        if self._waiting:
            self._waiting.clear()
            _log.warning(
                "pipeline: the model refers to more than %d objects; a run that finds out the shapes of a batch may "
                "change some of the others",
                _MOST_OBJECTS,
            )

    def restore(self) -> str | None:
        """Puts everything back. Returns what cannot be put back, as words after "whose forward"; None for nothing."""
        with torch.no_grad():
            lost = [content.restore() for content in self._contents]
            for place, tensor in self._tensors:
                change = tensor.restore()
                if change is not None:
                    lost.append(f"changes {place} {change[0]}, which {_EXTRA_RUN} cannot set back; {change[1]}")
            self.memory.restore()
        return next((each for each in lost if each is not None), None)

    def _look_into(self, place: str, value: Any) -> None:
        if type(value) in _PLAIN or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            content = TensorContent(value, self.memory)
            self._tensors.append((place, content))
            self._waiting.extend((place, hooks) for hooks in content.hooks if hooks is not None)
        kinds = kinds_of(value)
        for kind in kinds:
            self._add(place, value, kind)
        self._waiting.extend((place, each) for each in parts_of(value) if type(each) not in _PLAIN)
        kind_of_value: Any = type(value)
        if kinds and id(kind_of_value) not in self._seen and is_followed(kind_of_value):
            self._waiting.extend((base.__qualname__, base) for base in kind_of_value.__mro__[:-1])

    def _add(self, place: str, holder: Any, kind: Kind) -> None:
        content = kind.read(holder)
        self._contents.append(_Content(holder, kind, content, place))
        if kind.is_state:
            return
        if isinstance(content, dict):
            for name, value in content.items():
                if type(value) not in _PLAIN:
                    self._waiting.append((_joined(place, name), value))
                if not isinstance(name, str) and type(name) not in _PLAIN:
                    self._waiting.append((place, name))
        else:
            self._waiting.extend((place, value) for value in content if type(value) not in _PLAIN)


def _joined(place: str, name: Any) -> str:
    if not isinstance(name, str) or name in _OF_MODULES:
        return place
    return f"{place}.{name}" if place else name
