"""Measures the slots of a trial for `parallelism: auto`: memory, speed, and the links between them.

All ranks call measure_place in step, once the process group is open. It takes a fraction of a second on usual links.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from gangline.core import DistributedContext
from gangline.pytorch.fusion.agreement import agree_on_longest
from gangline.pytorch.fusion.probe import measure_link_steadily
from gangline.pytorch.group import device_identity
from gangline.pytorch.host_memory import cgroup_limits
from gangline.pytorch.plan.decision import groups_by_machine, rate_of, round_rate, slot_share
from gangline.pytorch.plan.live_bytes import ByteLedger, LiveBytes
from gangline.pytorch.plan.step_time import SPARE_BYTES, Place

# Beyond the sizes for which an allocator keeps memory that is free.
_COPIED_BYTES = 40 << 20
# Side of the product before a message.
_SHORT_SIDE = 256
# Rounds of messages, and the messages of each. A core that waits for the end of another thread's turn delays some of
# these by milliseconds, so a step has the mean of them; a round as a whole is disturbed by other work on the machine.
_ROUNDS, _MESSAGES = 2, 24
# Of each message: as few as cost no time, but not so few that they go another way than those of a model.
_MESSAGE_BYTES = 4 << 10
# Features and layers of a model of small tensors.
_SMALL = 8
_SIDE = {"cpu": 512, "cuda": 4096}
# Records, channels and points of a side of what is convolved.
_CONVOLVED = {"cpu": (8, 64, 16), "cuda": (32, 256, 32)}
# Repetitions of a measured computation, and the seconds that they last at least: other work on the machine interrupts
# some of them.
_REPETITIONS, _LEAST_SECONDS = 3, 0.05


def measure_place(distributed: DistributedContext, device: torch.device, dtype: torch.dtype) -> Place:
    """Returns the slots, the same on all ranks. dtype: in which the trial multiplies matrices."""
    # Read before the measurements, whose tensors torch keeps.
    taken = taken_bytes(device)
    own = [
        distributed.cross_rank,
        distributed.local_size,
        memory_limits(device),
        _measure_flops(device, dtype),
        _measure_kernel(device),
        *_measure_copies(device),
        _measure_convolution(device, dtype),
        taken,
    ]
    facts = distributed.allgather(own)
    machines = [fact[0] for fact in facts]
    place = Place(
        distributed.size,
        min(fact[1] for fact in facts),
        slot_share([(fact[0], fact[2]) for fact in facts]),
        round_rate(min(fact[3] for fact in facts)),
        reduces_whole=device.type != "cuda",
        kernel_seconds=round_rate(max(fact[4] for fact in facts)),
        memory_rate=round_rate(min(fact[5] for fact in facts)),
        copy_rate=round_rate(min(fact[6] for fact in facts)),
        convolution_flops=round_rate(min(fact[7] for fact in facts)),
        taken_bytes=max(fact[8] for fact in facts),
    )
    if distributed.size == 1:
        return place
    inside, across, message = _measure_links(distributed, device, machines, place)
    return replace(
        place,
        inside_rate=inside,
        across_rate=across,
        message_seconds=message,
        broadcast_rate=_measure_broadcast(distributed, device),
    )


def memory_limits(device: torch.device) -> dict[str, int]:
    """Returns the limits of this rank's memory in bytes, by the name of what is limited: its GPU, without what others
    use of it, or on a CPU the machine, the process, and the control groups (version 2) in which it runs."""
    if device.type == "cuda":
        # Each process may number its own device 0, as with MIG devices.
        name = device_identity(os.environ, str(torch.cuda.get_device_properties(device).uuid))
        return {name: torch.cuda.mem_get_info(device)[1] - taken_bytes(device)}
    limits = {"machine": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}
    data, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if data != resource.RLIM_INFINITY:
        limits[f"process {os.getpid()}"] = data
    return limits | cgroup_limits()


def taken_bytes(device: torch.device) -> int:
    """Returns the bytes of this rank's GPU that other processes use; 0 for a CPU. The bytes that a plan leaves free are
    for the context of this process, which the driver counts as used."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return max(0, total - free - torch.cuda.memory_reserved(device) - int(SPARE_BYTES))


