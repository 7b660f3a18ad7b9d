"""Reads what objects consist of, and puts it back into the same objects: attributes, entries of containers, closures,
class attributes, global variables, states of generators of random numbers.

Contents are references, so a value that two objects share stays shared. What a value consists of in its turn is read
by itself, see ModelState. Tensors are in tensor_content.
"""

from __future__ import annotations

import array
import enum
import functools
import random
import re
import sys
import sysconfig
import types
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

# Larger arrays are not copied. They are data, as a table in a file.
_MOST_BYTES = 2**30
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Kind:
    """How an object's content is read and written."""

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None] | None  # None if nothing can set the object back
    is_state: bool = False  # whether the content is a copy of values, and refers to no further objects


def _write_attributes(holder: Any, content: dict[str, Any]) -> None:
    attributes = vars(holder)
    attributes.clear()
    attributes.update(content)


def _slots_of(kind: type) -> list[str]:
    names = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    flat = [name for each in names for name in ((each,) if isinstance(each, str) else each)]
    return [name for name in flat if name not in ("__dict__", "__weakref__")]


def _read_slots(holder: Any) -> dict[str, Any]:
    return {name: getattr(holder, name, _MISSING) for name in _slots_of(type(holder)) if not name.startswith("__")}


def _write_names(holder: Any, content: dict[str, Any]) -> None:
    """Sets attributes by name, also those of frozen objects."""
    set_value, delete = (
        (type.__setattr__, type.__delattr__) if isinstance(holder, type) else (object.__setattr__, object.__delattr__)
    )
    for name, value in content.items():
        if value is not _MISSING:
            set_value(holder, name, value)
        elif getattr(holder, name, _MISSING) is not _MISSING:
            delete(holder, name)


def _write_dict(holder: Any, content: dict[Any, Any]) -> None:
    # The methods of a class of the user's own may do more than to set an entry.
    base: Any = OrderedDict if isinstance(holder, OrderedDict) else dict
    base.clear(holder)
    for key, value in content.items():
        base.__setitem__(holder, key, value)


def _write_list(holder: list[Any], content: list[Any]) -> None:
    list.__setitem__(holder, slice(None), content)


def _write_set(holder: set[Any], content: set[Any]) -> None:
    set.clear(holder)
    set.update(holder, content)


def _write_deque(holder: deque[Any], content: list[Any]) -> None:
    deque.clear(holder)
    deque.extend(holder, content)


def _write_bytes(holder: Any, content: Any) -> None:
    holder[:] = content


def _read_cell(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _write_cell(cell: types.CellType, content: list[Any]) -> None:
    if content:
        cell.cell_contents = content[0]
    elif _read_cell(cell):
        del cell.cell_contents


def _read_array(value: Any) -> Any:
    is_kept = value.flags.writeable and value.nbytes <= _MOST_BYTES
    return value.copy() if is_kept else None


def _write_array(value: Any, content: Any) -> None:
    if content is not None:
        value[...] = content


def _read_bits(value: Any) -> Any:
    return getattr(value, "bit_generator", value).state


def _write_bits(value: Any, content: Any) -> None:
    getattr(value, "bit_generator", value).state = content


_ATTRIBUTES = Kind(lambda holder: dict(vars(holder)), _write_attributes)
_SLOTS = Kind(_read_slots, _write_names)
_GENERATORS: tuple[tuple[Any, Kind], ...] = (
    (torch.Generator, Kind(lambda each: each.get_state(), lambda each, state: each.set_state(state), is_state=True)),
    (random.Random, Kind(lambda each: each.getstate(), lambda each, state: each.setstate(state), is_state=True)),
    (
        np.random.RandomState,
        Kind(lambda each: each.get_state(), lambda each, state: each.set_state(state), is_state=True),
    ),
    (np.random.Generator, Kind(_read_bits, _write_bits, is_state=True)),
    (np.random.BitGenerator, Kind(_read_bits, _write_bits, is_state=True)),
)
_CONTAINERS: tuple[tuple[Any, Kind], ...] = (
    (dict, Kind(lambda each: dict(dict.items(each)), _write_dict)),
    (list, Kind(lambda each: list(list.__iter__(each)), _write_list)),
    (set, Kind(lambda each: set(set.__iter__(each)), _write_set)),
    (deque, Kind(lambda each: list(deque.__iter__(each)), _write_deque)),
    (bytearray, Kind(bytes, _write_bytes, is_state=True)),
    (array.array, Kind(lambda each: each[:], _write_bytes, is_state=True)),
    (types.CellType, Kind(_read_cell, _write_cell)),
    (np.ndarray, Kind(_read_array, _write_array, is_state=True)),
)
# Parts of torch whose objects a forward does not change, or must not be set back: optimizers, compilers, data.
_LEFT_OUT = re.compile(
    r"torch\.(_C|_dynamo|_functorch|_inductor|_ops|_subclasses|autograd|cuda|distributed|export|fx|jit|library|"
    r"multiprocessing|optim|package|profiler|storage|utils\.data)\b"
)
# Parts of the standard library whose objects have plain attributes.
_PLAIN = frozenset({"argparse", "collections", "functools", "types", "weakref"})
_LEFT_ALONE = (
    type,
    types.ModuleType,
    enum.Enum,
    torch.optim.Optimizer,
    torch.utils.data.Dataset,
    torch.utils.data.DataLoader,
    torch.utils.data.Sampler,
)
# Objects of installed libraries that have one of these are in use by more than the model, as a log writer is.
_SHARED_BY = frozenset(("_io", "_thread", "asyncio", "concurrent", "multiprocessing", "queue", "socket", "threading"))
# Callables of ours around code of the user's own.
_AROUND_CODE = "gangline.pytorch.parallel.recomputed"
_LIBRARIES = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)


