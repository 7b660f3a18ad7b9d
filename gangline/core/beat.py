"""A rank's sign of life: how far it is, in a small file that its trial runner looks at every second.

Owns the rank's end of that file. A beat is a few stores into mapped memory, without a system call or a lock, so
that it can stand in every batch. The process that writes also promises to dump the stacks of its threads beside the
file when a signal asks for them. Whether a rank hangs is the runner's to decide; off the cluster the twin does nothing.
"""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path
from typing import Protocol

from gangline.domain.beat import BREAK, UNKNOWN, Phase
from gangline.launch.beat_file import BATCHES, BEAT_KEY, PART, PHASE, PID, map_cells, stack_signal, stacks_path_of

# As plain numbers: looking up a member of an enumeration takes longer than all else in a beat.
_OUTSIDE, _WATCHED, _RESTING = (int(phase) for phase in (Phase.OUTSIDE, Phase.WATCHED, Phase.RESTING))


class Beat(Protocol):
    """All calls cost next to nothing. They come from the thread that trains."""

    def begin(self, batches: int) -> None:
        """Training goes on after so many batches. It is watched from its first completed batch on: what comes before,
        such as a compilation, may take long."""
        ...

    def step(self, batches: int) -> None:
        """So many batches of the trial are complete."""
        ...

    def tick(self) -> None:
        """Something less than a batch is done; a rest is over."""
        ...

    def rest(self) -> None:
        """Until the next tick, step or resume it may take as long as it likes: the user's own code runs, or storage
        takes a checkpoint. Not for waiting for other ranks: one of them may hang."""
        ...

    def resume(self) -> None:
        """A rest is over, and nothing else is done."""
        ...

    def leave_step(self) -> None:
        """What is done from here to the next completed batch is no part of a step: a validation of many batches."""
        ...

    def end(self) -> None:
        """Training is over."""
        ...

    def report(self, batches: int) -> None:
        """A script of the user's says how far it is. It is watched only where the experiment asks for it."""
        ...

    def touch(self) -> None:
        """A script of the user's calls the Core API."""
        ...


class NoBeat:
    """The twin off the cluster: nobody looks."""

    def begin(self, batches: int) -> None:
        pass

    def step(self, batches: int) -> None:
        pass

    def tick(self) -> None:
        pass

    def rest(self) -> None:
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
    """Writes into a file that a BeatFile has made. batches: complete so far. watches_scripts: whether the Core API
    alone is watched too."""

    def __init__(self, path: str, *, batches: int = UNKNOWN, watches_scripts: bool = False) -> None:
        self._cells = map_cells(Path(path))
        self._watches_scripts = watches_scripts
        self._has_stepped = False
        self._is_training = False
        self._stacks = stacks_path_of(Path(path)).open("w")
        faulthandler.register(stack_signal(), self._stacks, all_threads=True)
        self._cells[BATCHES] = batches
        self._cells[PID] = os.getpid()

    def begin(self, batches: int) -> None:
        self._is_training = True
        self._cells[BATCHES] = batches
        self._cells[PART] = 0
        self._cells[PHASE] = _RESTING

    def step(self, batches: int) -> None:
        self._move(batches)
        self._has_stepped = True
        self._cells[PHASE] = _WATCHED

    def tick(self) -> None:
        self._cells[PART] += 1
        self.resume()

    def rest(self) -> None:
        self._cells[PHASE] = _RESTING

    def resume(self) -> None:
        if self._has_stepped:
            self._cells[PHASE] = _WATCHED

    def leave_step(self) -> None:
        self._cells[PART] |= BREAK

    def end(self) -> None:
        self._is_training = self._has_stepped = False
        self._cells[PHASE] = _OUTSIDE

    def report(self, batches: int) -> None:
        self._move(batches)
        if self._watches_scripts:
            self._cells[PHASE] = _WATCHED

    def touch(self) -> None:
        self._cells[PART] += 1
        # A script reports as seldom as it likes; the trainer asks as a part of its step.
        if not self._is_training:
            self.leave_step()
        if self._watches_scripts:
            self._cells[PHASE] = _WATCHED

    def _move(self, batches: int) -> None:
        self._cells[PART] = self._cells[PART] + 1 if self._cells[BATCHES] == batches else 0
        self._cells[BATCHES] = batches


_current: Beat | None = None


def open_beat(*, batches: int = UNKNOWN, watches_scripts: bool = False) -> Beat:
    """The beat of this process: opened at the first call, the twin where no runner made a file for it."""
    global _current  # noqa: PLW0603  a process has one trial runner
    if _current is None:
        path = os.environ.get(BEAT_KEY)
        _current = FileBeat(path, batches=batches, watches_scripts=watches_scripts) if path else NoBeat()
    return _current
