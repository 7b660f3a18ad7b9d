"""PURE: assigns items of different sizes to owners, in the same way on every rank. Used by strategies and the plan."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace


def divide(sizes: Sequence[int], num_owners: int) -> list[int]:
    """Returns each item's owner, 0 to num_owners - 1. Gives the largest item first, each to the owner with the smallest
    total."""
    # The smallest total comes first, of equal ones that of the first owner.
    totals = [(0, owner) for owner in range(num_owners)]
    owners = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        total, owners[index] = totals[0]
        heapreplace(totals, (total + sizes[index], owners[index]))
    return owners


def largest_share(sizes: Sequence[int], num_owners: int) -> int:
    """Returns the total of the owner that gets most."""
    totals = [0] * num_owners
    for size, owner in zip(sizes, divide(sizes, num_owners), strict=True):
        totals[owner] += size
    return max(totals)
