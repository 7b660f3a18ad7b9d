"""PURE: turns pydantic's list of errors into complaints that name the place, the found value and the expected one. It
knows the error types that the models of this package can raise; any other type is passed on with pydantic's message.
gangline.config.parse adds line numbers and raises."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gangline.config.section import FAULT, clip, describe

Path = tuple[str | int, ...]

_EXPECTED_BY_ERROR = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_LIMIT_BY_ERROR = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


@dataclass(frozen=True, slots=True)
class Complaint:
    """One error in a configuration. code: the last part of the GanglineError's code."""

    code: str
    path: Path
    text: str


def complaints_of(failure: ValidationError, document: Any) -> list[Complaint]:
    """Returns one complaint for each error, in pydantic's order. document: the validated values, which distinguish keys
    from union branches."""
    return [_complaint(dict(entry), document) for entry in failure.errors(include_url=False)]


def join_path(path: Path) -> str:
    """Returns a path as text: searcher.max_length, labels[2]."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{clip(part)}" if text else clip(part)
    return text


def _complaint(entry: dict[str, Any], document: Any) -> Complaint:
    path, context = _real_path(entry["loc"], document), entry.get("ctx", {})
    error_type, value = entry["type"], entry["input"]
    if error_type == FAULT:
        return Complaint(context["code"], (*path, *context["path"]), context["text"])
    if error_type == "missing":
        return Complaint("missing_key", path, "required, but missing")
    if error_type in _EXPECTED_BY_ERROR:
        return Complaint("wrong_type", path, f"expected {_EXPECTED_BY_ERROR[error_type]}, found {describe(value)}")
    if error_type in _LIMIT_BY_ERROR:
        words, key = _LIMIT_BY_ERROR[error_type]
        return Complaint("invalid_value", path, f"must be {words} {context[key]:g}, found {clip(str(value))}")
    if error_type == "literal_error":
        return Complaint("invalid_value", path, _no_choice(context["expected"], value))
    return Complaint("invalid_value", path, f"{entry['msg']}, found {describe(value)}")


def _no_choice(expected: str, value: Any) -> str:
    choices = [choice.strip("' ") for choice in expected.replace(" or ", ", ").split(",")]
    nearest = difflib.get_close_matches(clip(str(value)), choices, n=1)
    advice = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"must be one of {', '.join(choices)}, found {describe(value)}{advice}"


def _real_path(location: Sequence[str | int], document: Any) -> Path:
    """Returns the location without the parts that pydantic adds for the branch of a union. A missing key occurs only at
    the end."""
    path: list[str | int] = []
    node = document
    for position, part in enumerate(location):
        is_last = position == len(location) - 1
        if isinstance(node, Mapping) and (part in node or is_last):
            path.append(part)
            node = node.get(part)
        elif isinstance(node, Sequence) and not isinstance(node, str) and isinstance(part, int):
            path.append(part)
            node = node[part] if part < len(node) else None
    return tuple(path)
