"""PURE: selects the records of an epoch that a rank trains on.

An epoch is a row of entries: records, or the batches of a batch sampler. Each step takes the next batch_size * size of
them, and rank r takes the r-th part. The last step takes the remaining entries, unless drop_last leaves them out. They
are divided evenly, and each rank's share of the step's records becomes the weight of its gradients. A rank without
entries repeats the first rank's part with the weight 0, because all ranks must make equally many steps. The mean over
the ranks is therefore the mean of one process with the whole batch. Validation has no such steps: its ranks need not be
in step.

A gang of `size` ranks that runs on fewer slots stands for a full gang of size * rounds ranks. In round k of a step,
rank r takes the part of the full gang's rank k * size + r, with its weight. Each step therefore has the batches of the
full gang.

An epoch that was begun with batches of another size continues at its next record. Its remaining entries become the last
steps of a row of the new batches. These steps begin `shift` entries later than the row alone would have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """Entries of an epoch."""

    length: int
    batch_size: int  # entries of one rank in a whole step
    drop_last: bool = False

    @property
    def num_batches(self) -> int:
        """Number of batches of one pass over all entries, for one rank."""
        return _count(self.length, self.batch_size, self.drop_last)

    def batch(self, position: int) -> range:
        first = position * self.batch_size
        return range(first, min(first + self.batch_size, self.length))


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a step."""

    step: range  # entries of all ranks
    entries: range  # entries of this rank; those of the first rank if is_spare
    is_spare: bool = False


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `size`; of the full gang where a smaller one trains in rounds."""

    rank: int = 0
    size: int = 1

    def steps_per_epoch(self, row: Row) -> int:
        return _count(row.length, row.batch_size * self.size, row.drop_last)

    def training_steps(self, steps_per_epoch: int, first_step: int) -> Iterator[tuple[int, range]]:
        """Yields each epoch's number and steps of an endless row of epochs, from first_step steps after its
        beginning."""
        epoch, offset = divmod(first_step, steps_per_epoch)
        while True:
            yield epoch, range(offset, steps_per_epoch)
            epoch, offset = epoch + 1, 0

    def whole_steps(self, row: Row, steps: range, shift: int = 0) -> range:
        """Returns those of these steps that have a whole batch for every rank; they come first in an epoch."""
        num_whole = max(0, row.length - shift) // (row.batch_size * self.size)
        return range(steps.start, max(steps.start, min(steps.stop, num_whole)))

    def begin(self, row: Row, step: int, shift: int = 0) -> int:
        """Returns the first entry of this rank's batch of a whole step. Its weight is 1."""
        return (step * self.size + self.rank) * row.batch_size + shift

    def part(self, row: Row, step: int, shift: int = 0) -> Part:
        """Returns this rank's part of a step of an epoch."""
        full_step = row.batch_size * self.size
        first = step * full_step + shift
        entries = range(first, min(first + full_step, row.length))
        num_holders = self.num_holders(row, len(entries))
        rank = self.rank if self.rank < num_holders else 0
        each, more = divmod(len(entries), num_holders)
        begin = rank * each + min(rank, more)
        return Part(entries, entries[begin : begin + each + (rank < more)], is_spare=rank != self.rank)

    def num_holders(self, row: Row, num_entries: int) -> int:
        """Returns the number of ranks that get entries of a step with so many entries."""
        # Batch normalisation cannot train on a single record, so a rank gets at least two, unless batch_size is 1.
        least = min(2, row.batch_size)
        return min(self.size, max(1, num_entries // least, -(-num_entries // row.batch_size)))

    def place_after(self, row: Row, entries: int) -> tuple[int, int]:
        """Returns the step at which an epoch continues after so many entries, and its shift."""
        left = Row(max(0, row.length - entries), row.batch_size, row.drop_last)
        step = self.steps_per_epoch(row) - self.steps_per_epoch(left)
        return step, entries - step * self.size * row.batch_size

    def validation_positions(self, num_batches: int) -> range:
        return range(self.rank, num_batches, self.size)


def shards_of(rank: int, size: int, rounds: int) -> tuple[Shard, ...]:
    """Returns the shards of the full gang that this rank of a gang of `size` trains on, one in each round of a step."""
    return tuple(Shard(number * size + rank, size * rounds) for number in range(rounds))


def weight_of(own: int, total: int, size: int) -> float:
    """Returns the weight of a rank's mean that makes the mean over all ranks the mean over the step's records. own,
    total: records of this rank and of the step."""
    return own * size / total if total else 1.0


def _count(length: int, size: int, drop_last: bool) -> int:
    return length // size if drop_last else -(-length // size)
