"""PURE: turns pydantic's errors into sentences of our own: the place, the found value, the expected one and the advice.

Every surface that validates with pydantic uses it: configurations, settings of services, bodies and queries of the HTTP
API, and arguments of the CLI. pydantic's own sentences reach no user. An error type without a row gets a general
sentence. gangline.config.parse adds line numbers to complaints and raises them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gangline.config.section import FAULT, clip, describe

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Complaint:
    """One error in a configuration."""

    code: str  # the last part of the GanglineError's code
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


_EXPECTED_BY_BEGINNING = {
    "int": "an integer",
    "float": "a number",
    "decimal": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "a string",
    "bytes": "a string",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "frozen": "a list",
    "iterable": "a list",
    "dict": "a mapping",
    "mapping": "a mapping",
    "model": "a mapping",
    "dataclass": "a mapping",
    "none": "nothing",
    "path": "a path",
    "url": "a URL",
    "uuid": "a UUID",
    "date": "a date as 2030-12-31",
    "datetime": "a time as 2030-12-31T23:59:59Z",
    "time": "a time as 23:59:59",
    "timezone": "a time as 2030-12-31T23:59:59Z",
}
_LIMIT_BY_ERROR = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
    "multiple_of": ("a multiple of", "multiple_of"),
}
_LENGTH_BY_ERROR = {
    "too_short": ("at least", "min_length", "entries"),
    "too_long": ("at most", "max_length", "entries"),
    "string_too_short": ("at least", "min_length", "characters"),
    "string_too_long": ("at most", "max_length", "characters"),
    "bytes_too_short": ("at least", "min_length", "bytes"),
    "bytes_too_long": ("at most", "max_length", "bytes"),
}
# Errors of our own checks, whose text is a ValueError's.
_OWN_ERRORS = ("value_error", "assertion_error")
# Clauses that name no found value.
_COMPLETE_ERRORS = {
    FAULT: "",
    "missing": "required, but missing",
    "missing_argument": "required, but missing",
    "missing_keyword_only_argument": "required, but missing",
    "extra_forbidden": "unknown key; remove it",
    "json_invalid": "this is no JSON document; check its quotes, commas and brackets",
}


def say_mistake(entry: Mapping[str, Any]) -> str:
    """Returns a clause for one entry of `ValidationError.errors()`, without its place: what is expected, and what was
    found."""
    expectation, value = say_expectation(entry), entry.get("input")
    if entry["type"] in _LIMIT_BY_ERROR:
        return f"{expectation}, found {clip(str(value))}"
    if entry["type"] in ("literal_error", "enum"):
        return f"{expectation}, found {describe(value)}{_advice(entry)}"
    # Checks that see a whole mapping or list name the wrong part of it themselves.
    is_whole = entry["type"] in _OWN_ERRORS and isinstance(value, Mapping | list)
    if entry["type"] in _COMPLETE_ERRORS or is_whole:
        return expectation
    return f"{expectation}, found {describe(value)}"


def say_expectation(entry: Mapping[str, Any]) -> str:
    """Returns the clause of `say_mistake` without the found value, for a sentence that quotes it already."""
    error_type, context = str(entry["type"]), entry.get("ctx") or {}
    if error_type == FAULT:
        return str(context["text"])
    if error_type in _OWN_ERRORS:
        return str(context.get("error", "")).strip() or "is not valid"
    if error_type in ("literal_error", "enum"):
        return f"must be one of {', '.join(_choices(entry))}"
    return _COMPLETE_ERRORS.get(error_type) or _expectation_by_table(error_type, context)


def _expectation_by_table(error_type: str, context: Mapping[str, Any]) -> str:
    if error_type in _LIMIT_BY_ERROR:
        words, key = _LIMIT_BY_ERROR[error_type]
        return f"must be {words} {_number(context.get(key))}"
    if error_type in _LENGTH_BY_ERROR:
        words, key, unit = _LENGTH_BY_ERROR[error_type]
        return f"must have {words} {_counted(context.get(key), unit)}"
    expected = _EXPECTED_BY_BEGINNING.get(error_type.partition("_")[0])
    return f"expected {expected}" if expected is not None else "is not valid here"


def _choices(entry: Mapping[str, Any]) -> list[str]:
    expected = str((entry.get("ctx") or {}).get("expected", ""))
    return [choice.strip("' ") for choice in expected.replace(" or ", ", ").split(",")]


def _advice(entry: Mapping[str, Any]) -> str:
    nearest = difflib.get_close_matches(clip(str(entry.get("input"))), _choices(entry), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _number(limit: Any) -> str:
    # "g" would round a large limit.
    return f"{limit:g}" if isinstance(limit, float) else str(limit)


def _counted(limit: Any, unit: str) -> str:
    singular = {"entries": "entry", "characters": "character", "bytes": "byte"}[unit]
    return f"{limit} {singular if limit == 1 else unit}"
