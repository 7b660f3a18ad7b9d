"""PURE: a mapping that is computed on first access.

A plan has to be committed quickly, while its reasons are read later, by users. The inputs of the computation no longer
change by then, so early and late access give the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TypeVar

V = TypeVar("V")


class Lazy(Mapping[str, V]):
    """Computes a mapping on first access. work_out: called at most once."""

    def __init__(self, work_out: Callable[[], Mapping[str, V]]) -> None:
        self._work_out = work_out

    def __getitem__(self, key: str) -> V:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    @cached_property
    def _values(self) -> dict[str, V]:
        return dict(self._work_out())
