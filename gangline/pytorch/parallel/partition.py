"""PURE: divides things of different sizes over owners, the same way on every rank that knows the same sizes."""

from __future__ import annotations

from collections.abc import Sequence


def divide(sizes: Sequence[int], num_owners: int) -> list[int]:
    """Each thing's owner, 0 to num_owners - 1: the largest first, each to whom holds the least."""
    held = [0] * num_owners
    owners = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        owner = min(range(num_owners), key=lambda owner: (held[owner], owner))
        owners[index] = owner
        held[owner] += sizes[index]
    return owners
