"""What the threads of ranks are doing, asked of the ranks themselves by a signal; see gangline.core.beat.

Owns the signal and the bounded wait for the answers. A rank that is stopped or stuck in the kernel cannot answer; then
the kernel's word for its state is what there is.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gangline.launch.beat_file import BeatFile, stack_signal

DUMP_SECONDS = 2.0
_POLL_SECONDS = 0.05
MAX_STACK_BYTES = 256 << 10
_STATES = {
    "T": "it is stopped (SIGSTOP)",
    "t": "a debugger holds it",
    "D": "it is stuck in the kernel",
}


@dataclass(frozen=True, slots=True)
class Stacks:
    """lines: of all threads, the main thread's last. problem: why there are none."""

    lines: tuple[str, ...] = ()
    problem: str = ""

    @property
    def main_thread(self) -> tuple[str, ...]:
        """The newest call last, as in a traceback: whoever shows the last lines of a failure shows where it stands."""
        headers = [number for number, line in enumerate(self.lines) if "(most recent call first)" in line]
        return tuple(reversed(self.lines[headers[-1] + 1 :] if headers else self.lines))


async def dump_stacks(files: Mapping[int, BeatFile], family: Collection[int]) -> dict[int, Stacks]:
    """By rank. family: the pids that may be signalled; a script could have written any other one into its file."""
    pids = {rank: file.read().pid for rank, file in files.items()}
    asked = {rank: pid for rank, pid in pids.items() if pid in family}
    for pid in asked.values():
        with suppress(ProcessLookupError):
            os.kill(pid, stack_signal())
    await _wait_whole([files[rank].stacks_path for rank in asked])
    return {rank: _read(files[rank], asked.get(rank)) for rank in files}


async def _wait_whole(paths: list[Path]) -> None:
    """Until none grows any more: a dump is written at one go."""
    before: list[int] = []
    deadline = time.monotonic() + DUMP_SECONDS
    while time.monotonic() < deadline:
        sizes = [path.stat().st_size for path in paths]
        if sizes == before and all(sizes):
            return
        before = sizes
        await asyncio.sleep(_POLL_SECONDS)


def _read(file: BeatFile, pid: int | None) -> Stacks:
    if pid is None:
        return Stacks(problem="its process uses no Gangline that could tell, or has gone")
    with file.stacks_path.open("rb") as dumped:
        text = dumped.read(MAX_STACK_BYTES).decode(errors="replace")
    if text:
        return Stacks(tuple(text.splitlines()))
    state = _STATES.get(_process_state(pid), "it does not react")
    return Stacks(problem=f"it dumped none within {DUMP_SECONDS:g} s: {state}")


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process."""
    return _process_state(pid) in ("T", "t")


def _process_state(pid: int) -> str:
    """The letter that ps shows; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
