"""PURE: reads the fields of one JSON object strictly.

A missing field, a wrong type, a number out of its bounds and a field that the reader never asked for are refused with
the path of the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from typing import Any

from gangline.errors import GanglineError, invalid


class Fields:
    """Reads one object. path: its place in the document, such as `tasks[3]`; empty for the whole document."""

    def __init__(self, value: object, path: str) -> None:
        self._path = path
        if not isinstance(value, Mapping):
            raise invalid("simulation.invalid", f"{path or 'the file'}: must be an object, not {_kind(value)}")
        self._fields: Mapping[str, Any] = value
        self._asked: set[str] = set()

    @property
    def names(self) -> list[str]:
        return list(self._fields)

    def has(self, name: str) -> bool:
        return self.raw(name, None) is not None

    def raw(self, name: str, default: object) -> Any:
        self._asked.add(name)
        return self._fields.get(name, default)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._of(name, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self.error(name, f"must be a text that is not empty, not {_kind(value)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._of(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {_kind(value)}")
        return value

    def integer(self, name: str, default: int | None, low: int, high: int | None = None) -> int:
        value = self._of(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"must be a whole number, not {_kind(value)}")
        if value < low or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"from {low} to {high}"
            raise self.error(name, f"must be {bounds}, not {value}")
        return value

    def number(self, name: str, default: float, low: float | None = None) -> float:
        value = self._of(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise self.error(name, f"must be a number, not {_kind(value)}")
        if low is not None and value < low:
            raise self.error(name, f"must be at least {low:g}, not {value:g}")
        return float(value)

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self._of(name, default)
        if value not in choices:
            raise self.error(
                name, f"{value!r} is unknown; it can be {', '.join(repr(choice) for choice in choices if choice)}"
            )
        return str(value)

    def texts(self, name: str, default: Sequence[str]) -> list[str]:
        value = self._of(name, list(default))
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.error(name, f"must be a list of texts, not {_kind(value)}")
        return value

    def integers(self, name: str, low: int) -> list[int]:
        value = self._of(name, [])
        if not isinstance(value, list) or not all(type(number) is int and number >= low for number in value):
            raise self.error(name, f"must be a list of whole numbers of at least {low}, not {_kind(value)}")
        return value

    def text_map(self, name: str) -> dict[str, str]:
        value = self._of(name, {})
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise self.error(name, "must map names to texts")
        return value

    def integer_map(self, name: str) -> dict[str, int]:
        fields = Fields(self._of(name, {}), self._join(name))
        return {key: fields.integer(key, None, 0) for key in fields.names}

    def done(self) -> None:
        """Refuses fields that the reader has not asked for."""
        for name in self._fields:
            if name not in self._asked:
                near = get_close_matches(name, self._asked, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(self._asked))}"
                raise self.error(name, f"is unknown{hint}")

    def error(self, name: str, text: str) -> GanglineError:
        return invalid("simulation.invalid", f"{self._join(name)}: {text}")

    def _of(self, name: str, default: object) -> Any:
        """Returns the value, or the default when the field is absent or null."""
        value = self.raw(name, None)
        if value is not None:
            return value
        if default is None:
            raise self.error(name, "is missing")
        return default

    def _join(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def read_list(fields: Fields, name: str) -> list[Fields]:
    value = fields.raw(name, None) or []
    if not isinstance(value, list):
        raise fields.error(name, f"must be a list, not {_kind(value)}")
    return [Fields(item, f"{name}[{number}]") for number, item in enumerate(value)]


def _kind(value: object) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
