"""The small file by which a rank says how far it is: its layout, and the end of the trial runner that made it.

The rank's end is gangline.core.beat. Both map the file into memory, so neither asks the kernel for anything to write or
read it. Standard library only.
"""

from __future__ import annotations

import mmap
import signal
from pathlib import Path

from gangline.domain.beat import Collectives, Phase, Reading, Where

# The environment variable that names a rank its file.
BEAT_KEY = "GANGLINE_BEAT_FILE"
NUM_BYTES = 128
# Places of the 8-byte numbers in it.
BATCHES, PART, PHASE, PID, WHERE, LIFE, WORLD, OTHERS, BACKGROUND = range(9)
_STACKS_SUFFIX = ".stacks"


def map_cells(path: Path) -> memoryview[int]:
    """The numbers in a file of NUM_BYTES, to be read and written as they are."""
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), NUM_BYTES)).cast("q")


def stacks_path_of(path: Path) -> Path:
    """Where a rank's stacks are dumped; it is there as soon as a process has opened the file."""
    return path.with_name(path.name + _STACKS_SUFFIX)


def stack_signal() -> int:
    """What a rank dumps its stacks at: a real-time signal, which no common library and hardly a script uses."""
    return signal.SIGRTMIN + 7


class BeatFile:
    """Makes the file, and reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(NUM_BYTES))
        self._cells = map_cells(path)

    @property
    def stacks_path(self) -> Path:
        return stacks_path_of(self.path)

    def read(self) -> Reading:
        cells = self._cells
        # A script can write anything into a file of its own.
        return Reading(
            batches=cells[BATCHES],
            part=cells[PART],
            phase=phase_of(cells[PHASE]),
            pid=cells[PID],
            where=where_of(cells[WHERE]),
            life=cells[LIFE],
            collectives=Collectives(cells[WORLD], cells[OTHERS], cells[BACKGROUND]),
        )


def phase_of(number: int) -> Phase:
    return Phase(number) if number in set(Phase) else Phase.OUTSIDE


def where_of(number: int) -> Where:
    return Where(number) if number in set(Where) else Where.UNKNOWN
