"""Logs how a model was cut, on the chief."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch.distributed as dist

from gangline.config.pipeline import bubble_ratio
from gangline.pytorch.parallel.staged.partition import imbalance_ratio
from gangline.pytorch.parallel.staged.unit import Unit

_log = logging.getLogger("gangline")


def log_parts(model: str, units: Sequence[Unit], counts: Sequence[int], schedule: str, costs: Sequence[float]) -> None:
    """Logs the units, parameters and costs of each part. costs: of the units, parameters or seconds."""
    if dist.get_rank() == 0:
        _log.info("%s", describe_parts(model, units, counts, schedule, costs))


def log_microbatches(records: int, microbatches: int, stages: int, schedule: str) -> None:
    """Logs how a replica's batch of so many records is cut, and the share of a step in which a slot waits."""
    if dist.get_rank() == 0:
        bubble = bubble_ratio(stages, microbatches, schedule)
        what = "1 microbatch" if microbatches == 1 else f"{microbatches} microbatches"
        _log.info("pipeline: a replica's batch of %s records in %s; bubble %.1f %%", records, what, bubble * 100)


def describe_parts(
    model: str, units: Sequence[Unit], counts: Sequence[int], schedule: str, costs: Sequence[float]
) -> str:
    """Returns one line, as in "pipeline: Net in 2 parts with 1F1B: stem to blocks.1 (5,120), ...; largest / mean
    1.05". Parts divided by time have their milliseconds beside the parameters."""
    texts = []
    first = 0
    for count in counts:
        chosen, cost = units[first : first + count], sum(costs[first : first + count])
        first += count
        numel = sum(unit.numel for unit in chosen)
        size = f"{numel:,}" if cost == numel else f"{numel:,}, {cost * 1000:.2f} ms"
        begin, end = chosen[0].paths[0], chosen[-1].paths[-1]
        texts.append(f"{begin if begin == end else f'{begin} to {end}'} ({size})")
    ratio = imbalance_ratio(costs, counts)
    return f"pipeline: {model} in {len(counts)} parts with {schedule}: {', '.join(texts)}; largest / mean {ratio:.2f}"
