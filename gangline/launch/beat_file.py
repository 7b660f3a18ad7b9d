"""The small file by which a rank says how far it is: its layout, and the end of the trial runner that made it.

The rank's end is gangline.core.beat. Both map the file into memory, so neither asks the kernel for anything to write or
read it. Standard library only.
"""

from __future__ import annotations

import mmap
import signal
from pathlib import Path

from gangline.domain.beat import Phase, Reading

# The environment variable that names a rank its file.
BEAT_KEY = "GANGLINE_BEAT_FILE"
NUM_BYTES = 32
# Places of the 8-byte numbers in it.
BATCHES, PART, PHASE, PID = range(4)
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
        batches, part, phase, pid = self._cells
        # A script can write anything into a file of its own.
        return Reading(batches, part, Phase(phase) if phase in set(Phase) else Phase.OUTSIDE, pid)
