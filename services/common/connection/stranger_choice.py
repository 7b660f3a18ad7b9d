"""PURE: the strangers' connections that a server closes when they take up too many places.

A stranger's connection has carried no call of an admitted caller. The strangers of one address must not keep others
out, so addresses share the strangers' places evenly: each keeps its newest connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

# Part of the places that admitted callers leave which strangers may hold. The rest is free for newcomers.
STRANGERS_SHARE = 0.75


def places_of_strangers(num_places: int, num_admitted: int) -> int:
    """Returns the most connections of strangers beside so many of admitted callers."""
    return int(STRANGERS_SHARE * max(0, num_places - num_admitted))


def choose_closed(addresses: Sequence[str], most: int) -> list[int]:
    """Returns the positions of the connections to close, so that `most` remain: of the address with most connections
    its oldest, again and again.

    addresses: the address of each stranger's connection, the oldest connection first.
    """
    num_newer: Counter[str] = Counter()
    ranked = []
    for position in reversed(range(len(addresses))):
        ranked.append((num_newer[addresses[position]], -position))
        num_newer[addresses[position]] += 1
    return sorted(-position for _, position in sorted(ranked)[most:])
