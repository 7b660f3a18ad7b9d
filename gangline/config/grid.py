"""PURE: the points of a grid search: all combinations of the hyperparameters' points.

Submit checks a configuration with them, and the searcher takes them one by one. A point is computed from its number, so
that a large grid costs no memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from gangline.config.hyperparameter import Categorical, Const, is_nested, ranges_of


def find_uncounted(values: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Returns the path of the first range without a `count`. A grid cannot list its points without one."""
    for path, found in ranges_of(values):
        if not isinstance(found, Const | Categorical) and found.count is None:
            return path
    return None


class Grid:
    """Computes the points of a grid. They are numbered from 1; the hyperparameter that was written last changes
    fastest."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._axes = list(ranges_of(values))
        self._empty = _skeleton(values)

    @property
    def num_points(self) -> int:
        return prod(axis.num_points for _, axis in self._axes)

    def point(self, number: int) -> dict[str, Any]:
        place, point = number - 1, _copy(self._empty)
        # The last axis is the lowest digit of the number, so it changes fastest.
        for path, axis in reversed(self._axes):
            place, index = divmod(place, axis.num_points)
            target = point
            for name in path[:-1]:
                target = target[name]
            target[path[-1]] = axis.point(index)
        return point


def _skeleton(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keeps the order of the names, which filling from the last axis would reverse."""
    return {name: _skeleton(value) if is_nested(value) else None for name, value in values.items()}


def _copy(skeleton: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) if isinstance(value, Mapping) else value for name, value in skeleton.items()}
