"""PURE: spans of time on one clock, which may overlap."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[float, float]


def covered_seconds(spans: Iterable[Span]) -> float:
    """Returns the time that at least one span covers. A span is its begin and its end."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def seconds_outside(spans: Iterable[Span], others: Iterable[Span]) -> float:
    """Returns the time that at least one of the spans covers and none of the others."""
    others = list(others)
    return max(0.0, covered_seconds([*spans, *others]) - covered_seconds(others))
