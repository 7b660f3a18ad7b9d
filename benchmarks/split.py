"""Compares where a pipeline cuts a model with all other cuts.

By parameters: the largest stage over the mean of all stages, for transformers of 4 and 8 blocks between embeddings and
a head, in 4 stages. These are counts, so the machine does not matter. By time: a chain of seven units of different
widths in 2 and 3 stages. Each run measures the units as `split: time` does, and then every range of units together,
forward and backward, one range after the other in turn; the slowest stage of our cut is compared with that of the best
of all cuts. The peer is the cut with equally many units in each stage: torch.distributed.pipelining has no balanced
one. One process with one thread. Run it with `python -m benchmarks.split`; it takes about seven minutes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations, pairwise

import torch
from torch import nn

from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from gangline.pytorch.parallel.staged.partition import imbalance_ratio, partition
from gangline.pytorch.parallel.staged.timing import ROUNDS as UNIT_ROUNDS
from gangline.pytorch.parallel.staged.timing import measure
from gangline.pytorch.parallel.staged.unit import divide_units, find_units

# Bars: largest over mean stage by parameters, and our slowest stage over that of the best cut.
PARAMETER_BAR, TIME_BAR = 1.10, 1.03
# The transformers' width, heads and words.
WIDTH, HEADS, WORDS = 32, 4, 64
# Widths inside the units of the chain, and the records of a microbatch.
HIDDEN = (1024, 256, 2048, 512, 1536, 256, 768)
CHAIN_WIDTH, RECORDS = 256, 256
# Measurements of each range of units, of which the median counts.
ROUNDS = 15


class Transformer(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(16, WIDTH)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH) for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    print(describe_machine())
    torch.set_num_threads(1)
    is_good = compare_parameters()
    for stages in (2, 3):
        is_good &= compare_times(stages, arguments.runs)
    print("all within their bounds" if is_good else "NOT within their bounds")
    if not is_good:
        raise SystemExit(1)


def compare_parameters() -> bool:
    """Prints the largest stage over the mean. Returns whether all are within the bar."""
    is_good = True
    for blocks in (4, 8):
        model = Transformer(blocks)
        units = find_units(model)
        costs = [unit.numel for unit in units]
        counts = divide_units(model, units, 4)
        ratio, peer = imbalance_ratio(costs, counts), imbalance_ratio(costs, equal_counts(len(units), 4))
        is_good &= ratio <= PARAMETER_BAR
        print(
            f"by parameters, {blocks} blocks in 4 stages: units {counts}, largest over mean {ratio:.3f} "
            f"(bar {PARAMETER_BAR}); equally many units {peer:.3f}"
        )
    return is_good


def compare_times(stages: int, runs: int) -> bool:
    """Prints our slowest stage over the best cut's. Returns whether the median run is within the bar."""
    units = [nn.Sequential(nn.Linear(CHAIN_WIDTH, width), nn.GELU(), nn.Linear(width, CHAIN_WIDTH)) for width in HIDDEN]
    batch = torch.randn(RECORDS, CHAIN_WIDTH)
    ours, peer = [], []
    for _ in range(runs):
        rounds = [[measure(unit, (batch,), list(unit.parameters())) for unit in units] for _ in range(UNIT_ROUNDS)]
        costs = [min(seconds) for seconds in zip(*rounds, strict=True)]
        chosen = partition(costs, stages)
        seconds = measure_ranges(units, batch)
        best = min(slowest(counts, seconds) for counts in all_counts(len(units), stages))
        ours.append(slowest(chosen, seconds) / best)
        peer.append(slowest(equal_counts(len(units), stages), seconds) / best)
    median = statistics.median(ours)
    print(
        f"by time, {len(units)} units in {stages} stages: our slowest stage over that of the best of "
        f"{sum(1 for _ in all_counts(len(units), stages))} cuts {median:.3f} ({min(ours):.3f} to {max(ours):.3f}; bar "
        f"{TIME_BAR}); equally many units {statistics.median(peer):.3f} ({min(peer):.3f} to {max(peer):.3f})"
    )
    return median <= TIME_BAR


def measure_ranges(units: Sequence[nn.Module], batch: torch.Tensor) -> dict[tuple[int, int], float]:
    """Returns the median seconds of each range of units, by its first unit and the one after its last."""
    samples: dict[tuple[int, int], list[float]] = {
        (first, end): [] for first in range(len(units)) for end in range(first + 1, len(units) + 1)
    }
    for _ in range(ROUNDS):
        for (first, end), found in samples.items():
            stage = nn.Sequential(*units[first:end])
            found.append(measure(stage, (batch,), list(stage.parameters())))
    return {key: statistics.median(found) for key, found in samples.items()}


def slowest(counts: Sequence[int], seconds: dict[tuple[int, int], float]) -> float:
    """Returns the time of the slowest stage of a cut. counts: units of each stage."""
    return max(seconds[pair] for pair in pairwise([0, *accumulate(counts)]))


def all_counts(units: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Yields the units of each stage for every cut into consecutive stages."""
    for ends in combinations(range(1, units), stages - 1):
        yield tuple(end - first for first, end in pairwise((0, *ends, units)))


def equal_counts(units: int, stages: int) -> list[int]:
    """Returns the cut with equally many units in each stage; the first ones have the rest."""
    return [units // stages + (place < units % stages) for place in range(stages)]


if __name__ == "__main__":
    run_benchmark(main)
