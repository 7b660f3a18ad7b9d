"""PURE: which batches of an epoch a rank trains on.

An epoch is a row of batches. Step i of a world of N ranks takes batches i*N to i*N + N - 1, rank r the r-th of them. A
row that N does not divide loses its end, fewer than N batches: all ranks must make equally many steps. Validation
loses nothing: its ranks need not be in step.

A gang that runs on fewer slots than its full size makes each step in several rounds: in round k of step i, rank r
trains batch (i*K + k)*N + r, where K is the number of rounds. So a step takes the same batches as at full size.

An epoch that was begun with other batches goes on at its next record: what is left of it becomes the last steps of a
row of the new batches, which all begin `shift` records later than that row alone would have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `size`. rounds: batches of each rank in one step."""

    rank: int = 0
    size: int = 1
    rounds: int = 1

    @property
    def batches_per_step(self) -> int:
        return self.size * self.rounds

    def steps_per_epoch(self, num_batches: int) -> int:
        return num_batches // self.batches_per_step

    def training_positions(self, num_batches: int, first_step: int) -> Iterator[tuple[int, range]]:
        """From an endless row of epochs, starting first_step steps after its begin: each epoch's number with the
        positions of this rank's batches in it."""
        steps, width = self.steps_per_epoch(num_batches), self.batches_per_step
        epoch, offset = divmod(first_step, steps)
        while True:
            yield epoch, range(offset * width + self.rank, steps * width, self.size)
            epoch, offset = epoch + 1, 0

    def place_after(self, num_batches: int, batches_left: int, records: int, batch_size: int) -> tuple[int, int]:
        """The step at which an epoch goes on after `records`, and its shift. num_batches: of a whole epoch;
        batches_left: that the other records make."""
        step = self.steps_per_epoch(num_batches) - self.steps_per_epoch(batches_left)
        return step, records - step * self.batches_per_step * batch_size

    def place_at_batch(self, records: int, batch_size: int) -> tuple[int, int]:
        """Likewise for batches that begin where they begin: with the batch that the next record is in."""
        return records // (batch_size * self.batches_per_step), 0

    def validation_positions(self, num_batches: int) -> range:
        return range(self.rank, num_batches, self.size)
