"""PURE: reads the values of one of Determined's cluster files, and keeps what became of each key.

A value of a wrong type, or one that cannot be kept, is named and left out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gangline.config.section import describe
from gangline.migrate.cluster_key import Fate, KeyRule
from gangline.printable import find_unprintable

T = TypeVar("T")
KeyPath = tuple[str | int, ...]
_NAMES: dict[type, str] = {int: "whole number", str: "text", bool: "boolean", list: "list", dict: "mapping",
                           object: "value"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KeyResult:
    """The result for one key."""

    file: str  # master.yaml or agent.yaml
    path: str  # path of the key, such as resource_pools[0].pool_name
    fate: Fate
    note: str


@dataclass
class ClusterSource:
    """Reads the values of one of Determined's files, and notes which keys were read."""

    file: str
    values: Mapping[str, Any]
    rows: Mapping[str, KeyRule]  # the rule for each key
    entries: list[KeyResult] = field(default_factory=list)  # results so far
    _seen: set[KeyPath] = field(default_factory=set)

    def get(self, kind: type[T], *path: str | int) -> T | None:
        """Returns a value that is taken over; None where it is absent, null, or of another type."""
        value: Any = self.values
        for step in path:
            is_there = (
                step in value if isinstance(value, Mapping) else isinstance(value, list) and isinstance(step, int)
            )
            value = value[step] if is_there else None
        if value is None:
            return None
        self._seen.add(path)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.note(path, Fate.DECIDE, f"{describe(value)} is no {_NAMES[kind]}, so it was not taken over")
            return None
        self.note(path, Fate.TAKEN, self.rows[_pattern(path)].note)
        return value

    def text(self, *path: str | int) -> str:
        """Returns a text of printable characters; empty where there is none."""
        value = self.get(str, *path) or ""
        letter = find_unprintable(value)
        if letter is None:
            return value
        self.note(path, Fate.DECIDE, f"it has the control character {letter}, so it was not taken over")
        return ""

    def number(self, least: int, most: int, *path: str | int) -> int | None:
        """Returns a whole number of a range; None where there is none."""
        value = self.get(int, *path)
        if value is None or least <= value <= most:
            return value
        self.note(path, Fate.DECIDE, f"{value} is not within {least} and {most}, so it was not taken over")
        return None

    def note(self, path: KeyPath, fate: Fate, note: str) -> None:
        """Notes what becomes of a key; a later note replaces an earlier one."""
        shown = _shown(path)
        self.entries[:] = [entry for entry in self.entries if entry.path != shown]
        self.entries.append(KeyResult(self.file, shown, fate, note))
        self._seen.add(path)

    def note_rest(self) -> None:
        """Notes every key that was not read."""
        for path in self._rest((), self.values):
            row = self.rows.get(_pattern(path))
            if row is None:
                self.note(path, Fate.UNKNOWN, self._suggest(path))
            elif row.fate is Fate.TAKEN:
                self.note(path, Fate.ABSENT, "it has no meaning beside the other settings")
            else:
                self.note(path, row.fate, row.note)

    def _rest(self, path: KeyPath, value: Any) -> Iterator[KeyPath]:
        if path in self._seen:
            return
        if _pattern(path) in self.rows:
            if value is not None:
                yield path
        elif isinstance(value, Mapping) and value and self._is_section(path):
            for name, below in value.items():
                yield from self._rest((*path, str(name)), below)
        elif (
            isinstance(value, list)
            and self._is_section((*path, 0))
            and all(isinstance(each, Mapping) for each in value)
        ):
            for index, below in enumerate(value):
                yield from self._rest((*path, index), below)
        elif not (self._is_section(path) and not value):
            yield path

    def _is_section(self, path: KeyPath) -> bool:
        prefix = _pattern(path)
        return not path or any(key.startswith((f"{prefix}.", f"{prefix}[]")) for key in self.rows)

    def _suggest(self, path: KeyPath) -> str:
        if self._is_section(path):
            return "expected keys below it"
        above = _pattern(path[:-1])
        known = {key.removeprefix(f"{above}.").partition(".")[0].removesuffix("[]")
                 for key in self.rows if not above or key.startswith(f"{above}.")}  # fmt: skip
        near = difflib.get_close_matches(str(path[-1]), sorted(known), 1, 0.6)
        return f"Determined has no such key; did it mean {near[0]}?" if near else "Determined 0.38 has no such key"


def _below(value: Any, step: str | int) -> Any:
    """Returns a value of a mapping or a list; None where there is none."""
    if isinstance(value, Mapping):
        return value.get(step)
    return value[step] if isinstance(value, list) and isinstance(step, int) else None


def _pattern(path: KeyPath) -> str:
    text = ""
    for step in path:
        text += "[]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _shown(path: KeyPath) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text
