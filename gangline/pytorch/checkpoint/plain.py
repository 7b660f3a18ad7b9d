"""Converts a checkpoint's values beside models and optimizers to types that torch.load reads with weights_only.

Owns the conversion, and the error for values that cannot be converted. Called where .pth files are made.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from gangline.errors import GanglineError, invalid

CALLBACKS = "callbacks"
_ADVICE = "keep tensors, arrays, numbers, strings, lists and dictionaries"
# Errors of torch.save and torch.load for values that they cannot write or safely read.
_REFUSALS = (pickle.PickleError, AttributeError, TypeError, RuntimeError, RecursionError)


def to_bytes(content: Mapping[str, Any], what: str) -> bytes:
    """Returns a file's content. numpy's numbers become Python's, its arrays tensors, paths strings.

    Raises GanglineError `checkpoint.not_plain` when a value in it cannot be read back safely.
    """
    plain = make_plain(dict(content))
    try:
        return _to_safe_bytes(plain)
    except _REFUSALS as error:
        raise _refusal(plain, what) from error


def make_plain(value: Any) -> Any:
    """Converts values in nested dictionaries, lists and tuples; other containers stay unchanged."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return _plain_array(value)
    if isinstance(value, PurePath):
        return str(value)
    if type(value) in (dict, OrderedDict):
        return type(value)((make_plain(key), make_plain(entry)) for key, entry in value.items())
    if type(value) in (list, tuple):
        return type(value)(make_plain(entry) for entry in value)
    return value


def _plain_array(value: np.ndarray[Any, Any]) -> Any:
    """Returns an array as a tensor, or as lists where torch has no such type, as for text."""
    try:
        return torch.from_numpy(np.array(value, order="C"))
    except (TypeError, ValueError):
        return make_plain(value.tolist())


def _to_safe_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    torch.load(buffer, weights_only=True, map_location="cpu")
    return buffer.getvalue()


def _refusal(content: dict[str, Any], what: str) -> GanglineError:
    path, culprit = _find_culprit(content)
    where = what
    if path[:1] == [CALLBACKS] and len(path) > 1:
        where, path = f"callback {path[1]!r}: state_dict()", path[2:]
    place = "".join(f"[{key!r}]" for key in path)
    return invalid(
        "checkpoint.not_plain",
        f"{where}{place} is a {type(culprit).__name__}, which a checkpoint cannot give back; {_ADVICE}",
    )


def _find_culprit(value: Any) -> tuple[list[Any], Any]:
    """Returns the innermost value that cannot be read back, behind the keys that lead to it."""
    for key, entry in _entries_of(value):
        try:
            _to_safe_bytes(entry)
        except _REFUSALS:
            path, culprit = _find_culprit(entry)
            return [key, *path], culprit
    return [], value


def _entries_of(value: Any) -> Iterator[tuple[Any, Any]]:
    if type(value) in (dict, OrderedDict):
        yield from value.items()
    elif type(value) in (list, tuple):
        yield from enumerate(value)
