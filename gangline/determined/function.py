"""`determined.util`: the functions of it that programs use."""

from __future__ import annotations

import copy
import inspect
import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from numbers import Integral, Real
from typing import Any
from uuid import UUID

__all__ = ["has_param", "is_numerical_scalar", "is_overridden", "json_encode", "merge_dicts"]


def is_overridden(full_method: Any, parent_class: type) -> bool:
    """Returns whether a method was defined outside of the given base class."""
    return callable(full_method) and full_method.__qualname__.partition(".")[0] != parent_class.__name__


def has_param(fn: Callable[..., Any], name: str, pos: int | None = None) -> bool:
    """Returns whether a function has a parameter of this name, or one at this position."""
    parameters = inspect.getfullargspec(fn).args
    return name in parameters or (pos is not None and pos < len(parameters))


def merge_dicts(base_dict: Mapping[Any, Any], source_dict: Mapping[Any, Any]) -> dict[Any, Any]:
    """Returns the base with the entries of the source, mapping by mapping. Changes neither."""
    merged = copy.deepcopy(dict(base_dict))
    for key, value in source_dict.items():
        is_joined = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge_dicts(merged[key], value) if is_joined else value
    return merged


def is_numerical_scalar(n: Any) -> bool:
    """Returns whether the value is one number: of Python, or of numpy without dimensions."""
    if getattr(n, "ndim", 0) == 0 and hasattr(n, "dtype"):
        return getattr(n.dtype, "kind", "") in "iufc"
    return isinstance(n, int | float)


def json_encode(obj: Any, indent: str | int | None = None, sort_keys: bool = False) -> str:
    """Returns JSON of plain values, arrays, times, enum members (by name) and UUIDs. NaN and the infinities become
    their names as texts. Raises TypeError for other objects."""
    return json.dumps(_plain(obj), indent=indent, sort_keys=sort_keys)


def _plain(value: Any) -> Any:  # noqa: PLR0911  one line for each type
    match value:
        case Enum():
            return value.name
        case None | bool() | str():
            return value
        case Integral():
            return int(value)
        case Real():
            number = float(value)
            return number if math.isfinite(number) else _NAMES[str(number)]
        case bytes():
            return value.decode()
        case Mapping():
            return {key: _plain(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_plain(entry) for entry in value]
        case datetime():
            return value.isoformat()
        case UUID():
            return str(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    raise TypeError(f"{value!r:.100} of type {type(value).__name__} is no JSON")


_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
