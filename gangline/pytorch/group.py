"""Makes this rank's device and process group before the trial.

Owns the choice of the backend: NCCL on GPUs, gloo on CPUs. Refuses ranks that share a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # public, but not in __all__

from gangline.domain.visible_device import VISIBLE_KEY, device_index, is_mig, own_mig_device, visible_names
from gangline.errors import invalid

_DEVICE_KEY = "gangline/device/{}"


def choose_device() -> torch.device:
    """Returns the GPU of this local rank, else the CPU. Raises GanglineError `pytorch.devices` where there are fewer
    GPUs than local ranks."""
    own = own_mig_device(os.environ)
    if own and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        os.environ[VISIBLE_KEY] = own
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", device_index(os.environ, torch.cuda.device_count()))
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
    timeout: of its collectives; None for torch's own. Raises GanglineError `pytorch.shared_device` where another rank
    has the same GPU, which NCCL would report as an internal error, or not at all."""
    if num_ranks() < 2 or dist.is_initialized():
        return
    is_gpu = device.type == "cuda"
    # Beside NCCL, gloo carries all data that is no training data: metrics, objects, the agreement whether to stop.
    dist.init_process_group("cpu:gloo,cuda:nccl" if is_gpu else "gloo", timeout=timeout)
    if is_gpu:
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        claim_device(dist.distributed_c10d._get_default_store(), device_identity(os.environ, uuid), own_rank())


def device_identity(environment: Mapping[str, str], uuid: str) -> str:
    """Returns a name that no two devices share. uuid: as CUDA reports it, which may be that of the whole GPU for each
    of its MIG devices."""
    names = visible_names(environment) or []
    return names[0] if len(names) == 1 and is_mig(names[0]) else f"GPU-{uuid}"


def claim_device(store: Store, identity: str, rank: int) -> None:
    """Records in the ranks' store that a device is this rank's. The first rank gets it; each other one raises
    GanglineError `pytorch.shared_device`."""
    holder = store.compare_set(_DEVICE_KEY.format(identity), "", str(rank)).decode()
    if holder != str(rank):
        raise invalid(
            "pytorch.shared_device",
            f"rank {rank} and rank {holder} have the same GPU, {identity}; start one rank for each GPU, or give each "
            f"rank a device of its own in {VISIBLE_KEY}",
        )