def _measure_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Returns the operations a second of this slot, while all slots compute."""
    side = _SIDE.get(device.type, 512)
    matrix = _random(device, dtype, side, side)
    return 2.0 * side**3 / _fastest_seconds(device, lambda: torch.mm(matrix, matrix))


def _measure_convolution(device: torch.device, dtype: torch.dtype) -> float:
    """Returns the operations a second of this slot in a usual convolution, for which a library of its own may be more
    or less fast than that for matrix products."""
    records, channels, side = _CONVOLVED.get(device.type, _CONVOLVED["cpu"])
    images = _random(device, dtype, records, channels, side, side)
    kernel = _random(device, dtype, channels, channels, 3, 3)
    seconds = _fastest_seconds(device, lambda: functional.conv2d(images, kernel, padding=1))
    return 2.0 * images.numel() * kernel[0].numel() / seconds


def _random(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Returns numbers as those of a model. A GPU multiplies equal numbers faster, because they take less power."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(shape, device=device, generator=generator).to(dtype)


def _measure_kernel(device: torch.device) -> float:
    """Returns the seconds for one operation of a forward or backward pass, in a model whose tensors are so small that
    nothing else takes time."""
    layers = [(nn.LayerNorm(_SMALL), nn.Linear(_SMALL, _SMALL), nn.ReLU()) for _ in range(_SMALL)]
    model = nn.Sequential(*(part for layer in layers for part in layer)).to(device)
    records = torch.ones(1, _SMALL, device=device)

    def train() -> None:
        model(records).sum().backward()

    with LiveBytes(ByteLedger(device.type)) as counting:
        train()
    return _fastest_seconds(device, train) / counting.num_kernels


def _measure_copies(device: torch.device) -> tuple[float, float]:
    """Returns the bytes a second that are read and written, and those that are copied into new memory, as messages
    are."""
    message = torch.ones(_COPIED_BYTES // 4, device=device)
    known = message.clone()
    moved = 2 * _COPIED_BYTES / _fastest_seconds(device, lambda: known.copy_(message))
    return moved, _COPIED_BYTES / _fastest_seconds(device, message.clone)


def _fastest_seconds(device: torch.device, compute: Callable[[], Any]) -> float:
    """Returns the seconds of the fastest repetition. The first one does not count."""
    times: list[float] = []
    while len(times) <= _REPETITIONS or sum(times) < _LEAST_SECONDS:
        _wait_for(device)
        began = time.perf_counter()
        compute()
        _wait_for(device)
        times.append(time.perf_counter() - began)
    return max(1e-9, min(times[1:]))


def _measure_links(
    distributed: DistributedContext, device: torch.device, machines: list[int], place: Place
) -> tuple[float, float, float]:
    """Returns the bytes a second inside a machine and between machines, and the seconds of a message among all slots
    beside those for its bytes. Without several slots on a machine, or without several machines, the other rate stands
    for the one that no link has."""
    cost = measure_link_steadily(distributed, device)
    whole = rate_of(cost.bytes_per_second if cost else 0.0, distributed.size, place.inside_rate)
    message = round_rate(max(cost.alpha_seconds if cost else 0.0, _measure_message(distributed, device)))
    groups = groups_by_machine(machines)
    if len(groups) == 1 or max(map(len, groups)) == 1:
        return whole, whole, message
    # Every rank takes part in the making of every group.
    made = [dist.new_group(ranks) for ranks in groups]
    own = next(group for group, ranks in zip(made, groups, strict=True) if distributed.rank in ranks)
    inside = measure_link_steadily(distributed, device, partial(dist.all_reduce, group=own))
    dist.destroy_process_group(own)
    ranks = max(map(len, groups))
    return rate_of(inside.bytes_per_second if inside else 0.0, ranks, place.inside_rate), whole, message


def _measure_broadcast(distributed: DistributedContext, device: torch.device) -> float | None:
    """Returns the bytes a second of a tensor that one slot sends to all others; None where times give no rate."""
    cost = measure_link_steadily(distributed, device, partial(dist.broadcast, src=0))
    return round_rate(cost.bytes_per_second) if cost and math.isfinite(cost.bytes_per_second) else None


def _measure_message(distributed: DistributedContext, device: torch.device) -> float:
    """Returns the seconds of an exchange of few bytes among slots that compute meanwhile. On CPUs the threads that
    exchange wait for a core then."""
    matrix = torch.ones(_SHORT_SIDE, _SHORT_SIDE, device=device)
    numbers = torch.ones(_MESSAGE_BYTES // 4, device=device)
    least = _fastest_seconds(device, lambda: torch.mm(matrix, matrix))
    own = []
    for _ in range(_ROUNDS * _MESSAGES):
        _wait_for(device)
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        dist.all_reduce(numbers)
        _wait_for(device)
        own.append(max(1e-9, time.perf_counter() - began - least))
    longest = agree_on_longest(distributed, own)
    rounds = [longest[first : first + _MESSAGES] for first in range(0, len(longest), _MESSAGES)]
    return min(map(statistics.fmean, rounds))


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