def kinds_of(value: Any) -> tuple[Kind, ...]:
    """Returns how to read and write what a value consists of. Several, as for a list with attributes."""
    if isinstance(value, type):
        return (_CLASS,) if _has_state(value) else ()
    if isinstance(value, types.FunctionType):
        return (_GLOBALS, _ATTRIBUTES) if is_users_own(value.__module__ or "") else ()
    if isinstance(value, types.ModuleType):
        return (_MODULE,) if is_users_own(value.__name__) else ()
    kind: Any = type(value)
    kinds = _kinds_of_type(kind)
    return () if kinds and _is_shared(value) else kinds


@cache
def _kinds_of_type(kind: Any) -> tuple[Kind, ...]:
    if is_iterator(kind):
        return (_ITERATOR,)
    if issubclass(kind, random.SystemRandom):
        return ()
    state = next((found for base, found in _GENERATORS if issubclass(kind, base)), None)
    if state is not None:
        return (state,)
    kinds = [found for base, found in _CONTAINERS if issubclass(kind, base)]
    if is_followed(kind):
        # The containers of Python itself have attributes only in classes of the user's own.
        if kind.__dictoffset__ and not (kinds and kind.__module__ == "collections"):
            kinds.append(_ATTRIBUTES)
        if _slots_of(kind):
            kinds.append(_SLOTS)
    return tuple(kinds)


def _is_shared(value: Any) -> bool:
    kind = type(value)
    if not kind.__dictoffset__ or isinstance(value, nn.Module | torch.Tensor) or is_users_own(kind.__module__):
        return False
    return any(type(each).__module__.partition(".")[0] in _SHARED_BY for each in vars(value).values())


@cache
def is_followed(kind: Any) -> bool:
    """Returns whether objects of a class are looked into: those of a model, and of the user's own code, but not those
    of ours, of the standard library and of torch's machinery."""
    if issubclass(kind, nn.Module):
        return True
    if issubclass(kind, _LEFT_ALONE):
        return False
    top = kind.__module__.partition(".")[0]
    if top == "gangline":
        return bool(kind.__module__ == _AROUND_CODE)
    if top == "torch":
        return _LEFT_OUT.match(kind.__module__) is None
    return top != "numpy" and (top not in sys.stdlib_module_names or top in _PLAIN)


