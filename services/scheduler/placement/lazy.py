"""PURE: a mapping whose keys are known at once and whose values are worked out when somebody first looks.

A plan has to be committed quickly; its reasons are read by people, later. What they are worked out from is closed by
then, so looking early or late gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

V = TypeVar("V")


class Lazy(Mapping[str, V]):
    """keys: distinct, in order. work_out: the values by key; called once at most."""

    def __init__(self, keys: Sequence[str], work_out: Callable[[], Mapping[str, V]]) -> None:
        self._keys = keys
        self._work_out = work_out

    def __getitem__(self, key: str) -> V:
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._key_set

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return repr(self._values)

    @cached_property
    def _values(self) -> dict[str, V]:
        return dict(self._work_out())

    @cached_property
    def _key_set(self) -> frozenset[str]:
        return frozenset(self._keys)
