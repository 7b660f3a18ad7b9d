"""PURE: the reading of a rank's progress: how far it is, where it is, and whether progress is expected of it.
gangline.core.beat writes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

# The count of batches of a rank that does not count them.
UNKNOWN = -1
# A bit of `part`, set once the rank has done work since the last batch that is no part of a step.
BREAK = 1 << 32


class Phase(IntEnum):
    """OUTSIDE: no progress is expected.
    WATCHED: a rank without progress hangs.
    RESTING: the user's own code or storage runs, which may take long, but not for ever.
    STARTING: before the first completed batch, which may take long as well."""

    OUTSIDE = 0
    WATCHED = 1
    RESTING = 2
    STARTING = 3


class Where(IntEnum):
    """The work that a rank does. The members before DATA are reached in this order, once, before training begins."""

    UNKNOWN = 0
    START = 1
    GROUP = 2
    BUILD = 3
    DATA = 4
    FORWARD = 5
    BACKWARD = 6
    OPTIMIZER = 7
    TRAIN_BATCH = 8
    BETWEEN = 9
    EXCHANGE = 10
    REPORT = 11
    CALLBACK = 12
    VALIDATION = 13
    CHECKPOINT = 14
    TRACE = 15

    @property
    def words(self) -> str:
        """Returns the place as a part of a sentence, from _WORDS. Empty where the place is unknown."""
        return _WORDS[self]


_WORDS = {
    Where.UNKNOWN: "",
    Where.START: "the start of its code",
    Where.GROUP: "joining the process group",
    Where.BUILD: "building the trial and its data",
    Where.DATA: "the data loader",
    Where.FORWARD: "the forward pass",
    Where.BACKWARD: "the backward pass",
    Where.OPTIMIZER: "the optimizer step",
    Where.TRAIN_BATCH: "train_batch",
    Where.BETWEEN: "the work between two batches",
    Where.EXCHANGE: "an exchange with the other ranks",
    Where.REPORT: "the report of metrics",
    Where.CALLBACK: "a callback",
    Where.VALIDATION: "the validation",
    Where.CHECKPOINT: "saving a checkpoint",
    Where.TRACE: "the profiler",
}


@dataclass(frozen=True, slots=True)
class Collectives:
    """The numbers of collectives that a process has entered."""

    world: int = 0  # collectives of the default process group
    others: int = 0  # collectives of all further groups
    background: int = 0  # collectives of groups that serve a background thread, which keeps no step with training


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a rank's beat file."""

    batches: int = UNKNOWN  # completed batches; UNKNOWN if the rank does not count them
    part: int = 0  # counts the work since the last batch that all ranks do alike
    phase: Phase = Phase.OUTSIDE
    pid: int = 0  # 0 until a process has opened the file
    where: Where = Where.UNKNOWN
    life: int = 0  # counts all other work
    collectives: Collectives = Collectives()
    is_stopped: bool = False  # whether a signal or a debugger has stopped the process

    @property
    def place(self) -> int | None:
        """Returns how many batches were complete; None when the rank never reported it."""
        return self.batches if self.pid and self.batches != UNKNOWN else None

    @property
    def is_broken(self) -> bool:
        """Returns whether the time since the last batch is not that of one step, because a validation or a script's own
        work ran."""
        return bool(self.part & BREAK)
