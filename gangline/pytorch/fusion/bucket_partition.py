"""PURE: the division of gradients into buckets, by the rule of DistributedDataParallel.

Gradients are taken in the order in which backward produces them. A bucket is closed as soon as it reaches its cap, the
next one has the next cap, and the last cap repeats. A gradient is never split, and a bucket contains one kind of
gradient. So caps that are exact sums give any division of the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

MIB = 2**20
# The default of DistributedDataParallel: a small first bucket, so that the exchange starts early.
DEFAULT_CAPS = (1 * MIB, 25 * MIB)

# The gradients of each bucket, as places in the order of production; buckets in the order in which they go out.
Partition = tuple[tuple[int, ...], ...]


def partition_by_caps(num_bytes: Sequence[int], caps: Sequence[int], kinds: Sequence[int] | None = None) -> Partition:
    """Returns the partition. num_bytes: of each gradient, in the order of production. caps: bytes of the buckets, at
    least one; the last one repeats. kinds: of each gradient, such as a number for its dtype and device; each kind has
    its own row of caps.
    """
    kinds = kinds or [0] * len(num_bytes)
    closed: list[tuple[int, ...]] = []
    open_by_kind: dict[int, list[int]] = {}
    open_bytes_by_kind: dict[int, int] = {}
    count_by_kind: dict[int, int] = {}
    for place, (size, kind) in enumerate(zip(num_bytes, kinds, strict=True)):
        bucket = open_by_kind.setdefault(kind, [])
        bucket.append(place)
        open_bytes = open_bytes_by_kind.get(kind, 0) + size
        count = count_by_kind.get(kind, 0)
        is_full = open_bytes >= caps[min(count, len(caps) - 1)]
        if is_full:
            closed.append(tuple(open_by_kind.pop(kind)))
        open_bytes_by_kind[kind] = 0 if is_full else open_bytes
        count_by_kind[kind] = count + is_full
    return tuple(closed + [tuple(bucket) for bucket in open_by_kind.values()])


def partition_by_ends(ends: Sequence[int]) -> Partition:
    """Returns the partition. ends: how many gradients precede the end of each bucket, rising; the last one is the
    number of gradients.
    """
    return tuple(tuple(range(begin, end)) for begin, end in pairwise([0, *ends]))


def caps_of(num_bytes: Sequence[int], partition: Partition) -> tuple[int, ...]:
    """Returns the caps that give this partition, where it contains one kind of gradients: the bytes of each bucket."""
    return tuple(sum(num_bytes[place] for place in bucket) for bucket in partition)


def split_last(num_bytes: Sequence[int], partition: Partition, tail_bytes: int) -> Partition:
    """Returns the partition with a last bucket of at least tail_bytes, as small as whole gradients allow; unchanged
    when the last bucket is no larger anyway. Backward hides no part of the last exchange, so the last bucket should be
    small.
    """
    last, moved_bytes = partition[-1], 0
    for index in range(len(last) - 1, 0, -1):
        moved_bytes += num_bytes[last[index]]
        if moved_bytes >= tail_bytes:
            return (*partition[:-1], last[:index], last[index:])
    return partition


def merge_pairs(partition: Partition) -> Partition:
    """Returns half as many buckets: each two neighbours make one."""
    return tuple(
        tuple(place for bucket in partition[index : index + 2] for place in bucket)
        for index in range(0, len(partition), 2)
    )


def split_halves(num_bytes: Sequence[int], partition: Partition) -> Partition:
    """Returns up to twice as many buckets: each bucket of several gradients is cut where its bytes are halved best."""
    return tuple(half for bucket in partition for half in _halves(num_bytes, bucket))


def _halves(num_bytes: Sequence[int], bucket: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    if len(bucket) == 1:
        return [bucket]
    total = sum(num_bytes[place] for place in bucket)

    def unevenness(cut: int) -> int:
        return abs(2 * sum(num_bytes[place] for place in bucket[:cut]) - total)

    cut = min(range(1, len(bucket)), key=unevenness)
    return [bucket[:cut], bucket[cut:]]
