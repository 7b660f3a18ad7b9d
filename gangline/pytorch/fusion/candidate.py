"""PURE: which partitions are worth measuring, by the expectation of the simulation.

Two kinds are proposed: rows of equal caps, and optima of the one-channel model, with variations of either. On links
with a long delay the model has been seen to put the best two in the wrong order, so it never decides: it fills a short
list whose members differ enough to be distinguished.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gangline.pytorch.fusion.bucket_partition import (
    DEFAULT_CAPS,
    MIB,
    Partition,
    caps_of,
    merge_pairs,
    partition_by_caps,
    split_halves,
    split_last,
)
from gangline.pytorch.fusion.cost import LinkCost
from gangline.pytorch.fusion.simulation import SHARED_RATIO, Gradients, exposed_seconds, find_optimum

# Bytes of the smallest proposed cap.
_LEAST_CAP = 64 * 1024
# Challengers are chosen so that their bucket counts differ by this ratio, else noise hides which one is better.
_DIFFERENT = 1.5
# A candidate whose expected step is longer than the default's by this ratio is not raced: its steps would cost more
# than they could show.
_WORST = 1.5


@dataclass(frozen=True, slots=True)
class Candidate:
    """A partition of the gradients into buckets that takes part in the race."""

    caps: tuple[int, ...]  # bytes, as DistributedDataParallel takes them
    partition: Partition
    kind: str  # default, cap, optimum, known or refined
    expected_seconds: float  # expected time of one step

    @property
    def num_buckets(self) -> int:
        return len(self.partition)


@dataclass(frozen=True, slots=True)
class Model:
    """Holds the values that are known before the race."""

    gradients: Gradients
    link: LinkCost
    channels: int
    default_seconds: float  # measured time of one step with the default partition
    keeps_first_buckets: bool = False  # whether the wrapper counts its caps from the gradient that is produced last
    has_cap_list: bool = True  # whether torch takes a cap for each bucket

    def candidate(self, caps: tuple[int, ...], kind: str) -> Candidate:
        """Returns the candidate of these caps: bytes, in the order in which buckets are sent."""
        partition = partition_by_caps(self.gradients.num_bytes, caps, self.gradients.kinds)
        exact = caps_of(self.gradients.num_bytes, partition) if self.keeps_first_buckets else caps
        return self._candidate(exact, partition, kind)

    def default(self) -> Candidate:
        return self._candidate(DEFAULT_CAPS, self._default_partition, "default")

    @property
    def can_divide(self) -> bool:
        """Returns whether torch can make any division of the row."""
        return self.has_cap_list and len(set(self.gradients.kinds)) <= 1

    @property
    def _default_partition(self) -> Partition:
        num_bytes, kinds = self.gradients.num_bytes, self.gradients.kinds
        if not self.keeps_first_buckets:
            return partition_by_caps(num_bytes, DEFAULT_CAPS, kinds)
        last = len(num_bytes) - 1
        backwards = partition_by_caps(num_bytes[::-1], DEFAULT_CAPS, kinds[::-1])
        return tuple(tuple(last - place for place in reversed(bucket)) for bucket in reversed(backwards))

    def _candidate(self, caps: tuple[int, ...], partition: Partition, kind: str) -> Candidate:
        expected = self.default_seconds + self._exposed(partition) - self._exposed(self._default_partition)
        return Candidate(caps, partition, kind, expected)

    def _exposed(self, partition: Partition) -> float:
        return exposed_seconds(self.gradients, partition, self.link, self.channels)


def propose(model: Model, known_caps: Iterable[tuple[int, ...]] = ()) -> list[Candidate]:
    """Returns every distinct partition but the default, the most promising first. known_caps: from records of similar
    trials.
    """
    kind_by_caps = dict.fromkeys(known_caps, "known")
    kind_by_caps.update({caps: "cap" for caps in _caps(model.gradients.total_bytes) if caps not in kind_by_caps})
    can_have = [caps for caps in kind_by_caps if model.has_cap_list or len(caps) == 1]
    proposals = [model.candidate(caps, kind_by_caps[caps]) for caps in can_have]
    if model.can_divide:
        proposals += _optima(model)
        best = min(proposals, key=lambda candidate: candidate.expected_seconds)
        tail_bytes = int(model.link.alpha_seconds * model.link.bytes_per_second) if _is_felt(model.link) else MIB
        proposals.append(_like(model, best, split_last(model.gradients.num_bytes, best.partition, tail_bytes)))
    ranked = sorted(proposals, key=lambda candidate: (candidate.expected_seconds, candidate.num_buckets))
    return _distinct(ranked, {model.default().partition})


def choose(model: Model, proposals: Sequence[Candidate], count: int) -> list[Candidate]:
    """Returns at most `count` challengers of the default: the best one, and others whose bucket counts differ by half
    or more from one another, a known one first; of both kinds where there are both. No challenger is expected to be far
    slower.
    """
    bearable = [candidate for candidate in proposals if candidate.expected_seconds <= _WORST * model.default_seconds]
    if not bearable or count < 1:
        return []
    chosen = bearable[:1] + [candidate for candidate in bearable[1:] if candidate.kind == "known"][: count - 1]
    for candidate in bearable:
        if len(chosen) < count and all(_differ(candidate, picked) for picked in chosen):
            chosen.append(candidate)
    other_kind = [candidate for candidate in bearable if candidate.kind != chosen[0].kind]
    if count > 1 and other_kind and all(candidate.kind == chosen[0].kind for candidate in chosen):
        chosen[count - 1 :] = other_kind[:1]
    return chosen


def refine(model: Model, winner: Candidate, expected: Candidate) -> Candidate | None:
    """Returns the winner's neighbour on the far side of the expected winner: half or twice as many buckets. None where
    that is no other partition.
    """
    if not model.can_divide:
        return None
    has_fewer = winner.num_buckets < expected.num_buckets
    partition = (
        merge_pairs(winner.partition) if has_fewer else split_halves(model.gradients.num_bytes, winner.partition)
    )
    if partition in (winner.partition, model.default().partition):
        return None
    return replace(_like(model, winner, partition), kind="refined")


def _like(model: Model, origin: Candidate, partition: Partition) -> Candidate:
    return model.candidate(caps_of(model.gradients.num_bytes, partition), origin.kind)


def _optima(model: Model) -> list[Candidate]:
    """Returns the optima for the full fixed time of an exchange, and for the part that is left when the channels
    overlap.
    """
    overlapped = SHARED_RATIO + (1 - SHARED_RATIO) / model.channels
    alphas = {model.link.alpha_seconds, model.link.alpha_seconds * overlapped}
    partitions = [find_optimum(model.gradients, replace(model.link, alpha_seconds=alpha)) for alpha in sorted(alphas)]
    return [model.candidate(caps_of(model.gradients.num_bytes, partition), "optimum") for partition in partitions]


def _caps(total_bytes: int) -> list[tuple[int, ...]]:
    caps: list[tuple[int, ...]] = []
    cap = total_bytes
    while cap >= _LEAST_CAP:
        caps += [(cap,), (MIB, cap)] if cap > MIB else [(cap,)]
        cap //= 2
    return [*caps, (max(1, cap),)]


def _distinct(candidates: Iterable[Candidate], seen: set[Partition]) -> list[Candidate]:
    kept = []
    for candidate in candidates:
        if candidate.partition not in seen:
            seen.add(candidate.partition)
            kept.append(candidate)
    return kept


def _differ(first: Candidate, second: Candidate) -> bool:
    few, many = sorted((first.num_buckets, second.num_buckets))
    return many >= _DIFFERENT * few


def _is_felt(link: LinkCost) -> bool:
    return link.bytes_per_second < float("inf")
