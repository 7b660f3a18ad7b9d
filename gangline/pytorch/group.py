"""Makes this rank's device and process group before the trial.

Owns the choice of the backend: NCCL on GPUs, gloo on CPUs.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def choose_device() -> torch.device:
    """Returns the GPU of this local rank, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def num_ranks() -> int:
    """Returns the number of ranks that the environment names, also before the process group is made."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_rank() -> int:
    """Returns this process's rank as the environment names it, also before the process group is made."""
    return int(os.environ.get("RANK", "0"))


def open_group(device: torch.device, timeout: timedelta | None = None) -> None:
    """Joins the default process group where the environment names more than one rank and no group has been made.
    timeout: of its collectives; None for torch's own."""
    if num_ranks() < 2 or dist.is_initialized():
        return
    # Beside NCCL, gloo carries all data that is no training data: metrics, objects, the agreement whether to stop.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=timeout)
