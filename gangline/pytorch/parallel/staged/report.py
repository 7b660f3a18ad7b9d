"""Logs how a model was cut, on the chief."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch.distributed as dist

from gangline.pytorch.parallel.staged.partition import imbalance_ratio
from gangline.pytorch.parallel.staged.unit import Unit

_log = logging.getLogger("gangline")


def log_parts(model: str, units: Sequence[Unit], counts: Sequence[int], schedule: str) -> None:
    """Logs the units and parameters of each part."""
    if dist.get_rank() != 0:
        return
    _log.info("%s", describe_parts(model, units, counts, schedule))


def describe_parts(model: str, units: Sequence[Unit], counts: Sequence[int], schedule: str) -> str:
    """Returns one line, as in "pipeline: Net in 2 parts with 1F1B: stem to blocks.1 (5,120), ...; largest / mean
    1.05"."""
    places = iter(units)
    texts = []
    for count in counts:
        chosen = [next(places) for _ in range(count)]
        numel = sum(unit.numel for unit in chosen)
        first, last = chosen[0].paths[0], chosen[-1].paths[-1]
        texts.append(f"{first if first == last else f'{first} to {last}'} ({numel:,})")
    ratio = imbalance_ratio([unit.numel for unit in units], counts)
    return f"pipeline: {model} in {len(counts)} parts with {schedule}: {', '.join(texts)}; largest / mean {ratio:.2f}"
