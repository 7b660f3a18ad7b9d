"""Turns plain Python objects into bytes and back, without pickle, so bytes from another process run no code here.

Owns the format in which ranks exchange objects: a length, a JSON document, then the raw bytes of arrays and byte
strings. The document refers to these bytes by their place. Values that JSON has appear in the document as they are.
Every other value is an object with one key, the tag of its type. Used by gangline.core.transport; numpy and torch are
imported only where a value needs them.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

from gangline.errors import GanglineError, invalid, unavailable

PLAIN = (
    "numbers, strings, bytes, None, lists, tuples, sets, dictionaries, paths, and arrays and tensors of numbers; "
    "turn other objects into these first, for example with dataclasses.asdict"
)
_HEADER_BYTES = 8
# The types that JSON represents as they are. Subclasses do not count, because JSON would lose their type.
_LEAVES = frozenset({type(None), bool, int, float, str})
_DEFAULTS: dict[str, Callable[[], Any] | None] = {
    "None": None,
    **{factory.__name__: factory for factory in (bool, dict, float, int, list, set, str, tuple)},
}
# The classes that a reader may make besides plain ones, by name.
_records: dict[str, type] = {}


def let_travel(*records: type) -> None:
    """Allows ranks to exchange instances of these dataclasses and enums. Only their fields travel; the receiving
    process makes an instance of its own class of that name."""
    _records.update({record.__name__: record for record in records})


def encode(value: Any) -> bytes:
    """Returns the bytes of a value. Raises GanglineError `core.cannot_travel` for a value that is no plain object."""
    writer = _Writer()
    try:
        document = json.dumps(writer.tree(value), separators=(",", ":")).encode()
    except RecursionError as error:
        raise _cannot_travel("an object that contains itself, or is nested too deeply") from error
    except ValueError as error:
        raise _cannot_travel(f"this value ({error})") from error
    return b"".join((len(document).to_bytes(_HEADER_BYTES, "big"), document, *writer.blobs))


def decode(payload: bytes | bytearray) -> Any:
    """Returns the value in bytes that `encode` wrote. Raises GanglineError `core.foreign_data` for other bytes."""
    view = memoryview(payload)
    start = _HEADER_BYTES + int.from_bytes(view[:_HEADER_BYTES], "big")
    try:
        if len(view) < _HEADER_BYTES or start > len(view):
            raise ValueError("it is cut off")
        reader = _Reader(view[start:])
        return json.loads(bytes(view[_HEADER_BYTES:start]), object_hook=reader.restore)
    # Foreign bytes may be wrong in any way, and numpy and torch raise various errors for them.
    except Exception as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise unavailable(
            "core.foreign_data",
            f"the data that came for a rank's object is not a rank's ({problem}); another process has written to the "
            "ranks' store or connections, or a host runs another version of Gangline",
        ) from error


class _Writer:
    """Builds the document of one value. blobs: the raw contents that follow the document, in order."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self._num_bytes = 0

    def tree(self, value: Any) -> Any:
        """Returns the value as a tree of JSON."""
        value_type = type(value)
        if value_type in _LEAVES:
            return value
        write = _WRITERS.get(value_type)
        if write is not None:
            return write(self, value)
        if value_type.__name__ in _records and _records[value_type.__name__] is value_type:
            return self._record(value)
        if isinstance(value, PurePath):
            return {"path": str(value)}
        return self._array(value)

    def _each(self, values: Iterable[Any]) -> list[Any]:
        values = list(values)
        # issuperset and map check the types of a long list of numbers without a loop in Python.
        return values if _LEAVES.issuperset(map(type, values)) else [self.tree(value) for value in values]

    def _pairs(self, values: dict[Any, Any]) -> list[list[Any]]:
        return [self._each(values.keys()), self._each(values.values())]

    def _blob(self, content: bytes) -> list[int]:
        place = [self._num_bytes, len(content)]
        self.blobs.append(content)
        self._num_bytes += len(content)
        return place

    def _record(self, value: Any) -> Any:
        name = type(value).__name__
        if isinstance(value, Enum):
            return {"enum": [name, value.name]}
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"record": [name, self._pairs(fields)]}

    def _array(self, value: Any) -> Any:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(value, torch)
        if torch is not None and isinstance(value, torch.Size):
            return {"size": self._each(value)}
        if torch is not None and isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return {"torch": str(value).removeprefix("torch.")}
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
            array = numpy.asarray(value)
            if type(value) is not numpy.ndarray and not isinstance(value, numpy.generic):
                raise _cannot_travel(f"a {_name_of(value)}")
            if array.dtype.hasobject:
                raise _cannot_travel(f"a numpy array of dtype {array.dtype}")
            buffer = io.BytesIO()
            numpy.save(buffer, array, allow_pickle=False)
            return {"array" if isinstance(value, numpy.ndarray) else "scalar": self._blob(buffer.getvalue())}
        raise _cannot_travel(f"a {_name_of(value)}")

    def _tensor(self, value: Any, torch: Any) -> Any:
        is_plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
        if not is_plain or value.is_quantized or value.is_meta:
            raise _cannot_travel(f"a {_name_of(value)} that is no plain dense tensor")
        dense_tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        content = dense_tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        return {
            "tensor": [str(dense_tensor.dtype).removeprefix("torch."), list(dense_tensor.shape), *self._blob(content)]
        }


