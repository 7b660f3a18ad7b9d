"""PURE: the GPU of a local rank, from CUDA_VISIBLE_DEVICES and the number of devices that CUDA shows.

A process sees all GPUs that the variable names, but only the first of several MIG devices. So the trial runner gives
each rank its own MIG device, and a process that got several of them reduces the list to its own before CUDA starts.
Used by the trial runner, gangline.core.load and gangline.pytorch.group.
"""

from __future__ import annotations

from collections.abc import Mapping

from gangline.errors import invalid

VISIBLE_KEY = "CUDA_VISIBLE_DEVICES"
ORDER_KEY = "CUDA_DEVICE_ORDER"
# The order in which NVML numbers GPUs. CUDA's own default puts the fastest one first.
PCI_ORDER = "PCI_BUS_ID"
_MIG = "MIG-"


def local_rank_of(environment: Mapping[str, str]) -> int:
    return int(environment.get("LOCAL_RANK", "0"))


def visible_names(environment: Mapping[str, str]) -> list[str] | None:
    """Returns the entries of CUDA_VISIBLE_DEVICES, indices or UUIDs; None where the variable is not set."""
    if VISIBLE_KEY not in environment:
        return None
    return [name.strip() for name in environment[VISIBLE_KEY].split(",") if name.strip()]


def is_mig(name: str) -> bool:
    return name.startswith(_MIG)


def own_mig_device(environment: Mapping[str, str]) -> str:
    """Returns this local rank's MIG device where CUDA_VISIBLE_DEVICES names several devices and one for each rank;
    otherwise empty text."""
    names, local_rank = visible_names(environment) or [], local_rank_of(environment)
    if len(names) < 2 or not any(map(is_mig, names)):
        return ""
    return names[local_rank] if local_rank < len(names) else ""


def device_name(environment: Mapping[str, str]) -> str:
    """Returns this local rank's entry in CUDA_VISIBLE_DEVICES, an index or a UUID; without that variable its own
    number. Empty where it has none."""
    names, local_rank = visible_names(environment), local_rank_of(environment)
    if names is None:
        return str(local_rank)
    # A launcher may give each rank a list of its own, with one device.
    place = 0 if len(names) == 1 else local_rank
    return names[place] if place < len(names) else ""


def device_index(environment: Mapping[str, str], num_devices: int) -> int:
    """Returns CUDA's number for the device of this local rank. num_devices: those that CUDA shows, at least 1.

    Raises GanglineError `pytorch.devices` where there are fewer devices than local ranks. A single visible device may
    be the own one of each rank; gangline.pytorch.group compares those of all ranks.
    """
    names, local_rank = visible_names(environment), local_rank_of(environment)
    if names is not None and len(names) == 1 and num_devices == 1:
        return 0
    if local_rank < num_devices:
        return local_rank
    setting = "is not set" if names is None else f"is {environment[VISIBLE_KEY]!r}"
    raise invalid(
        "pytorch.devices",
        f"local rank {local_rank} has no GPU: CUDA shows {num_devices} device(s) to this process, and {VISIBLE_KEY} "
        f"{setting}; start at most {num_devices} rank(s) on this machine, or give each rank a device of its own",
    )
