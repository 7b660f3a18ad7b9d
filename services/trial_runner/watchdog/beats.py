"""The progress of ranks, for the hang watchdog: the beat files of this machine, and what the other members report.

Owns the beat files, and the rows in which members send their readings to node rank 0 over the gang's links.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gangline.domain.beat import Collectives, Phase, Reading
from gangline.launch.beat_file import BeatFile, phase_of, where_of
from gangline.launch.child import is_exiting
from services.common.state_folder import SharedFolder
from services.trial_runner.gang.gang_plan import Place


class Beats:
    """The beat files of this machine's ranks."""

    def __init__(self, folder: SharedFolder, place: Place) -> None:
        self.files = {rank: BeatFile(folder.beat_path(rank)) for rank in place.slot_ranks}
        self._place = place

    @property
    def paths(self) -> dict[int, Path]:
        """The beat files by rank."""
        return {rank: file.path for rank, file in self.files.items()}

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


class RemoteBeats:
    """On node rank 0, the newest readings of the other members."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._readings_by_node: dict[int, dict[int, Reading]] = {}

    def on_beats(self, node_rank: int, beats: Sequence[Sequence[int]], details: Sequence[Sequence[int]]) -> None:
        """Takes the rows of one member, in place of its earlier ones."""
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
        self._readings_by_node[node_rank] = plain

    def with_own(self, own: dict[int, Reading]) -> dict[int, Reading]:
        """Returns the readings of the whole gang by rank."""
        seen = dict(own)
        for readings in self._readings_by_node.values():
            seen |= readings
        return seen

    def agent_of(self, rank: int) -> str:
        """Returns the agent of a rank; this one's for a rank that no other member has reported."""
        nodes = (node for node, readings in self._readings_by_node.items() if rank in readings)
        return self._place.agent_ids[next(nodes, self._place.node_rank)]


def to_rows(readings: dict[int, Reading]) -> list[list[int]]:
    """Returns rows that every version understands: an earlier version has no phase for the start."""
    return [
        [rank, reading.batches, reading.part, int(min(reading.phase, Phase.RESTING)), reading.pid]
        for rank, reading in readings.items()
    ]


def to_details(readings: dict[int, Reading]) -> list[list[int]]:
    """Returns the rows that an earlier version ignores."""
    rows = []
    for rank, reading in readings.items():
        entered = reading.collectives
        counts = [reading.life, entered.world, entered.others, entered.background, int(reading.is_stopped)]
        rows.append([rank, int(reading.phase), int(reading.where), *counts])
    return rows


def _lives(pid: int) -> bool:
    return pid > 0 and not is_exiting(pid)
