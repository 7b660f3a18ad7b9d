"""Measures the slots of a trial for `parallelism: auto`: memory, speed, and the links between them.

All ranks call measure_place in step, once the process group is open. It takes a fraction of a second on usual links.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from gangline.core import DistributedContext
from gangline.pytorch.fusion.probe import measure_link_quickly
from gangline.pytorch.plan.decision import groups_by_machine, rate_of, round_rate, slot_share
from gangline.pytorch.plan.rule import Place

_SIDE = {"cpu": 512, "cuda": 4096}
_REPETITIONS = 3
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def measure_place(distributed: DistributedContext, device: torch.device, dtype: torch.dtype) -> Place:
    """Returns the slots, the same on all ranks. dtype: in which the trial multiplies matrices."""
    own = [distributed.cross_rank, distributed.local_size, memory_limits(device), _measure_flops(device, dtype)]
    facts = distributed.allgather(own)
    machines = [fact[0] for fact in facts]
    place = Place(
        distributed.size,
        min(fact[1] for fact in facts),
        slot_share([(fact[0], fact[2]) for fact in facts]),
        round_rate(min(fact[3] for fact in facts)),
        reduces_whole=device.type != "cuda",
    )
    if distributed.size == 1:
        return place
    inside, across, message = _measure_links(distributed, device, machines, place)
    return replace(place, inside_rate=inside, across_rate=across, message_seconds=message)


def memory_limits(device: torch.device) -> dict[str, int]:
    """Returns the limits of this rank's memory in bytes, by the name of what is limited: its GPU, or on a CPU the
    machine, the process, and the control groups (version 2) in which it runs."""
    if device.type == "cuda":
        return {f"cuda:{device.index}": torch.cuda.get_device_properties(device).total_memory}
    limits = {"machine": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}
    data, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if data != resource.RLIM_INFINITY:
        limits[f"process {os.getpid()}"] = data
    return limits | cgroup_limits(Path("/proc/self/cgroup"), _CGROUP_ROOT)


def cgroup_limits(membership: Path, root: Path) -> dict[str, int]:
    """Returns the limits of a process's control group and the groups above it. membership: the process's file
    /proc/PID/cgroup. root: where the groups are mounted."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return {}
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None:
        return {}
    limits = {}
    for group in (root / own, *(root / own).parents):
        if not group.is_relative_to(root):
            break
        try:
            text = (group / "memory.max").read_text().strip()
        except OSError:
            # The root has no limit, and a group without the memory controller has none.
            continue
        if text.isdecimal():
            limits[str(group)] = int(text)
    return limits


def _measure_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Returns the operations a second of this slot, while all slots compute."""
    side = _SIDE.get(device.type, 512)
    matrix = torch.ones(side, side, device=device, dtype=dtype)
    times = []
    for _ in range(1 + _REPETITIONS):
        _wait_for(device)
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        _wait_for(device)
        times.append(time.perf_counter() - began)
    return 2.0 * side**3 / max(1e-9, min(times[1:]))


def _measure_links(
    distributed: DistributedContext, device: torch.device, machines: list[int], place: Place
) -> tuple[float, float, float]:
    """Returns the bytes a second inside a machine and between machines, and the seconds of a message among all slots
    beside those for its bytes. Without several slots on a machine, or without several machines, the other rate stands
    for the one that no link has."""
    cost = measure_link_quickly(distributed, device)
    whole = rate_of(cost.bytes_per_second if cost else 0.0, distributed.size, place.inside_rate)
    message = round_rate(cost.alpha_seconds) if cost and cost.alpha_seconds > 0 else place.message_seconds
    groups = groups_by_machine(machines)
    if len(groups) == 1 or max(map(len, groups)) == 1:
        return whole, whole, message
    # Every rank takes part in the making of every group.
    made = [dist.new_group(ranks) for ranks in groups]
    own = next(group for group, ranks in zip(made, groups, strict=True) if distributed.rank in ranks)
    inside = measure_link_quickly(distributed, device, own)
    dist.destroy_process_group(own)
    ranks = max(map(len, groups))
    return rate_of(inside.bytes_per_second if inside else 0.0, ranks, place.inside_rate), whole, message


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