_WRITERS: dict[type, Callable[[_Writer, Any], Any]] = {
    list: lambda writer, value: writer._each(value),
    dict: lambda writer, value: {"dict": writer._pairs(value)},
    tuple: lambda writer, value: {"tuple": writer._each(value)},
    set: lambda writer, value: {"set": writer._each(value)},
    frozenset: lambda writer, value: {"frozenset": writer._each(value)},
    bytes: lambda writer, value: {"bytes": writer._blob(value)},
    bytearray: lambda writer, value: {"bytearray": writer._blob(bytes(value))},
    complex: lambda writer, value: {"complex": [value.real, value.imag]},
    OrderedDict: lambda writer, value: {"ordered": writer._pairs(value)},
    Counter: lambda writer, value: {"counter": writer._pairs(value)},
    defaultdict: lambda writer, value: {"default": [_default_of(value), writer._pairs(value)]},
}


class _Reader:
    """Restores the value of one document. blobs: the raw contents that follow the document."""

    def __init__(self, blobs: memoryview) -> None:
        self._blobs = blobs
        # A closed table: bytes of another process can choose among these, and call nothing else.
        self._restorers: dict[str, Callable[[Any], Any]] = {
            "dict": _to_dict,
            "tuple": tuple,
            "set": set,
            "frozenset": frozenset,
            "bytes": lambda place: bytes(self._blob(*place)),
            "bytearray": lambda place: bytearray(self._blob(*place)),
            "complex": lambda parts: complex(*parts),
            "ordered": lambda pairs: OrderedDict(_to_dict(pairs)),
            "counter": lambda pairs: Counter(_to_dict(pairs)),
            "default": lambda parts: defaultdict(_DEFAULTS[parts[0]], _to_dict(parts[1])),
            "path": Path,
            "record": _to_record,
            "enum": _to_enum,
            "array": lambda place: self._array(*place),
            "scalar": lambda place: self._array(*place)[()],
            "tensor": lambda parts: self._tensor(*parts),
            "size": _to_size,
            "torch": _to_torch,
        }

    def restore(self, tagged: dict[str, Any]) -> Any:
        """Restores one object of the document. JSON calls it for each object, the innermost first."""
        ((tag, content),) = tagged.items()
        return self._restorers[tag](content)

    def _blob(self, start: int, length: int) -> memoryview:
        if not 0 <= start <= start + length <= len(self._blobs):
            raise ValueError("it is cut off")
        return self._blobs[start : start + length]

    def _array(self, start: int, length: int) -> Any:
        import numpy  # noqa: PLC0415  only where a value needs it

        return numpy.lib.format.read_array(io.BytesIO(self._blob(start, length)), allow_pickle=False)

    def _tensor(self, dtype: str, shape: list[int], start: int, length: int) -> Any:
        import torch  # noqa: PLC0415  only where a value needs it

        # The tensor owns a copy, because it must be writable and the received bytes are not.
        content = torch.frombuffer(bytearray(self._blob(start, length)) or bytearray(1), dtype=torch.uint8)[:length]
        return content.view(_to_torch(dtype)).reshape(shape)


def _to_dict(pairs: list[list[Any]]) -> dict[Any, Any]:
    keys, values = pairs
    return dict(zip(keys, values, strict=True))


def _to_record(parts: list[Any]) -> Any:
    name, pairs = parts
    record = _records[name]
    if not dataclasses.is_dataclass(record):
        raise ValueError(f"{name} is no record")
    return record(**_to_dict(pairs))


def _to_enum(parts: list[str]) -> Any:
    name, member = parts
    enum_type = _records[name]
    if not issubclass(enum_type, Enum):
        raise ValueError(f"{name} is no enum")
    return enum_type[member]


def _to_size(sizes: list[int]) -> Any:
    import torch  # noqa: PLC0415  only where a value needs it

    return torch.Size(sizes)


def _to_torch(name: str) -> Any:
    """Returns a dtype, a layout or a memory format. The type check refuses other names of torch in foreign bytes."""
    import torch  # noqa: PLC0415  only where a value needs it

    constant = getattr(torch, name)
    if not isinstance(constant, torch.dtype | torch.layout | torch.memory_format):
        raise TypeError(f"torch.{name} is no dtype")
    return constant


def _default_of(value: defaultdict[Any, Any]) -> str:
    factory = value.default_factory
    name = getattr(factory, "__name__", "None")
    if name not in _DEFAULTS or _DEFAULTS[name] is not factory:
        raise _cannot_travel(f"a defaultdict of {name}")
    return name


def _name_of(value: Any) -> str:
    value_type = type(value)
    return (
        value_type.__qualname__
        if value_type.__module__ == "builtins"
        else f"{value_type.__module__}.{value_type.__qualname__}"
    )


def _cannot_travel(what: str) -> GanglineError:
    return invalid("core.cannot_travel", f"ranks cannot exchange {what}; they exchange {PLAIN}")
