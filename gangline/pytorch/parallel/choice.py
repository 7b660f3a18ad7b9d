"""Chooses the strategy that the configuration's `parallelism` names; the one place that knows them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gangline.errors import invalid
from gangline.pytorch.parallel.ddp import DdpStrategy
from gangline.pytorch.parallel.none import SingleStrategy
from gangline.pytorch.parallel.strategy import Strategy

_DDP_OPTIONS = ("find_unused_parameters", "static_graph", "broadcast_buffers")
_PIPELINE_KEYS = ("stages", "microbatches", "schedule", "split")


def choose_strategy(parallelism: str | Mapping[str, Any] | None, size: int, device: torch.device) -> Strategy:
    """parallelism: one word, or a mapping with `strategy` and its options; None means ddp. A trial of one slot trains
    without a strategy, whatever it names."""
    written = {"strategy": parallelism} if isinstance(parallelism, str) else dict(parallelism or {})
    options = {key: value for key, value in written.items() if value is not None and key not in _PIPELINE_KEYS}
    name = options.pop("strategy", "ddp")
    if name not in ("auto", "none", "ddp"):
        raise invalid(
            "parallelism.unknown",
            f"parallelism: {name!r} is not offered by this version of Gangline; use ddp, none or auto",
        )
    unknown = set(options) - set(_DDP_OPTIONS)
    if unknown:
        raise invalid("parallelism.option", f"parallelism.{min(unknown)}: ddp knows {', '.join(_DDP_OPTIONS)}")
    if size == 1:
        return SingleStrategy()
    if name == "none":
        raise invalid(
            "parallelism.none", f"parallelism: none trains on one slot, but this trial has {size}; use ddp, or one slot"
        )
    return DdpStrategy(device, options)
