"""Training programs at one turnstile: block by block in random order, until their ratios are known well enough.

Owns the rounds and what is printed of them. All programs are up all the time, and exactly one of them runs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from benchmarks.statistic import Ratio, fastest, paired_ratio, summarise
from benchmarks.turnstile import Side

WARM_UP_ROUNDS = 3
FEWEST_ROUNDS = 20
HALF_WIDTH = 0.02


def run_rounds(sides: Mapping[str, Side], most_rounds: int) -> None:
    """Until every 95 % interval of a side's wall time over the fastest one's lies within 2 %, at most so many rounds.
    Each side keeps its blocks of all rounds but the first three."""
    rng = random.Random(0)
    for count in range(WARM_UP_ROUNDS + most_rounds):
        if count == WARM_UP_ROUNDS:
            for side in sides.values():
                side.wall_seconds.clear()
                side.cpu_seconds.clear()
        for side in rng.sample(list(sides.values()), len(sides)):
            side.run_block()
        is_enough = count + 1 >= WARM_UP_ROUNDS + FEWEST_ROUNDS
        if is_enough and all(ratio.half_width <= HALF_WIDTH for ratio in ratios_to_fastest(sides).values()):
            return


def ratios_to_fastest(sides: Mapping[str, Side]) -> dict[str, Ratio]:
    """Of wall time; the fastest one's own is 1."""
    first = fastest({name: side.wall_seconds for name, side in sides.items()})
    return {name: paired_ratio(side.wall_seconds, sides[first].wall_seconds) for name, side in sides.items()}


def print_steps(sides: Mapping[str, Side], steps_per_block: int) -> None:
    """What a step of each side took, and how many rounds there were."""
    scale = 1000 / steps_per_block
    for name, side in sides.items():
        wall, cpu = summarise(side.wall_seconds), summarise(side.cpu_seconds)
        spread = f"(min {wall.minimum * scale:.3f}, p95 {wall.p95 * scale:.3f})"
        cost = f"processor time a step p50 {cpu.p50 * scale:6.3f} ms"
        print(f"{name:10} step p50 {wall.p50 * scale:6.3f} ms {spread}   {cost}")
    print(f"rounds {len(next(iter(sides.values())).wall_seconds)} of {steps_per_block} steps each")
