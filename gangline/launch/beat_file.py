"""The small file in which a rank records its progress: its layout, and the end of the trial runner that made it.

The rank's end is gangline.core.beat. Both map the file into memory, so neither needs a system call to write or read it.
Standard library only.
"""

from __future__ import annotations

import mmap
import signal
from pathlib import Path

from gangline.domain.beat import Collectives, Phase, Reading, Where

# The environment variable with the path of a rank's file.
BEAT_KEY = "GANGLINE_BEAT_FILE"
# Room for 16 numbers of 8 bytes; 9 are in use.
NUM_BYTES = 128
# Indexes of the 8-byte numbers in the file.
BATCHES, PART, PHASE, PID, WHERE, LIFE, WORLD, OTHERS, BACKGROUND = range(9)
_STACKS_SUFFIX = ".stacks"


def map_cells(path: Path) -> memoryview[int]:
    """Maps the numbers in a file of NUM_BYTES, to be read and written in place."""
    with path.open("r+b") as file:
        # Signed numbers, because UNKNOWN is -1.
        return memoryview(mmap.mmap(file.fileno(), NUM_BYTES)).cast("q")


def stacks_path_of(path: Path) -> Path:
    """Returns the path to which a rank's stacks are dumped. The file exists as soon as a process has opened the beat
    file."""
    return path.with_name(path.name + _STACKS_SUFFIX)


def path_of_rank(path: Path, rank: int) -> Path:
    """Returns the path of another rank's file on the same machine."""
    return path.with_name(file_name(rank))


def file_name(rank: int) -> str:
    return f"rank{rank}.beat"


def stack_signal() -> int:
    """Returns the signal at which a rank dumps its stacks: a real-time signal, which no common library and hardly any
    script uses."""
    return signal.SIGRTMIN + 7


class BeatFile:
    """Makes the file and reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(NUM_BYTES))
        self._cells = map_cells(path)

    @property
    def stacks_path(self) -> Path:
        return stacks_path_of(self.path)

    def read(self) -> Reading:
        cells = self._cells
        # A script can write any number into its rank's file, so unknown phases and places are replaced.
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
