"""PURE: one picture of backward out of several steps: which gradient comes when."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def common_order(orders: Sequence[Sequence[int]], num_parameters: int) -> tuple[int, ...] | None:
    """The order in which gradients came in every step; None where it changed, or a gradient came not once a step.

    orders: the parameters of each step, as they came.
    """
    first = tuple(orders[0]) if orders else ()
    is_whole = sorted(first) == list(range(num_parameters))
    return first if is_whole and all(tuple(order) == first for order in orders) else None


def reverse_order(orders: Sequence[Sequence[int]], num_parameters: int) -> tuple[int, ...] | None:
    """The order of the parameters, reversed; None where a gradient came more than once in a step."""
    if any(len(set(order)) != len(order) for order in orders):
        return None
    return tuple(reversed(range(num_parameters)))


def ready_by_place(order: Sequence[int], steps: Sequence[tuple[Sequence[int], Sequence[float]]]) -> list[float]:
    """When the gradient at each place of the order is there: the median of the steps. A gradient that a step does not
    make counts as there from the start.

    steps: parameters and seconds, as they came.
    """
    by_step = [dict(zip(parameters, seconds, strict=True)) for parameters, seconds in steps]
    return [statistics.median(ready.get(parameter, 0.0) for ready in by_step) for parameter in order]
