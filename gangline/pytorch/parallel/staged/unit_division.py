"""The division of a model's units into the parts of a pipeline: the units, the rank and the name of each part.

Owns the number of units of each part, which a division by time changes. Runs nothing. Made by `part.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch.distributed as dist

from gangline.config.pipeline import slot_of_part
from gangline.pytorch.parallel.staged.group import Replicas
from gangline.pytorch.parallel.staged.unit import Unit


class UnitDivision:
    """The parts of one model. counts: number of units of each part. schedule: its name decides which rank has which
    parts."""

    def __init__(self, units: Sequence[Unit], counts: Sequence[int], replicas: Replicas, schedule: str) -> None:
        self._units = units
        self.count = len(counts)  # of parts
        # the place of the rank of each part inside of its replica
        self.place_of = [slot_of_part(part, replicas.stages, schedule) for part in range(self.count)]
        self.own = [part for part, place in enumerate(self.place_of) if place == replicas.place]  # parts of this rank
        self.redivide(counts)

    def redivide(self, counts: Sequence[int]) -> None:
        """Changes the number of units of each part."""
        ends = list(accumulate(counts))
        self._ranges = [(end - count, end - 1) for end, count in zip(ends, counts, strict=True)]

    @property
    def counts(self) -> list[int]:
        """Number of units of each part."""
        return [last - first + 1 for first, last in self._ranges]

    @property
    def has_last(self) -> bool:
        return self.count - 1 in self.own

    @property
    def last_place(self) -> int:
        return self.place_of[-1]

    def range_of(self, part: int) -> tuple[int, int]:
        """Returns the numbers of a part's first and last unit."""
        return self._ranges[part]

    def units_of(self, part: int) -> Sequence[Unit]:
        first, last = self._ranges[part]
        return self._units[first : last + 1]

    def end_of(self, part: int) -> str | None:
        """Returns the path of the module whose output goes from a part to the next one; None where there is none."""
        return self._units[self._ranges[part][1]].end

    def places_of_units(self) -> list[int]:
        """Returns the place of the rank of each unit."""
        return [place for part, place in enumerate(self.place_of) for _ in self.units_of(part)]

    def part_of_paths(self) -> dict[str, int]:
        """Returns the part of each module that a unit has, by its path."""
        return {path: part for part in range(self.count) for unit in self.units_of(part) for path in unit.paths}

    def carried_for(self, needs: Sequence[set[str]]) -> list[list[str]]:
        """Returns the paths whose outputs each part passes on. needs: paths whose outputs each part needs."""
        part_of = self.part_of_paths()
        # The output of a part's last unit goes to the next part anyway.
        return [
            sorted(
                {path for needed in needs[part + 1 :] for path in needed if part_of[path] <= part} - {self.end_of(part)}
            )
            for part in range(self.count)
        ]

    def name_of(self, part: int) -> str:
        """Returns a part's number and units, as in "stage 1 of 2 (blocks.2 to head)"."""
        units = self.units_of(part)
        begin, end = units[0].paths[0], units[-1].paths[-1]
        return f"stage {part} of {self.count} ({begin if begin == end else f'{begin} to {end}'})"

    def describe_place(self, part: int) -> str:
        """Returns the name of an own part and its rank, for errors."""
        return f"{self.name_of(part)}, rank {dist.get_rank()}"
