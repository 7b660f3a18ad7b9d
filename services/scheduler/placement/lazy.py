"""PURE: a mapping that is worked out when somebody first looks.

A plan has to be committed quickly; its reasons are read by people, later. What they are worked out from is closed by
then, so looking early or late gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TypeVar

V = TypeVar("V")


class Lazy(Mapping[str, V]):
    """work_out: called once at most."""

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
