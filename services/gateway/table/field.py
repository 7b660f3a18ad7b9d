"""PURE: the fields of a table's rows: their names, their kinds, and how a field is read from a row.

A table has a fixed list of fields, and families such as `hp.NAME`, whose members depend on the rows. A filter, a sort
key and the choice of columns name fields in the same way.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from gangline.errors import GanglineError, invalid

# None: the row has no value.
Value = bool | int | float | str | tuple[str, ...] | None
Row = TypeVar("Row")

# Most characters of a field's name.
MAX_NAME = 300


class Kind(StrEnum):
    """The type of a field's values."""

    NUMBER = "NUMBER"
    TEXT = "TEXT"
    TIME = "TIME"  # Unix seconds in a row, a time of RFC 3339 in JSON
    FLAG = "FLAG"
    TEXTS = "TEXTS"  # several texts, such as labels
    ANY = "ANY"  # each row may have a value of another type, such as a hyperparameter


@dataclass(frozen=True, slots=True)
class Field(Generic[Row]):
    """One field."""

    name: str
    kind: Kind
    read: Callable[[Row], Value]
    meaning: str = ""
    choices: tuple[str, ...] = ()  # all values that it can have; empty where they are not known


@dataclass(frozen=True, slots=True)
class Family(Generic[Row]):
    """Fields whose names begin with a prefix, such as `hp.learning_rate`."""

    prefix: str  # with the dot
    read: Callable[[Row], Mapping[str, Any]]  # returns the values of a row by the rest of the name
    meaning: str = ""

    def member(self, name: str) -> Field[Row]:
        """Returns the field of this whole name. A key may have dots; else they lead into nested mappings."""
        key = name.removeprefix(self.prefix)
        path = key.split(".")
        read = self.read

        def value_of(row: Row) -> Value:
            values = read(row)
            return plain(values[key]) if key in values else plain(_follow(values, path))

        return Field(name, Kind.ANY, value_of, self.meaning)


class FieldList(Generic[Row]):
    """The fields of one table."""

    def __init__(self, fields: Sequence[Field[Row]], families: Sequence[Family[Row]]) -> None:
        self.fields = tuple(fields)
        self.families = tuple(families)
        self._by_name = {field.name: field for field in fields}

    def find(self, name: str) -> Field[Row]:
        """Raises GanglineError `table.field`."""
        field = self._by_name.get(name)
        if field is not None:
            return field
        for family in self.families:
            if name.startswith(family.prefix) and len(family.prefix) < len(name) <= MAX_NAME:
                return family.member(name)
        raise self._unknown(name)

    def _unknown(self, name: str) -> GanglineError:
        prefixes = [f"{family.prefix}NAME" for family in self.families]
        nearest = difflib.get_close_matches(name[:MAX_NAME], self._by_name, n=1)
        meant = f", nearest is {nearest[0]}" if nearest else ""
        known = ", ".join([*self._by_name, *prefixes])
        return invalid("table.field", f"there is no field {name[:60]!r}{meant}; the fields are {known}")


def plain(value: Any) -> Value:
    """Returns a value of JSON as filters compare it. NaN and mappings count as absent; infinities stay."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, list | tuple):
        return tuple(str(item) for item in value)
    return None


def _follow(values: Any, path: Sequence[str]) -> Any:
    for key in path:
        if not isinstance(values, Mapping):
            return None
        values = values.get(key)
    return values
