"""PURE: divides items of different sizes over owners, the same way on every rank that knows the same sizes."""

from __future__ import annotations

from collections.abc import Sequence


def divide(sizes: Sequence[int], num_owners: int) -> list[int]:
    """Returns each item's owner, 0 to num_owners - 1. Gives the largest item first, each to the owner with the smallest
    total."""
    held = [0] * num_owners
    owners = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        owner = min(range(num_owners), key=lambda owner: (held[owner], owner))
        owners[index] = owner
        held[owner] += sizes[index]
    return owners
