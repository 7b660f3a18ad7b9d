"""The stacks of the ranks' threads. A signal makes a rank dump them itself; see gangline.core.beat.

Owns the signal and the bounded wait for the dumps. A rank that is stopped or stuck in the kernel cannot answer; the
kernel's state of the process is returned in place of its stacks.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gangline.launch.beat_file import BeatFile, stack_signal
from services.common.foreign_file import read_foreign

# Limit for all dumps. The gang hangs, so its slots do no work meanwhile.
DUMP_SECONDS = 2.0
# Pause between two looks at the sizes of the dumps.
_POLL_SECONDS = 0.05
# Bound on one dump; the rest of a longer one is left out.
MAX_STACK_BYTES = 256 << 10
_STATES = {
    "T": "it is stopped (SIGSTOP)",
    "t": "a debugger holds it",
    "D": "it is stuck in the kernel",
}


@dataclass(frozen=True, slots=True)
class Stacks:
    """The dump of one rank."""

    lines: tuple[str, ...] = ()  # stacks of all threads, the main thread's last
    problem: str = ""  # why there are no lines

    @property
    def main_thread(self) -> tuple[str, ...]:
        """The main thread's stack with the newest call last, as in a traceback. So the last lines of a failure show
        where the rank was."""
        headers = [number for number, line in enumerate(self.lines) if "(most recent call first)" in line]
        return tuple(reversed(self.lines[headers[-1] + 1 :] if headers else self.lines))


async def dump_stacks(
    files: Mapping[int, BeatFile], family: Collection[int], find_pid: Callable[[int], int] = lambda pid: pid
) -> dict[int, Stacks]:
    """Returns the stacks by rank.

    family: the pids that may be signalled. A script can write any pid into its file, so no other pid gets a signal.
    find_pid: turns the pid in a beat file into that of this machine.
    """
    pids = {rank: find_pid(file.read().pid) for rank, file in files.items()}
    asked = {rank: pid for rank, pid in pids.items() if pid in family}
    for pid in asked.values():
        with suppress(ProcessLookupError):
            os.kill(pid, stack_signal())
    await _wait_whole([files[rank].stacks_path for rank in asked])
    return {rank: read_dump(files[rank], asked.get(rank)) for rank in files}


async def _wait_whole(paths: list[Path]) -> None:
    """Waits until no file grows any more, because a dump is written at one go. Gives up after DUMP_SECONDS."""
    before: list[int] = []
    deadline = time.monotonic() + DUMP_SECONDS
    while time.monotonic() < deadline:
        sizes = [_size_of(path) for path in paths]
        if sizes == before and all(sizes):
            return
        before = sizes
        await asyncio.sleep(_POLL_SECONDS)


def _size_of(path: Path) -> int:
    # A script may write its pid without Gangline's handler, which makes the file of the dump.
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_dump(file: BeatFile, pid: int | None) -> Stacks:
    """Returns what a process has dumped. pid: None for one that was not asked."""
    if pid is None:
        return Stacks(problem="its process uses no Gangline that could tell, or has gone")
    try:
        text = read_foreign(file.stacks_path, MAX_STACK_BYTES).decode(errors="replace")
    except OSError as error:
        return Stacks(problem=f"its dump cannot be read: {error.strerror}")
    if text:
        return Stacks(tuple(text.splitlines()))
    state = _STATES.get(_process_state(pid), "it does not react")
    return Stacks(problem=f"it dumped none within {DUMP_SECONDS:g} s: {state}")


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process."""
    return _process_state(pid) in ("T", "t")


def _process_state(pid: int) -> str:
    """Returns the letter that ps shows for the process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
