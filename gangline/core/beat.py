"""Records a rank's progress and place in a small file that its trial runner reads every second.

Owns the rank's end of that file. A beat is a few stores into mapped memory, without a system call or a lock, so every
batch can afford one. The process that writes also registers a signal handler that dumps the stacks of its threads
beside the file. The trial runner decides whether a rank hangs. Off the cluster a twin of the same interface does
nothing.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from pathlib import Path
from typing import Protocol

from gangline.cluster_info import ClusterInfo
from gangline.core import worker
from gangline.core.distributed import count_collectives
from gangline.domain.beat import BREAK, UNKNOWN, Collectives, Phase, Where
from gangline.launch.beat_file import (
    BACKGROUND,
    BATCHES,
    BEAT_KEY,
    LIFE,
    OTHERS,
    PART,
    PHASE,
    PID,
    WHERE,
    WORLD,
    map_cells,
    path_of_rank,
    stack_signal,
    stacks_path_of,
)

# Plain numbers, because looking up a member of an enumeration takes longer than the rest of a beat.
_OUTSIDE, _WATCHED, _RESTING, _STARTING = (int(phase) for phase in Phase)
START, GROUP, BUILD = int(Where.START), int(Where.GROUP), int(Where.BUILD)
DATA, FORWARD, BACKWARD, OPTIMIZER = int(Where.DATA), int(Where.FORWARD), int(Where.BACKWARD), int(Where.OPTIMIZER)
TRAIN_BATCH, BETWEEN, EXCHANGE = int(Where.TRAIN_BATCH), int(Where.BETWEEN), int(Where.EXCHANGE)
REPORT, CALLBACK, VALIDATION = int(Where.REPORT), int(Where.CALLBACK), int(Where.VALIDATION)
CHECKPOINT, TRACE = int(Where.CHECKPOINT), int(Where.TRACE)
# Interval between two updates of the collective counts.
COUNT_SECONDS = 0.25


class Beat(Protocol):
    """The interface by which a rank records its progress. Every call is cheap. All calls come from the thread that
    trains, or from one that works in turns with it, except `pulse`. where: one of the numbers of this module, as
    DATA."""

    def prepare(self, where: int) -> None:
        """Records that a trial is being made. User code may run here, for any time."""
        ...

    def start(self, where: int) -> None:
        """Records that training is about to begin. Its first batch is expected in bounded time."""
        ...

    def begin(self, batches: int) -> None:
        """Records that training goes on after this many batches. Until the first completed batch the runner applies the
        limit of a start. That limit is long, because the first batch may compile."""
        ...

    def step(self, batches: int) -> None:
        """Records how many batches of the trial are complete."""
        ...

    def enter(self, where: int) -> None:
        """Records that this rank enters a part of the work that all ranks reach in step. A rest ends."""
        ...

    def stay(self, where: int) -> None:
        """Records where this rank is from now on, without counting a part that all ranks share."""
        ...

    def tick(self) -> None:
        """Counts progress smaller than a batch, perhaps of this rank alone. A rest ends."""
        ...

    def pulse(self) -> None:
        """Counts progress of the work for which the rank rests, such as the writing of a checkpoint; the rest goes on.
        Outside of a rest it has no effect, because it proves nothing about the thread that trains. Any thread may call
        it."""
        ...

    def hold(self) -> None:
        """Counts a moment in which the rank waits for its storage, in any phase. The caller bounds the wait, and calls
        this in the thread that waits, about once a second."""
        ...

    def rest(self, where: int) -> None:
        """Records that the rank may take long until the next tick, step or resume: user code runs, or storage takes a
        checkpoint. A rank must not rest while it waits for other ranks, because one of them may hang."""
        ...

    def resume(self) -> None:
        """Ends a rest without counting progress."""
        ...

    def leave_step(self) -> None:
        """Marks the time up to the next completed batch as no part of a step. An example is a validation of many
        batches."""
        ...

    def end(self) -> None:
        """Records that training is over."""
        ...

    def report(self, batches: int) -> None:
        """Records the batches that the chief reports. A script is watched only where the experiment asks for it. Where
        the trainer runs, it counts the batches itself, because a report may be of an earlier batch."""
        ...

    def touch(self) -> None:
        """Records that a user's script calls the Core API."""
        ...


class NoBeat:
    """The twin off the cluster, where no runner reads beats."""

    def prepare(self, where: int) -> None:
        pass

    def start(self, where: int) -> None:
        pass

    def begin(self, batches: int) -> None:
        pass

    def step(self, batches: int) -> None:
        pass

    def enter(self, where: int) -> None:
        pass

    def stay(self, where: int) -> None:
        pass

    def tick(self) -> None:
        pass

    def pulse(self) -> None:
        pass

    def hold(self) -> None:
        pass

    def rest(self, where: int) -> None:
        pass

    def resume(self) -> None:
        pass

    def leave_step(self) -> None:
        pass

    def end(self) -> None:
        pass

    def report(self, batches: int) -> None:
        pass

    def touch(self) -> None:
        pass


