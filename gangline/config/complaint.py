"""PURE: turns pydantic's list of errors into complaints that name the place, the found value and the expected one.

gangline.config.mistake words them; gangline.config.parse adds line numbers and raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gangline.config.mistake import say_mistake
from gangline.config.section import FAULT, clip

Path = tuple[str | int, ...]


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
    error_type = entry["type"]
    if error_type == FAULT:
        return Complaint(context["code"], (*path, *context["path"]), context["text"])
    return Complaint(_code_of(error_type), path, say_mistake(entry))


def _code_of(error_type: str) -> str:
    if error_type == "missing":
        return "missing_key"
    is_wrong_type = error_type.endswith("_type") or error_type == "int_from_float"
    return "wrong_type" if is_wrong_type else "invalid_value"


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
