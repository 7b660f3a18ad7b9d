"""PURE: the position of training, and the units in which a user gives lengths and periods: batches, epochs, records.

Owns the trainer's position in the data and the question whether something is due there.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gangline.errors import invalid


@dataclass(slots=True)
class Position:
    """Position of training. batches and epoch are completed ones; offset counts the batches of the running epoch.

    epoch_length is in batches. records_per_batch is over all ranks together (0 when unknown).
    """

    epoch_length: int
    records_per_batch: int
    batches: int = 0
    epoch: int = 0
    offset: int = 0
    # Number of records by which the rest of the running epoch begins later than batches of this size would. 0 unless
    # the size has changed.
    shift: int = 0

    @property
    def loader_step(self) -> int:
        """Number of completed batches of each rank's endless data stream."""
        return self.epoch * self.epoch_length + self.offset

    @property
    def is_epoch_start(self) -> bool:
        return self.offset == 0

    @property
    def is_epoch_end(self) -> bool:
        """Returns whether the running batch is the last of its epoch."""
        return self.offset == self.epoch_length - 1

    def count_by(self, unit_name: str) -> float | None:
        """Returns how many batches, epochs or records are completed; None for another unit, or where it is not known
        how many records a batch has. An epoch under way counts as a fraction."""
        match unit_name:
            case "batches":
                return self.batches
            case "epochs":
                return self.epoch + self.offset / self.epoch_length
            case "records" if self.records_per_batch:
                return self.batches * self.records_per_batch
        return None

    def go_on(self, epoch: int, offset: int, shift: int) -> None:
        """Continues at a place. An offset of a whole epoch or more is in a later epoch."""
        epochs, self.offset = divmod(offset, self.epoch_length)
        self.epoch, self.shift = epoch + epochs, 0 if epochs else shift

    def before(self, count: int) -> Position:
        """Returns the position `count` batches ago, if training began no later."""
        epoch, offset = divmod(max(0, self.loader_step - count), self.epoch_length)
        return replace(self, batches=self.batches - count, epoch=epoch, offset=offset)

    def advance(self) -> None:
        """Counts one more completed batch."""
        self.batches += 1
        self.offset += 1
        if self.offset == self.epoch_length:
            self.epoch, self.offset, self.shift = self.epoch + 1, 0, 0


class TrainUnit:
    """Length or period. value: a number above 0, or a container of the points at which it is due."""

    def __init__(self, value: int | Container[int]) -> None:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if (is_number and value <= 0) or not (is_number or _is_container(value)):  # type: ignore[operator]
            raise invalid("pytorch.unit", f"{type(self).__name__}({value!r}): expected a number above 0")
        self.value = value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.value == other.value

    def __hash__(self) -> int:
        return hash((type(self), self.length if isinstance(self.value, int) else id(self.value)))

    @property
    def length(self) -> int:
        """Returns the value as a length. Raises GanglineError `pytorch.unit` where it is not a number."""
        if not isinstance(self.value, int):
            raise invalid("pytorch.unit", f"{self!r}: a length is one number")
        return self.value

    def count(self, position: Position) -> int:
        """Returns how many units are completed at this position."""
        raise TypeError(f"{type(self).__name__} is no unit; use Batch, Epoch or Record")

    def is_due(self, position: Position) -> bool:
        """Returns whether the newest batch completed a unit at which this is due."""
        raise TypeError(f"{type(self).__name__} is no unit; use Batch, Epoch or Record")

    def next_due(self, position: Position) -> int:
        """Returns a count of batches, above the position's, before which this is not due again."""
        return position.batches + 1

    def total_batches(self, position: Position) -> int:
        """Returns the number of batches of a training of this length, computed from a position before its end."""
        raise TypeError(f"{type(self).__name__} is no unit; use Batch, Epoch or Record")

    def is_reached(self, position: Position) -> bool:
        return self.count(position) >= self.length

    def _matches(self, number: int) -> bool:
        return number % self.value == 0 if isinstance(self.value, int) else number in self.value


class Batch(TrainUnit):
    """Unit of one batch of every rank: one micro-step."""

    def count(self, position: Position) -> int:
        return position.batches

    def is_due(self, position: Position) -> bool:
        return position.batches > 0 and self._matches(position.batches)

    def next_due(self, position: Position) -> int:
        distance = self.value - position.batches % self.value if isinstance(self.value, int) else 1
        return position.batches + distance

    def total_batches(self, position: Position) -> int:
        return self.length


class Epoch(TrainUnit):
    """Unit of one pass over the training data."""

    def count(self, position: Position) -> int:
        return position.epoch

    def is_due(self, position: Position) -> bool:
        return position.epoch > 0 and position.offset == 0 and self._matches(position.epoch)

    def next_due(self, position: Position) -> int:
        return position.batches + position.epoch_length - position.offset

    def total_batches(self, position: Position) -> int:
        left = (self.length - position.epoch) * position.epoch_length - position.offset
        return position.batches + max(0, left)


class Record(TrainUnit):
    """Unit of one record of the training data; counted in whole batches."""

    def count(self, position: Position) -> int:
        return position.batches * self._records_per_batch(position)

    def is_due(self, position: Position) -> bool:
        records = self._records_per_batch(position)
        done = position.batches * records
        if isinstance(self.value, int):
            return done // self.value > (done - records) // self.value
        return any(self._matches(number) for number in range(done - records + 1, done + 1))

    def total_batches(self, position: Position) -> int:
        return -(-self.length // self._records_per_batch(position))

    def _records_per_batch(self, position: Position) -> int:
        if position.records_per_batch < 1:
            raise invalid(
                "pytorch.unit", f"{self!r}: records need a DataLoader with a batch_size; count batches instead"
            )
        return position.records_per_batch


_UNIT_BY_KEY: dict[str, type[TrainUnit]] = {"batches": Batch, "epochs": Epoch, "records": Record}


def parse_unit(value: Any, where: str) -> TrainUnit | None:
    """Returns the unit that a configuration has at `where`: {batches: n}, {epochs: n}, {records: n}, a bare number of
    batches, or nothing. A zero means nothing, as in Determined's periods."""
    if value is None or value == 0:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"batches": value}
    entries = [(key, number) for key, number in value.items() if number is not None] if _is_mapping(value) else []
    if len(entries) != 1 or entries[0][0] not in _UNIT_BY_KEY:
        raise invalid("config.length", f"{where}: expected one of batches, epochs and records, found {value!r}")
    key, number = entries[0]
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise invalid("config.length", f"{where}.{key}: expected a whole number of 0 or more, found {number!r}")
    return _UNIT_BY_KEY[key](number) if number else None


def _is_container(value: Any) -> bool:
    return isinstance(value, Container) and not isinstance(value, str)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)
