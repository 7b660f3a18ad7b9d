"""PURE: the order of a table's rows, by several keys. Rows without a value come last, whichever way a key sorts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from gangline.errors import invalid
from services.gateway.table.field import Field, Kind, Value

MAX_KEYS = 5
Row = TypeVar("Row")


class SortKey(NamedTuple):
    name: str
    is_descending: bool = False


def parse_sort(text: str) -> tuple[SortKey, ...]:
    """Parses `-best,name`: names of fields, with a minus in front for the greatest first. Raises GanglineError
    `table.sort`."""
    keys = tuple(SortKey(part.removeprefix("-"), part.startswith("-")) for part in _split(text))
    if len(keys) > MAX_KEYS:
        raise invalid("table.sort", f"sort has {len(keys)} keys, at most {MAX_KEYS} are allowed")
    return keys


def parse_fields(text: str, most: int) -> tuple[str, ...]:
    """Parses a list of names, in which a comma within a name is written as `\\,`. Raises GanglineError
    `table.fields`."""
    names = tuple(dict.fromkeys(_split(text)))
    if len(names) > most:
        raise invalid("table.fields", f"fields names {len(names)} fields, at most {most} are allowed")
    return names


def _split(text: str) -> list[str]:
    parts = text.replace("\\,", "\0").split(",")
    return [part.strip().replace("\0", ",") for part in parts if part.strip()]


def sort_fields(keys: Sequence[SortKey], find: Callable[[str], Field[Row]]) -> list[Field[Row]]:
    """Returns the field of each key. Raises GanglineError `table.sort`, and the errors of `find`."""
    fields = [find(key.name) for key in keys]
    for field in fields:
        if field.kind is Kind.TEXTS:
            raise invalid("table.sort", f"{field.name} has several values in each row, so it gives no order")
    return fields


def sort_places(places: Sequence[int], values: Sequence[Value], *, is_descending: bool) -> list[int]:
    """Returns the places in the order of their values by one key; equal ones keep theirs. values: by place. Sorting by
    the last key first makes earlier keys count more."""
    given: list[tuple[tuple[int, object], int]] = []
    missing: list[int] = []
    for place in places:
        value = values[place]
        if value is None or isinstance(value, tuple):
            missing.append(place)
        else:
            given.append((_rank(value), place))
    given.sort(key=lambda pair: pair[0], reverse=is_descending)
    return [place for _, place in given] + missing


def _rank(value: Value) -> tuple[int, object]:
    if isinstance(value, bool):
        return 0, value
    return (1, value) if isinstance(value, int | float) else (2, value)
