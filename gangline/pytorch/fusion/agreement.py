"""Agreement between the ranks while they tune. All ranks call each function in step, at the same step number.

A rank without a time makes the time infinite for all ranks. A rank that observes a different value stops the tuning for
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gangline.core import DistributedContext

# Stands for infinity in the all-reduce of integers. Greater than any real time: those are below 1e9 s, in nanoseconds.
_NEVER = 2**62


def agree_on_longest(distributed: DistributedContext, seconds: Sequence[float]) -> list[float]:
    """Returns the longest time of all ranks, element by element, to the nanosecond; NaN of any rank is infinite for
    all.
    """
    own = [int(value * 1e9) if 0 <= value < 1e9 else _NEVER for value in seconds]
    return [value / 1e9 if value < _NEVER else float("inf") for value in distributed.maximum(own)]


def agree_on_choice(distributed: DistributedContext, choice: int) -> int:
    """Returns the chief's choice. choice: 0 or above."""
    return distributed.maximum([choice if distributed.is_chief else 0])[0]


def agree_on_any(distributed: DistributedContext, is_so: bool) -> bool:
    """Returns whether the condition is true on any rank."""
    return bool(distributed.maximum([int(is_so)])[0])


def is_same_everywhere(distributed: DistributedContext, value: Any) -> bool:
    """Returns whether all ranks pass the same value: plain numbers and strings, and tuples of them."""
    return len(set(distributed.allgather(value))) == 1
