"""Training programs at one turnstile: block by block in random order, in several runs, until ratios are known.

Owns the rounds of a run, the measurements of all runs, and what is printed of them. In a run all programs are up, and
exactly one of them steps at any time. Two processes of the same program differ by several percent throughout their
lives, because of the addresses of their memory. So every run starts all programs anew, and the interval is that of the
runs' means.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.statistic import Ratio, fastest, mean_of_runs, paired_ratio, summarise
from benchmarks.turnstile import Side

# Rounds at the start of a run that do not count.
WARM_UP_ROUNDS = 2
FEWEST_RUNS = 5
# Half the width of the 95 % interval at which the contest ends.
HALF_WIDTH = 0.02


@dataclass(slots=True)
class Samples:
    """Holds the seconds of each block of one program, run by run."""

    wall: list[list[float]] = field(default_factory=list)
    cpu: list[list[float]] = field(default_factory=list)


class Contest:
    """Collects runs. steps_per_block: the same as in the programs' options."""

    def __init__(self, steps_per_block: int) -> None:
        self._steps_per_block = steps_per_block
        self._rng = random.Random(0)
        self.samples: dict[str, Samples] = {}

    def run(self, sides: Mapping[str, Side], rounds: int) -> None:
        """Adds a run with newly started programs, the same ones each time."""
        for count in range(WARM_UP_ROUNDS + rounds):
            if count == WARM_UP_ROUNDS:
                for side in sides.values():
                    side.wall_seconds.clear()
                    side.cpu_seconds.clear()
                    side.beside_seconds.clear()
            for side in self._rng.sample(list(sides.values()), len(sides)):
                side.run_block()
        for name, side in sides.items():
            samples = self.samples.setdefault(name, Samples())
            samples.wall.append(list(side.wall_seconds))
            samples.cpu.append(list(side.cpu_seconds))

    def is_enough(self) -> bool:
        """Returns whether every interval of a program's wall time over the fastest one's is within 2 %."""
        num_runs = len(next(iter(self.samples.values())).wall) if self.samples else 0
        return num_runs >= FEWEST_RUNS and all(
            self.wall_ratio(name, self.fastest()).half_width <= HALF_WIDTH for name in self.samples
        )

    def fastest(self) -> str:
        return fastest({name: _flat(samples.wall) for name, samples in self.samples.items()})

    def wall_ratio(self, name: str, baseline: str) -> Ratio:
        return _ratio(self.samples[name].wall, self.samples[baseline].wall)

    def cpu_ratio(self, name: str, baseline: str) -> Ratio:
        return _ratio(self.samples[name].cpu, self.samples[baseline].cpu)

    def print_steps(self) -> None:
        """Prints the step time of each program, and the number of runs and rounds."""
        scale = 1000 / self._steps_per_block
        for name, samples in self.samples.items():
            wall, cpu = summarise(_flat(samples.wall)), summarise(_flat(samples.cpu))
            spread = f"(min {wall.minimum * scale:.3f}, p95 {wall.p95 * scale:.3f})"
            cost = f"processor time a step p50 {cpu.p50 * scale:6.3f} ms"
            print(f"{name:10} step p50 {wall.p50 * scale:6.3f} ms {spread}   {cost}")
        runs = next(iter(self.samples.values())).wall
        print(f"{len(runs)} runs of {len(runs[0])} rounds of {self._steps_per_block} steps each")

    def print_runs(self, name: str, baseline: str) -> None:
        """Prints the ratio of each run."""
        pairs = zip(self.samples[name].wall, self.samples[baseline].wall, strict=True)
        ratios = [paired_ratio(own_rounds, baseline_rounds).mean for own_rounds, baseline_rounds in pairs]
        print(f"{name} / {baseline}, run by run: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")


def _ratio(own_runs: Sequence[Sequence[float]], baseline_runs: Sequence[Sequence[float]]) -> Ratio:
    return mean_of_runs([paired_ratio(mine, theirs).mean for mine, theirs in zip(own_runs, baseline_runs, strict=True)])


def _flat(runs: Sequence[Sequence[float]]) -> list[float]:
    return [seconds for run in runs for seconds in run]