class FileBeat:
    """Writes into a file that a BeatFile has made. batches: complete so far. watches_scripts: whether the runner also
    watches code that uses the Core API without the trainer."""

    def __init__(self, path: str, *, batches: int = UNKNOWN, watches_scripts: bool = False) -> None:
        self._cells = map_cells(Path(path))
        self._watches_scripts = watches_scripts
        self._has_stepped = False
        self._is_training = False
        self._where = 0
        self._counting: threading.Thread | None = None
        self._stacks = stacks_path_of(Path(path)).open("w")
        faulthandler.register(stack_signal(), self._stacks, all_threads=True)
        self._cells[BATCHES] = batches
        if watches_scripts:
            self.start(START)
        # Last, because the runner takes a pid as the sign that a process has opened the file and its numbers count.
        self._cells[PID] = os.getpid()

    def prepare(self, where: int) -> None:
        self.stay(where)
        self._count()

    def start(self, where: int) -> None:
        self._cells[PHASE] = _STARTING
        self.prepare(where)

    def begin(self, batches: int) -> None:
        self._is_training, self._has_stepped = True, False
        self._cells[BATCHES] = batches
        self._cells[PART] = 0
        self.start(BETWEEN)

    def step(self, batches: int) -> None:
        self._move(batches)
        self._has_stepped = True
        self.stay(BETWEEN)
        self._cells[PHASE] = _WATCHED

    def enter(self, where: int) -> None:
        self._cells[PART] += 1
        self._where = self._cells[WHERE] = where
        if self._has_stepped:
            self._cells[PHASE] = _WATCHED

    def stay(self, where: int) -> None:
        self._where = self._cells[WHERE] = where

    def tick(self) -> None:
        self._cells[LIFE] += 1
        self.resume()

    def pulse(self) -> None:
        if self._cells[PHASE] == _RESTING:
            self._cells[LIFE] += 1

    def hold(self) -> None:
        self._cells[LIFE] += 1

    def rest(self, where: int) -> None:
        self._cells[WHERE] = where
        if self._has_stepped:
            self._cells[PHASE] = _RESTING

    def resume(self) -> None:
        self._cells[WHERE] = self._where
        if self._has_stepped:
            self._cells[PHASE] = _WATCHED

    def leave_step(self) -> None:
        self._cells[PART] |= BREAK

    def end(self) -> None:
        self._is_training = self._has_stepped = False
        self._cells[PHASE] = _OUTSIDE
        self.stay(0)

    def report(self, batches: int) -> None:
        if self._is_training:
            self._cells[LIFE] += 1
            return
        self._move(batches)
        self._watch_script()

    def touch(self) -> None:
        if self._is_training:
            self._cells[LIFE] += 1
            return
        self._cells[PART] += 1
        # A script may report at any interval, so the time between two reports is no step time.
        self.leave_step()
        self._watch_script()

    def _watch_script(self) -> None:
        if self._watches_scripts:
            self._cells[PHASE] = _WATCHED
            self.stay(0)
            self._count()

    def _move(self, batches: int) -> None:
        # A new count starts with part 0. A repeated count is further work after the same batch.
        self._cells[PART] = self._cells[PART] + 1 if self._cells[BATCHES] == batches else 0
        self._cells[BATCHES] = batches

    def _count(self) -> None:
        """Starts to count the collectives that this process enters. A thread samples the counts, because some of
        torch's collectives begin without a call that could be counted."""
        if self._counting is None:
            self._counting = threading.Thread(target=self._count_for_ever, name="gangline-collectives", daemon=True)
            self._counting.start()

    def _count_for_ever(self) -> None:
        last_counts, pause = Collectives(), threading.Event()
        while not pause.wait(COUNT_SECONDS):
            counts = count_collectives()
            if counts == last_counts:
                continue
            self._cells[WORLD], self._cells[OTHERS] = counts.world, counts.others
            self._cells[BACKGROUND] = counts.background
            last_counts = counts


_current: Beat | None = None


def open_beat(cluster: ClusterInfo | None = None, *, batches: int = UNKNOWN) -> Beat:
    """Returns the beat of this process. The first call opens it; without a file from a runner it is the twin."""
    global _current  # noqa: PLW0603  a process has one trial runner
    if _current is None:
        path = _find_path(cluster)
        watches_scripts = cluster is not None and cluster.trial.settled.hang_detection.watches_scripts
        _current = FileBeat(path, batches=batches, watches_scripts=watches_scripts) if path else NoBeat()
    return _current


def _find_path(cluster: ClusterInfo | None) -> str | None:
    """Returns the path of this process's file. A worker of a script that runs once on its machine has the file of its
    slot, and none where the script has started more workers than it has slots."""
    path = os.environ.get(BEAT_KEY)
    if path is None or cluster is None or not cluster.runs_once:
        return path
    own = path_of_rank(Path(path), cluster.rank + worker.find_place(cluster).local_rank)
    return str(own) if own.is_file() else None


def _forget() -> None:
    """Forgets the parent's file in a fork, which may be the rank of another slot."""
    global _current  # noqa: PLW0603  a process has one trial runner
    _current = None


os.register_at_fork(after_in_child=_forget)
