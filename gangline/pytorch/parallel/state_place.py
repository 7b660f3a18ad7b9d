"""The places in which Python code keeps state: attributes of an object, containers, closures and random generators.

A place can be read and written as a whole, with plain operations of its base class, so that no code of the user runs.
Used by gangline.pytorch.parallel.forward_state, which finds the places of a module.
"""

from __future__ import annotations

import random
import sys
from argparse import Namespace
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from io import IOBase
from types import CellType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import torch
from torch import nn

# Attributes that torch gives each module, without the flag that a trial may change.
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}
# Objects of these packages are no state of a module, and so are those of Python's library beside its containers.
_FOREIGN = frozenset({"torch", "gangline", "numpy", *sys.stdlib_module_names})
_MOST_ARRAY_BYTES = 1 << 20


class Unrestorable(Exception):
    """Raised for state that cannot be put back. Its text completes "the module has ..."."""


class Place:
    """holder: the object whose contents these are. is_walked: whether values in it may be places themselves."""

    def __init__(self, holder: Any, *, is_walked: bool = True) -> None:
        self.holder = holder
        self.is_walked = is_walked

    def read(self) -> dict[Any, Any]:
        """Returns the contents. The values are the held ones themselves."""
        raise NotImplementedError

    def write(self, contents: Mapping[Any, Any]) -> None:
        """Puts contents that `read` has returned, or others with such keys, in the place of the present ones."""
        raise NotImplementedError


class _Attributes(Place):
    def __init__(self, holder: Any, hidden: frozenset[str] = frozenset()) -> None:
        super().__init__(holder)
        self._hidden = hidden

    def read(self) -> dict[Any, Any]:
        return {key: value for key, value in vars(self.holder).items() if key not in self._hidden}

    def write(self, contents: Mapping[Any, Any]) -> None:
        own = vars(self.holder)
        for key in self.read().keys() - contents.keys():
            del own[key]
        own.update(contents)


class _Slots(Place):
    def read(self) -> dict[Any, Any]:
        return {name: getattr(self.holder, name) for name in _slots_of(type(self.holder)) if hasattr(self.holder, name)}

    def write(self, contents: Mapping[Any, Any]) -> None:
        for name in self.read().keys() - contents.keys():
            object.__delattr__(self.holder, name)
        for name, value in contents.items():
            object.__setattr__(self.holder, name, value)


class _Mapping(Place):
    def read(self) -> dict[Any, Any]:
        return dict(self.holder)

    def write(self, contents: Mapping[Any, Any]) -> None:
        base: Any = OrderedDict if isinstance(self.holder, OrderedDict) else dict
        base.clear(self.holder)
        for key, value in contents.items():
            base.__setitem__(self.holder, key, value)


class _Sequence(Place):
    def read(self) -> dict[Any, Any]:
        return dict(enumerate(self.holder))

    def write(self, contents: Mapping[Any, Any]) -> None:
        base: Any = deque if isinstance(self.holder, deque) else list
        base.clear(self.holder)
        base.extend(self.holder, contents.values())


class _Set(Place):
    def read(self) -> dict[Any, Any]:
        return dict(enumerate(self.holder))

    def write(self, contents: Mapping[Any, Any]) -> None:
        set.clear(self.holder)
        set.update(self.holder, contents.values())


class _Cell(Place):
    def read(self) -> dict[Any, Any]:
        try:
            return {0: self.holder.cell_contents}
        except ValueError:
            # The variable has no value yet.
            return {}

    def write(self, contents: Mapping[Any, Any]) -> None:
        if contents:
            self.holder.cell_contents = contents[0]
        else:
            del self.holder.cell_contents


class _Copied(Place):
    """A random generator or an array, which returns a copy of its contents."""

    def __init__(self, holder: Any, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        super().__init__(holder, is_walked=False)
        self._get, self._put = get, put

    def read(self) -> dict[Any, Any]:
        return {0: self._get()}

    def write(self, contents: Mapping[Any, Any]) -> None:
        self._put(contents[0])


_CONTAINERS: tuple[tuple[Any, type[Place]], ...] = (
    (dict, _Mapping),
    (list | deque, _Sequence),
    (set, _Set),
    (CellType, _Cell),
)


def own_attributes(module: nn.Module) -> Place:
    """Returns the place of a module's attributes, without those of torch itself."""
    return _Attributes(module, _OF_TORCH)


def random_places() -> list[Place]:
    """Returns the places of the generators that Python and numpy have for the whole process. torch's own are put back
    by torch."""
    places: list[Place] = [_Copied(random, random.getstate, random.setstate)]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        places.append(_Copied(numpy, numpy.get_state, numpy.set_state))
    return places


def place_of(value: Any, name: Callable[[], str] = str) -> Place | None:
    """Returns the place that an object is; None for one without contents that can change. name: returns where the
    object was found. Raises Unrestorable."""
    for base, kind in _CONTAINERS:
        if isinstance(value, base):
            return kind(value)
    copied = _copied(value, name)
    if copied is not None:
        return _Copied(value, *copied)
    if isinstance(value, type | tuple | frozenset | FunctionType | MethodType | partial):
        return None
    if _is_foreign(type(value)) and not isinstance(value, Namespace | SimpleNamespace):
        if isinstance(value, Iterator) and not isinstance(value, IOBase):
            raise Unrestorable(f"the iterator {name()}, which cannot be set back")
        return None
    if hasattr(value, "__dict__"):
        return _Attributes(value)
    return _Slots(value) if _slots_of(type(value)) else None


def parts_of(value: Any) -> Iterable[Any]:
    """Returns the objects inside one that has no contents that can change itself."""
    if isinstance(value, tuple | frozenset):
        return value
    if isinstance(value, partial):
        return (value.func, value.args, value.keywords)
    if isinstance(value, MethodType):
        return (value.__self__, value.__func__)
    if isinstance(value, FunctionType) and not _is_foreign(value):
        return (*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    return ()


def _is_foreign(value: Any) -> bool:
    return str(value.__module__).partition(".")[0] in _FOREIGN


def _copied(value: Any, name: Callable[[], str]) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Returns how to read and write a random generator, or an array, as a whole; None for another object."""
    pair: tuple[Callable[[], Any], Callable[[Any], Any]] | None = None
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Generator):
        pair = value.get_state, value.set_state
    elif isinstance(value, random.Random):
        pair = value.getstate, value.setstate
    elif numpy is None:
        pass
    elif isinstance(value, numpy.random.RandomState):
        pair = value.get_state, value.set_state
    elif isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        pair = (lambda: bits.state), partial(setattr, bits, "state")
    elif isinstance(value, numpy.ndarray) and value.flags.writeable:
        if value.nbytes > _MOST_ARRAY_BYTES:
            raise Unrestorable(f"the numpy array {name()} of {value.nbytes} bytes, which would be copied in each batch")
        pair = value.copy, partial(value.__setitem__, ...)
    return pair


def _slots_of(kind: type) -> list[str]:
    slots: list[str] = []
    for base in kind.__mro__:
        own = vars(base).get("__slots__", ())
        slots += (own,) if isinstance(own, str) else own
    return [name for name in slots if name not in ("__dict__", "__weakref__")]
