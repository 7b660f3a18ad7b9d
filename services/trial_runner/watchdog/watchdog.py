"""Reads the beats of this machine's ranks, and on node rank 0 those of the whole gang, to detect a hang.

Owns the beats' files and the clock of the hang watchdog; `hang_rule.py` decides. The other members send their readings
to node rank 0 over the gang's links, and node rank 0 reports a hang to them. The runner decides what follows from a
hang.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from gangline.domain.beat import Collectives, Phase, Reading
from gangline.domain.failure import HangRule
from gangline.domain.state import ExitKind
from gangline.launch.beat_file import BeatFile, phase_of, where_of
from gangline.launch.child import is_exiting
from services.common.concurrency import cancel
from services.common.state_folder import SharedFolder
from services.trial_runner.gang.gang_links import GangLinks
from services.trial_runner.gang.gang_plan import Place
from services.trial_runner.gang.outcome import FailureRecord
from services.trial_runner.watchdog.hang_rule import Hang, ProgressWatch, find_hang, look
from services.trial_runner.watchdog.stacks import is_stopped

log = structlog.get_logger(__name__)

# Longest pause in seconds between two readings of the beats.
LOOK_SECONDS = 1.0
# Shortest pause in seconds, for rules with very short limits.
MIN_LOOK_SECONDS = 0.1


class Watchdog:
    """The hang watchdog of one member. on_hang: called once, on every member, with the rank that is furthest behind."""

    def __init__(
        self,
        folder: SharedFolder,
        place: Place,
        rule: HangRule,
        gang: GangLinks,
        on_hang: Callable[[FailureRecord], None],
    ) -> None:
        self.files = {rank: BeatFile(folder.beat_path(rank)) for rank in place.slot_ranks}
        # Turns the pid in a beat file into that of this machine.
        self.find_pid: Callable[[int], int] = lambda pid: pid
        self._place = place
        self._rule = rule
        self._gang = gang
        self._on_hang = on_hang
        self._elsewhere: dict[int, dict[int, Reading]] = {}
        self._watching: asyncio.Task[None] | None = None
        gang.on_beats = self._on_beats
        gang.on_hang = on_hang

    @property
    def paths(self) -> dict[int, Path]:
        """The beat files by rank."""
        return {rank: file.path for rank, file in self.files.items()}

    def start(self, living: Callable[[], Iterable[int]]) -> None:
        """Starts the watch, unless the rule disables it. living: returns this machine's ranks that have not ended."""
        if self._rule.is_enabled:
            self._watching = asyncio.create_task(self._watch(living))
            self._watching.add_done_callback(_log_failure)

    def living_files(self, living: Iterable[int]) -> dict[int, BeatFile]:
        """Returns the files of the ranks that train. living: the ranks whose processes have not ended.

        A script that runs once on its machine may start a worker for each slot. Its workers count while they live.
        Before the first one, the script itself counts as the machine's first rank.
        """
        if not self._place.runs_once:
            return {rank: self.files[rank] for rank in living}
        if not list(living):
            return {}
        opened = {rank: file for rank, file in self.files.items() if _lives(file.read().pid)}
        return opened or {rank: self.files[rank] for rank in self._place.ranks}

    def batches_of(self, rank: int) -> int | None:
        """Returns how many batches a rank has reported; None if it never did. The rank of a script's worker may be one
        that no slot has."""
        file = self.files.get(rank)
        return file.read().place if file is not None else None

    async def close(self) -> None:
        if self._watching is not None:
            await cancel(self._watching)

    async def _watch(self, living: Callable[[], Iterable[int]]) -> None:
        watch, looked_at = ProgressWatch(), time.monotonic()
        told: dict[int, Reading] = {}
        shortest = min(self._rule.seconds, self._rule.start_seconds, self._rule.rest_seconds)
        while True:
            # About four readings within the shortest limit, so a hang is found soon after its limit.
            await asyncio.sleep(max(MIN_LOOK_SECONDS, min(LOOK_SECONDS, shortest / 4)))
            own = {rank: self._read(rank) for rank in self.living_files(living())}
            if not self._place.is_head:
                if own != told:
                    self._gang.tell_beats(_to_message(own), _to_details(own))
                told = own
                continue
            now = time.monotonic()
            watch, looked_at = look(watch, self._gather(own), now - looked_at), now
            hang = find_hang(watch, self._rule)
            if hang is not None:
                self._tell(hang)
                return

    def _read(self, rank: int) -> Reading:
        reading = self.files[rank].read()
        return replace(reading, is_stopped=True) if reading.pid and is_stopped(self.find_pid(reading.pid)) else reading

    def _gather(self, own: dict[int, Reading]) -> dict[int, Reading]:
        seen = dict(own)
        for readings in self._elsewhere.values():
            seen |= readings
        return seen

    def _tell(self, hang: Hang) -> None:
        failure = FailureRecord(ExitKind.HANG, hang.message, hang.rank, self._agent_of(hang.rank), time.time())
        self._gang.tell_hang(failure)
        self._on_hang(failure)

    def _agent_of(self, rank: int) -> str:
        node = next((node for node, readings in self._elsewhere.items() if rank in readings), self._place.node_rank)
        return self._place.agent_ids[node]

    def _on_beats(self, node_rank: int, beats: Sequence[Sequence[int]], details: Sequence[Sequence[int]]) -> None:
        plain = {rank: Reading(batches, part, phase_of(phase), pid) for rank, batches, part, phase, pid in beats}
        for rank, phase, where, life, world, others, background, stopped, *_ in details:
            if rank in plain:
                plain[rank] = replace(
                    plain[rank],
                    phase=phase_of(phase),
                    where=where_of(where),
                    life=life,
                    collectives=Collectives(world, others, background),
                    is_stopped=bool(stopped),
                )
        self._elsewhere[node_rank] = plain


def _lives(pid: int) -> bool:
    return pid > 0 and not is_exiting(pid)


def _log_failure(watching: asyncio.Task[None]) -> None:
    if not watching.cancelled() and watching.exception() is not None:
        log.error("the hang watchdog broke: a hang of this trial ends nothing", error=repr(watching.exception()))


def _to_message(readings: dict[int, Reading]) -> list[list[int]]:
    """Returns rows that every version understands: an earlier version has no phase for the start."""
    return [
        [rank, reading.batches, reading.part, int(min(reading.phase, Phase.RESTING)), reading.pid]
        for rank, reading in readings.items()
    ]


def _to_details(readings: dict[int, Reading]) -> list[list[int]]:
    """Returns the rows that an earlier version ignores."""
    rows = []
    for rank, reading in readings.items():
        entered = reading.collectives
        counts = [reading.life, entered.world, entered.others, entered.background, int(reading.is_stopped)]
        rows.append([rank, int(reading.phase), int(reading.where), *counts])
    return rows
