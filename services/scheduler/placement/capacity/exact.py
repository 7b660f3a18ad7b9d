"""PURE: which agents of unequal sizes make up a gang exactly, using the fewest agents.

The search works on sums, not on subsets: for every number of agents, the sums that so many agents can have are the bits
of one integer. Its cost grows with the square of the number of agents and with the gang's size, never exponentially.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

_Layer = list[int]
"""By number of agents: a bit for every sum that so many agents can have."""


def find_sizes(slots: int, count_by_size: Mapping[int, int]) -> tuple[int, ...] | None:
    """Returns agent sizes that add up to the gang, the largest first; None when there are none. Uses the fewest agents;
    on a tie, the solution with the largest agents."""
    counts = tuple(sorted(((s, min(n, slots // s)) for s, n in count_by_size.items() if 0 < s <= slots and n)))
    return _search(slots, counts)


def sums_of(slots_of_agents: Mapping[int, int], limit: int) -> list[int]:
    """Returns every size up to the limit that whole agents can make up, ascending."""
    reachable, mask = 1, (1 << (limit + 1)) - 1
    for size, count in slots_of_agents.items():
        for _ in range(count):
            reachable |= (reachable << size) & mask
    return [total for total in range(1, limit + 1) if reachable >> total & 1]


@lru_cache(maxsize=256)
def _search(slots: int, counts: tuple[tuple[int, int], ...]) -> tuple[int, ...] | None:
    """Searches for the sizes. The result is cached, because a waiting gang asks the same about the same idle agents in
    every cycle."""
    if sum(size * count for size, count in counts) < slots or not _is_reachable(slots, counts):
        return None
    most = _most_agents(slots, counts)
    layers: list[_Layer] = [[1]]
    for size, count in counts:
        layers.append(_with_size(layers[-1], size, count, slots, most))
    fewest = next((num for num, sums in enumerate(layers[-1]) if sums >> slots & 1), None)
    return None if fewest is None else _trace(slots, fewest, counts, layers)


def _is_reachable(slots: int, counts: tuple[tuple[int, int], ...]) -> bool:
    """Returns whether any number of agents makes up the gang. A refusal here is much cheaper than the search."""
    reachable, mask = 1, (1 << (slots + 1)) - 1
    for size, count in counts:
        left, step = count, 1
        while left:
            taken = min(step, left)
            reachable |= (reachable << (size * taken)) & mask
            left, step = left - taken, step * 2
    return bool(reachable >> slots & 1)


def _most_agents(slots: int, counts: tuple[tuple[int, int], ...]) -> int:
    """Returns the most agents that a solution can have: with more, even the smallest ones exceed the gang."""
    num, total = 0, 0
    for size, count in counts:
        taken = min(count, (slots - total) // size)
        num, total = num + taken, total + taken * size
        if taken < count:
            break
    return num


def _with_size(before: _Layer, size: int, count: int, slots: int, most: int) -> _Layer:
    mask = (1 << (slots + 1)) - 1
    # Solutions with more than `most` agents cannot exist, so no layer is kept for them.
    after = [0] * (min(len(before) - 1 + count, most) + 1)
    for num, sums in enumerate(before):
        if not sums:
            continue
        for more in range(count + 1):
            shifted = (sums << (size * more)) & mask
            # Every sum of more than `most` agents exceeds the gang, so the loop ends within `after`.
            if not shifted:
                break
            after[num + more] |= shifted
    return after


def _trace(slots: int, num: int, counts: tuple[tuple[int, int], ...], layers: list[_Layer]) -> tuple[int, ...]:
    """Walks back from the whole gang and takes as many agents as possible at each size; the last size is the
    largest."""
    sizes: list[int] = []
    for (size, count), before in zip(reversed(counts), reversed(layers[:-1]), strict=True):
        for taken in range(min(count, num, slots // size), -1, -1):
            rest_num, rest_slots = num - taken, slots - taken * size
            if rest_num < len(before) and before[rest_num] >> rest_slots & 1:
                sizes += [size] * taken
                num, slots = rest_num, rest_slots
                break
    return tuple(sizes)
