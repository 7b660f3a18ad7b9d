"""Measures the link between the ranks with a few exchanges over the trial's own process group.

All ranks call it in step. The exchanged tensors are on the trial's own device, in its own group. Times are the longest
of all ranks, so every rank fits the same line.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gangline.core import DistributedContext
from gangline.pytorch.fusion.agreement import agree_on_longest
from gangline.pytorch.fusion.cost import LinkCost, LinkSample, fit_link

_KIB = 1024
_SIZES = [4 * _KIB, 256 * _KIB, 1024 * _KIB, 4096 * _KIB, 16384 * _KIB, 65536 * _KIB]
_QUICK_SIZES = (4 * _KIB, 1024 * _KIB)
_REPETITIONS = 3
_STEADY_SIZE, _STEADY_REPETITIONS = 8192 * _KIB, 8
# Links that exchange 1 MiB in less time are measured with 8 MiB.
_FAST_SECONDS = 0.005


def measure_link(
    distributed: DistributedContext, device: torch.device, budget_seconds: float, most_bytes: int
) -> LinkCost | None:
    """Measures rising sizes while they fit into the model and, approximately, into the budget; at least two are tried.
    Returns None where the times give no line.
    """
    samples: list[LinkSample] = []
    spent = 0.0
    for size in [size for size in _SIZES if size <= max(most_bytes, _SIZES[1])]:
        line = fit_link(samples)
        expected = line.seconds(size) if line else 0.0
        if spent + expected > budget_seconds:
            break
        repetitions = _REPETITIONS if expected == 0 else int((budget_seconds - spent) / expected)
        times = _time_exchanges(distributed, device, size, max(1, min(_REPETITIONS, repetitions)))
        spent += sum(times)
        samples.append(LinkSample(size, statistics.median_low(times)))
    return fit_link(samples)


def measure_link_quickly(distributed: DistributedContext, device: torch.device) -> LinkCost | None:
    """Measures two sizes, only to distinguish one link from another. It costs a few times the exchange of 1 MiB."""
    return fit_link([LinkSample(size, min(_time_exchanges(distributed, device, size, 2))) for size in _QUICK_SIZES])


def measure_link_steadily(
    distributed: DistributedContext,
    device: torch.device,
    exchange: Callable[[torch.Tensor], Any] = dist.all_reduce,
) -> LinkCost | None:
    """Measures two sizes, of each the fastest of several exchanges, so that other work on the machines matters little.
    The first one opens connections. The larger size is that of messages of gradients where the link is fast enough.
    exchange: of a tensor, perhaps in one of several groups at once; the times are still the longest of all ranks."""
    samples = [
        LinkSample(size, min(_time_exchanges(distributed, device, size, repetitions, exchange)))
        for size, repetitions in ((_QUICK_SIZES[0], _STEADY_REPETITIONS), (_QUICK_SIZES[1], _REPETITIONS))
    ]
    if samples[-1].seconds < _FAST_SECONDS:
        times = _time_exchanges(distributed, device, _STEADY_SIZE, _STEADY_REPETITIONS, exchange)
        samples[-1] = LinkSample(_STEADY_SIZE, min(times))
    return fit_link(samples)


def _time_exchanges(
    distributed: DistributedContext,
    device: torch.device,
    size: int,
    repetitions: int,
    exchange: Callable[[torch.Tensor], Any] = dist.all_reduce,
) -> list[float]:
    tensor = torch.zeros(size // 4, dtype=torch.float32, device=device)
    own = [_time_exchange(tensor, exchange) for _ in range(repetitions)]
    return agree_on_longest(distributed, own)


def _time_exchange(tensor: torch.Tensor, exchange: Callable[[torch.Tensor], Any]) -> float:
    _wait_for(tensor.device)
    began = time.perf_counter()
    exchange(tensor)
    _wait_for(tensor.device)
    return time.perf_counter() - began


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
