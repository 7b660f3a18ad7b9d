"""PURE: how a rank's sign of life reads: how far it is, where it is, and whether progress is expected of it. See
gangline.core.beat, which writes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

UNKNOWN = -1
# Set in a part as soon as something was done since the last batch that is no part of a step.
BREAK = 1 << 32


class Phase(IntEnum):
    """OUTSIDE: no progress is expected. WATCHED: a rank that stands still hangs. RESTING: the user's own code or
    storage runs, which may take long, but not for ever. STARTING: before the first completed batch, which may take long
    as well."""

    OUTSIDE = 0
    WATCHED = 1
    RESTING = 2
    STARTING = 3


class Where(IntEnum):
    """What a rank does. Those before DATA come in this order, once, before training begins."""

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
        """As a part of a sentence: in WORDS. Empty where nothing is known."""
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
    """How many collectives a process has entered. world: of the default process group. others: of all further groups.
    background: of groups that serve a background thread, which keeps no step with training."""

    world: int = 0
    others: int = 0
    background: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """pid: 0 until a process has opened the file. batches: complete, UNKNOWN where the rank does not count them. part:
    counts what all ranks do alike since then. life: counts everything else that is done. is_stopped: whether a signal
    or a debugger has stopped the process."""

    batches: int = UNKNOWN
    part: int = 0
    phase: Phase = Phase.OUTSIDE
    pid: int = 0
    where: Where = Where.UNKNOWN
    life: int = 0
    collectives: Collectives = Collectives()
    is_stopped: bool = False

    @property
    def place(self) -> int | None:
        """How many batches were complete; None when the rank never said so."""
        return self.batches if self.pid and self.batches != UNKNOWN else None

    @property
    def is_broken(self) -> bool:
        """Whether the time since the last batch is not that of one step: a validation ran, or a script's own work."""
        return bool(self.part & BREAK)
