"""How the ranks agree while they tune. All of it is called by all ranks in step, at the same step number.

A rank that misses a time makes it infinite for all; a rank that sees something else stops the tuning for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gangline.core import DistributedContext

_NEVER = 2**62


def agree_on_longest(distributed: DistributedContext, seconds: Sequence[float]) -> list[float]:
    """Element by element the longest of all ranks, to the nanosecond; NaN of any rank is infinite for all."""
    own = [int(value * 1e9) if 0 <= value < 1e9 else _NEVER for value in seconds]
    return [value / 1e9 if value < _NEVER else float("inf") for value in distributed.maximum(own)]


def agree_on_choice(distributed: DistributedContext, choice: int) -> int:
    """The chief's. choice: 0 or above."""
    return distributed.maximum([choice if distributed.is_chief else 0])[0]


def agree_on_any(distributed: DistributedContext, is_so: bool) -> bool:
    """Whether it is so on any rank."""
    return bool(distributed.maximum([int(is_so)])[0])


def is_same_everywhere(distributed: DistributedContext, value: Any) -> bool:
    """value: plain numbers and strings, and tuples of them."""
    return len(set(distributed.allgather(value))) == 1
