"""The small file in which a rank records its progress: its layout, and the end of the trial runner that made it.

The rank's end is gangline.core.beat. It maps the file into memory, so it needs no system call to write. The trial
runner maps nothing: the file belongs to the rank's user, who can shorten it, and to touch a mapping beyond the end of
its file kills a process. Standard library only.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import weakref
from pathlib import Path

from gangline.domain.beat import Collectives, Phase, Reading, Where

# The environment variable with the path of a rank's file.
BEAT_KEY = "GANGLINE_BEAT_FILE"
# Room for 16 numbers of 8 bytes; 9 are in use.
NUM_BYTES = 128
# Indexes of the 8-byte numbers in the file.
BATCHES, PART, PHASE, PID, WHERE, LIFE, WORLD, OTHERS, BACKGROUND = range(9)
_STACKS_SUFFIX = ".stacks"
# As map_cells has them. Signed numbers, because UNKNOWN is -1.
_CELLS = struct.Struct("@16q")


def map_cells(path: Path) -> memoryview[int]:
    """Maps the numbers in a file of NUM_BYTES, to be read and written in place. A file that was shortened is made
    whole."""
    with path.open("r+b") as file:
        if os.fstat(file.fileno()).st_size < NUM_BYTES:
            file.truncate(NUM_BYTES)
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
    """Makes the file and reads it, whatever its path leads to by then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        weakref.finalize(self, os.close, self._fd)
        os.write(self._fd, bytes(NUM_BYTES))

    @property
    def stacks_path(self) -> Path:
        return stacks_path_of(self.path)

    def read(self) -> Reading:
        """Returns the rank's progress. A file that was shortened reads as if no process had opened it."""
        content = os.pread(self._fd, NUM_BYTES, 0)
        if len(content) < NUM_BYTES:
            return Reading()
        cells = _CELLS.unpack(content)
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
