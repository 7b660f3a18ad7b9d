"""One comparison of a filter: the type of its value, and whether a row's value meets it.

A row without a value meets `!=` and `!~` alone. Numbers are compared with numbers and texts with texts; a comparison of
different types is false. A field with several texts meets `=` and `~` if one of them does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from gangline.errors import GanglineError, invalid
from gangline.pattern import BadPattern, compile_pattern
from gangline.when import parse_when
from services.gateway.table.field import Field, Kind, Value

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPERATORS = ("=", "!=", *_ORDERS, "~", "!~")
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}

Test = Callable[[Value], bool]


@dataclass(frozen=True, slots=True)
class Literal:
    """A value as it stands in a filter."""

    text: str
    is_quoted: bool = False  # a quoted value is a text, whatever it looks like

    @property
    def is_null(self) -> bool:
        return self.text == "null" and not self.is_quoted


def make_test(field: Field[Any], comparison: str, literal: Literal, now: float) -> Test:
    """Returns the test of a comparison. now: Unix seconds, from which ages count. Raises GanglineError `filter.value`,
    `filter.operator`, `filter.pattern`."""
    name, kind = field.name, field.kind
    if comparison in ("~", "!~"):
        return _pattern_test(name, kind, literal.text, is_negated=comparison == "!~")
    if literal.is_null:
        if comparison not in ("=", "!="):
            raise invalid("filter.operator", f"{name} {comparison} null: compare with null by = or !=")
        return (lambda value: value is None) if comparison == "=" else (lambda value: value is not None)
    wanted = value_of(field, literal, now)
    if comparison == "=":
        return lambda value: is_same(value, wanted)
    if comparison == "!=":
        return lambda value: not is_same(value, wanted)
    if kind in (Kind.FLAG, Kind.TEXTS):
        raise invalid("filter.operator", f"{name} has no order; compare it by = or !=")
    compare = _ORDERS[comparison]
    wanted_type = _ordered_type(wanted)
    return lambda value: _ordered_type(value) is wanted_type is not None and compare(value, wanted)


def make_member_test(field: Field[Any], literals: Sequence[Literal], now: float) -> Test:
    """Returns the test of `field in (...)`."""
    has_null = any(literal.is_null for literal in literals)
    # True equals 1 in Python, so a flag is marked. A set keeps the cost of a row independent of the number of values.
    wanted = {_marked(value_of(field, literal, now)) for literal in literals if not literal.is_null}

    def is_member(value: Value) -> bool:
        if value is None:
            return has_null
        if isinstance(value, tuple):
            return any(_marked(text) in wanted for text in value)
        return _marked(value) in wanted

    return is_member


def _marked(value: Value) -> tuple[bool, Value]:
    return isinstance(value, bool), value


def value_of(field: Field[Any], literal: Literal, now: float) -> Value:
    """Returns the value in the type of the field. Raises GanglineError `filter.value`."""
    name, kind, choices = field.name, field.kind, field.choices
    text = literal.text
    match kind:
        case Kind.NUMBER:
            number = _number(text)
            if number is None:
                raise invalid("filter.value", f"{name} is a number, and {text[:60]!r} is none")
            return number
        case Kind.TIME:
            try:
                return parse_when(text, now, name, UTC)
            except GanglineError as error:
                raise invalid("filter.value", error.message) from error
        case Kind.FLAG:
            if text not in ("true", "false"):
                raise invalid("filter.value", f"{name} is true or false, not {text[:60]!r}")
            return text == "true"
        case Kind.ANY if not literal.is_quoted:
            if text in _WORDS:
                return _WORDS[text]
            number = _number(text)
            return text if number is None else number
    if choices and text not in choices:
        raise invalid("filter.value", f"{name} is never {text[:60]!r}; it is one of {', '.join(choices)}")
    return text


def is_same(value: Value, wanted: Value) -> bool:
    """Returns whether a row's value equals the wanted one, which is no list."""
    if isinstance(value, tuple):
        return wanted in value
    # True equals 1 in Python.
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _pattern_test(name: str, kind: Kind, pattern: str, *, is_negated: bool) -> Test:
    if kind not in (Kind.TEXT, Kind.TEXTS, Kind.ANY):
        raise invalid("filter.operator", f"{name} is no text, so no pattern is searched for in it; use = or <")
    try:
        matches = compile_pattern(pattern)
    except BadPattern as error:
        raise invalid(
            "filter.pattern", f"{name}: {error}; its syntax is that of https://github.com/google/re2"
        ) from error

    def is_found(value: Value) -> bool:
        if isinstance(value, tuple):
            return any(matches(text) for text in value)
        return isinstance(value, str) and matches(value)

    return (lambda value: not is_found(value)) if is_negated else is_found


def _number(text: str) -> int | float | None:
    # int() takes underscores and the digits of all scripts, and is slow for very long texts.
    if not text.isascii() or "_" in text or len(text) > 40:
        return None
    for read in (int, float):
        try:
            number: int | float = read(text)
        except ValueError:
            continue
        return None if math.isnan(number) else number
    return None


def _ordered_type(value: Value) -> type | None:
    """Returns the type within which values are compared by < and >; None for a value without an order."""
    if value is None or isinstance(value, bool | tuple):
        return None
    return float if isinstance(value, int | float) else str
