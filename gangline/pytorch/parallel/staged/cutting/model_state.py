"""Puts a model back into its state of before a run that must leave no trace: one that finds shapes, or that measures.

The state is all that the model's own code can change: modules with everything in their attributes, what hooks and other
functions refer to, class attributes and global variables of the user's code, and generators of random numbers. Objects
keep their identity. What a run has made anew is gone afterwards, as a table that a module makes once, and the next run
makes it again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
# Attributes of a unit's module with what runs around its forward.
_AROUND_FORWARD = frozenset(("_forward_hooks", "_forward_pre_hooks"))
# Parts of which an object's owners are noted.
_MOST_PARTS = 2


@dataclass(frozen=True, slots=True)
class Owner:
    """Code that has an object: the forward of a unit, its hooks, or the model's own."""

    part: int | None = None  # part of the unit; None for the model
    is_hook: bool = False
    is_caller: bool = False  # whether the object is one that the model is called with
    path: str = field(default="", compare=False)  # path of the unit


_MODEL, _CALLER = Owner(), Owner(is_caller=True)


@contextmanager
def leaving_no_trace(
    model: nn.Module,
    watch: ValueWatch,
    refuse: Callable[[str], GanglineError],
    given: Iterable[Any] = (),
    units: Sequence[tuple[str, int]] = (),
) -> Iterator[ModelState]:
    """Runs the model without a trace in anything. watch: of the run. given: objects that the model is called with.
    units: as in ModelState. refuse: makes the error for what cannot be put back, from words after "whose forward"."""
    state = ModelState(model, given, units)
    watch.note_write = state.memory.note_write
    numbers = seed.capture()
    is_failed = True
    try:
        yield state
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
class Content:
    """What an object has consisted of."""

    holder: Any
    kind: Kind
    content: Any
    place: str  # name of the object, for errors
    owners: list[Owner]  # owners of the object, at most one for each kind of code of a part, and of at most two parts

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
    """The state of a model. given: objects that are not in it, and that it is called with. units: paths of the units'
    modules, each with its part; objects that units have count as theirs, and the others as the model's own."""

    def __init__(self, model: nn.Module, given: Iterable[Any] = (), units: Sequence[tuple[str, int]] = ()) -> None:
        self.memory = Memory()
        self.contents: list[Content] = []
        self.tensors: list[tuple[str, TensorContent, list[Owner]]] = []
        # Keeps all objects, so that no other one gets the id of one of them.
        self._seen: dict[int, Any] = {}
        self._owners: dict[int, list[Owner]] = {}
        modules = [(path, model.get_submodule(path), part) for path, part in units]
        # Whatever refers to one of them does not have what is inside.
        self._borders = {id(module) for _, module, _ in modules} | {id(model)}
        roots: list[tuple[str, Any, Owner]] = [
            *((path, module, Owner(part, path=path)) for path, module, part in modules),
            ("", model, _MODEL),
            *(("its input", each, _CALLER) for each in given if type(each) not in _PLAIN),
        ]
        for hooks in (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks):
            roots.append(("a hook of all modules", hooks, _MODEL))
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
            lost = [content.restore() for content in self.contents]
            for place, tensor, _ in self.tensors:
                change = tensor.restore()
                if change is not None:
                    lost.append(f"changes {place} {change[0]}, which {_EXTRA_RUN} cannot set back; {change[1]}")
            self.memory.restore()
        return next((each for each in lost if each is not None), None)

    def _look_into(self, place: str, value: Any, owner: Owner) -> None:
        """Reads an object, or notes one more owner of what it refers to."""
        if not self._is_news(value, owner):
            return
        is_new = id(value) not in self._seen
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor) and is_new:
            content = TensorContent(value, self.memory)
            self.tensors.append((place, content, self._owners[id(value)]))
            self._wait(((place, hooks) for hooks in content.hooks if hooks is not None), owner)
        kinds = kinds_of(value)
        for kind in kinds:
            self._read(place, value, kind, owner, is_new=is_new)
        self._wait(((place, each) for each in parts_of(value)), owner)
        kind_of_value: Any = type(value)
        if kinds and is_followed(kind_of_value):
            self._wait(((base.__qualname__, base) for base in kind_of_value.__mro__[:-1]), owner)

    def _is_news(self, value: Any, owner: Owner) -> bool:
        """Returns whether an object was not known to have this owner, and notes it."""
        owners = self._owners.get(id(value))
        if owners is None:
            self._owners[id(value)] = [owner]
            return True
        if owner in owners:
            return False
        parts = {each.part for each in owners if each.part is not None}
        if owner.part not in (None, *parts) and len(parts) == _MOST_PARTS:
            return False
        owners.append(owner)
        return True

    def _wait(self, found: Iterable[tuple[str, Any]], owner: Owner) -> None:
        self._waiting.extend(
            (place, value, owner)
            for place, value in found
            if type(value) not in _PLAIN and id(value) not in self._borders
        )

    def _read(self, place: str, holder: Any, kind: Kind, owner: Owner, *, is_new: bool) -> None:
        content = kind.read(holder)
        if is_new:
            self.contents.append(Content(holder, kind, content, place, self._owners[id(holder)]))
        if kind.is_state:
            return
        if not isinstance(content, dict):
            self._wait(((place, value) for value in content), owner)
            return
        is_unit = id(holder) in self._borders and owner.part is not None
        for name, value in content.items():
            if type(value) not in _PLAIN and id(value) not in self._borders:
                is_hook = is_unit and name in _AROUND_FORWARD
                self._waiting.append((_joined(place, name), value, replace(owner, is_hook=True) if is_hook else owner))
            if type(name) not in _PLAIN:
                self._wait([(place, name)], owner)


def _joined(place: str, name: Any) -> str:
    if not isinstance(name, str) or name in _OF_MODULES or name in _AROUND_FORWARD:
        return place
    return f"{place}.{name}" if place else name