@cache
def is_users_own(module: str) -> bool:
    """Returns whether a module of Python is the user's own code, and not an installed library."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("gangline", "torch", "numpy"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not (file.startswith(_LIBRARIES) or "-packages" in file)


def _parts_of_function(function: types.FunctionType) -> tuple[Any, ...]:
    if not is_users_own(function.__module__ or ""):
        return ()
    return (*(function.__closure__ or ()), *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


def _parts_of_class(kind: type) -> tuple[Any, ...]:
    return (
        tuple(each for each in vars(kind).values() if isinstance(each, _CODE)) if is_users_own(kind.__module__) else ()
    )


_PARTS: tuple[tuple[Any, Callable[[Any], tuple[Any, ...]]], ...] = (
    ((tuple, frozenset), tuple),
    (types.MethodType, lambda method: (method.__self__, method.__func__)),
    (functools.partial, lambda call: (call.func, call.args, call.keywords)),
    ((staticmethod, classmethod), lambda method: (method.__func__,)),
    (property, lambda each: (each.fget, each.fset)),
    (functools.cached_property, lambda each: (each.func,)),
    (types.FunctionType, _parts_of_function),
    (type, _parts_of_class),
)


def parts_of(value: Any) -> tuple[Any, ...]:
    """Returns what an unchangeable value refers to, as the items of a tuple."""
    return next((read(value) for base, read in _PARTS if isinstance(value, base)), ())


_CODE = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)


def _has_state(kind: type) -> bool:
    """Returns whether a class may have attributes that its methods change, as a counter of all objects."""
    top = kind.__module__.partition(".")[0]
    return is_followed(kind) and top != "torch" and top not in sys.stdlib_module_names


def _read_class(kind: type) -> dict[str, Any]:
    is_code = (*_CODE, types.MemberDescriptorType, types.GetSetDescriptorType)
    return {
        name: value
        for name, value in vars(kind).items()
        if not (name.startswith("__") or name == "_abc_impl" or isinstance(value, is_code))
    }


def _write_class(kind: type, content: dict[str, Any]) -> None:
    added = dict.fromkeys(_read_class(kind).keys() - content.keys(), _MISSING)
    now = vars(kind)
    _write_names(kind, {**added, **{name: value for name, value in content.items() if now.get(name) is not value}})


_CLASS = Kind(_read_class, _write_class)


def _read_module(module: types.ModuleType) -> dict[str, Any]:
    is_code = (*_CODE, type, types.ModuleType)
    return {
        name: value for name, value in vars(module).items() if not (name.startswith("__") or isinstance(value, is_code))
    }


def _write_module(module: types.ModuleType, content: dict[str, Any]) -> None:
    known = vars(module)
    for name in _read_module(module).keys() - content.keys():
        del known[name]
    known.update(content)


_MODULE = Kind(_read_module, _write_module)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _read_globals(function: types.FunctionType) -> dict[str, Any]:
    """Returns the global variables that a function names, also those that are not there yet."""
    known = function.__globals__
    builtins = known.get("__builtins__", {})
    own = builtins if isinstance(builtins, dict) else vars(builtins)
    return {
        name: known.get(name, _MISSING) for name in _names_in(function.__code__) if name in known or name not in own
    }


def _write_globals(function: types.FunctionType, content: dict[str, Any]) -> None:
    known = function.__globals__
    for name, value in content.items():
        if value is _MISSING:
            known.pop(name, None)
        else:
            known[name] = value


_GLOBALS = Kind(_read_globals, _write_globals)


def is_iterator(kind: type) -> bool:
    """Returns whether objects of a class are iterators of Python itself, which nothing can set back."""
    return kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__")


def _progress_of(value: Any) -> Any:
    """Returns how far an iterator has come, in a form to compare. It keeps all values that it is compared by."""
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        names = {} if frame is None else frame.f_locals
        return frame and frame.f_lasti, [(name, _progress_of(each)) for name, each in names.items()]
    if isinstance(value, tuple):
        return [_progress_of(each) for each in value]
    if isinstance(value, list):
        # What some iterators have left. Others refer to a list that they go through.
        return len(value)
    if is_iterator(type(value)):
        return _reduced(value)
    return value if isinstance(value, (int, float, str, bytes, type(None))) else _Same(value)


def _reduced(iterator: Any) -> Any:
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns that iterators of itertools lose this. From 3.14 on it is an error.
            warnings.simplefilter("ignore", DeprecationWarning)
            return _progress_of(iterator.__reduce__())
    except TypeError:
        return repr(iterator)


class _Same:
    """Equal to itself alone, whatever the value thinks."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


_ITERATOR = Kind(_progress_of, None, is_state=True)


def are_same(ours: Any, theirs: Any) -> bool:
    """Returns whether two contents of one object refer to the same values."""
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(value is theirs[key] for key, value in ours.items())
    if isinstance(ours, set):
        return bool(ours == theirs)
    return len(ours) == len(theirs) and all(mine is other for mine, other in zip(ours, theirs, strict=True))
