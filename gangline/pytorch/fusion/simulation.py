"""PURE: when the exchange of a partition ends, and the partition for which that is soonest.

Time 0 is when backward has produced its first gradient. A bucket is sent when its last gradient is ready and all
buckets before it have been sent. gloo works on two exchanges at a time, whose fixed times overlap for the most part
while they share the link; NCCL works on one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gangline.pytorch.fusion.bucket_partition import Partition, partition_by_ends
from gangline.pytorch.fusion.cost import LinkCost

# The part of an exchange's fixed time during which no other one gets on: fitted to steps measured with gloo, where
# neither none nor all of it puts the caps of every model and link into the right order.
SHARED_RATIO = 0.2

# The search for the optimum examines every pair of cuts. Above this number of gradients, small neighbours are merged.
_MOST_ATOMS = 320


@dataclass(frozen=True, slots=True)
class Gradients:
    """Holds the gradients in the order in which backward produces them."""

    num_bytes: tuple[int, ...]  # bytes as in the parameters, which caps count
    ready_seconds: tuple[float, ...]  # time at which each gradient is ready, in ascending order
    # a number for dtype and device of each, because a bucket holds one kind; empty if all are of one kind
    kinds: tuple[int, ...] = ()
    wire_ratio: float = 1.0  # the part of the bytes that compression leaves, above 0 and at most 1

    @property
    def total_bytes(self) -> int:
        return sum(self.num_bytes)


def monotone(ready_seconds: Sequence[float]) -> tuple[float, ...]:
    """Returns ready times in which no gradient precedes an earlier one: buckets are sent in order anyway."""
    return tuple(accumulate(ready_seconds, max))


def end_of_exchange(gradients: Gradients, partition: Partition, link: LinkCost, channels: int) -> float:
    """Returns when the last exchange ends. channels: how many exchanges the backend works on at a time."""
    free = [0.0] * channels
    ready = link_free = 0.0
    for bucket in partition:
        ready = max(ready, *(gradients.ready_seconds[place] for place in bucket))
        num_bytes = gradients.wire_ratio * sum(gradients.num_bytes[place] for place in bucket)
        channel = min(range(channels), key=free.__getitem__)
        on_link = max(max(ready, free[channel]) + (1 - SHARED_RATIO) * link.alpha_seconds, link_free)
        link_free = free[channel] = on_link + SHARED_RATIO * link.alpha_seconds + num_bytes / link.bytes_per_second
    return link_free


def exposed_seconds(gradients: Gradients, partition: Partition, link: LinkCost, channels: int) -> float:
    """Returns the part of the exchange that backward does not hide."""
    return end_of_exchange(gradients, partition, link, channels) - gradients.ready_seconds[-1]


def busy_seconds(gradients: Gradients, partition: Partition, link: LinkCost) -> float:
    """Returns the time of all exchanges of a step, one after another."""
    return len(partition) * link.alpha_seconds + gradients.wire_ratio * gradients.total_bytes / link.bytes_per_second


def find_optimum(gradients: Gradients, link: LinkCost) -> Partition:
    """Returns the division of the row whose exchange over one channel ends soonest; among equals one of few buckets.

    Exact for up to 320 gradients; above that, small neighbours are merged first. By dynamic programming: the soonest
    end of the first n gradients needs only the soonest ends of fewer ones, as an earlier end never hurts.
    """
    cuts = _atoms(gradients.num_bytes)
    sums = [0, *accumulate(gradients.num_bytes)]
    rate = link.bytes_per_second / gradients.wire_ratio
    soonest, before = [0.0], [0]
    for index, cut in enumerate(cuts[1:], start=1):
        ready = gradients.ready_seconds[cut - 1]
        ends = [max(soonest[j], ready) + link.alpha_seconds + (sums[cut] - sums[cuts[j]]) / rate for j in range(index)]
        best = min(range(index), key=ends.__getitem__)
        soonest.append(ends[best])
        before.append(best)
    return partition_by_ends(_walk_back(cuts, before))


def _walk_back(cuts: Sequence[int], before: Sequence[int]) -> list[int]:
    ends, index = [], len(cuts) - 1
    while index:
        ends.append(cuts[index])
        index = before[index]
    return ends[::-1]


def _atoms(num_bytes: Sequence[int]) -> list[int]:
    """Returns where the row may be cut: everywhere, or in a row of very many gradients about evenly by bytes."""
    if len(num_bytes) <= _MOST_ATOMS:
        return list(range(len(num_bytes) + 1))
    least = sum(num_bytes) / _MOST_ATOMS
    cuts, atom_bytes = [0], 0
    for place, size in enumerate(num_bytes, start=1):
        atom_bytes += size
        if atom_bytes >= least:
            cuts.append(place)
            atom_bytes = 0
    return cuts if cuts[-1] == len(num_bytes) else [*cuts, len(num_bytes)]
