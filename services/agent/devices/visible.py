"""PURE: which of a machine's devices this agent may hand out, by the meaning of CUDA_VISIBLE_DEVICES for NVML's list.

A MIG-enabled GPU is replaced by its MIG devices. An entry that names no device becomes an unhealthy device with that
problem; CUDA would silently hide it and all entries after it. slot.py calls this with what nvml.py read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or a MIG device as NVML reports it."""

    index: int  # index of the GPU in PCI order, which changes when another GPU is lost
    uuid: str = ""  # empty if NVML did not report it
    model: str = ""
    memory_bytes: int = 0
    problem: str = ""  # why the device is not healthy; empty if it is
    # "<gpu uuid>/<gpu instance>/<compute instance>" of a MIG device, from which old drivers make its name
    mig_path: str = ""
    bus_id: str = ""  # place on the PCI bus, which stays when another GPU is lost; empty if NVML did not report it

    @property
    def is_known(self) -> bool:
        """Whether NVML can be asked for the device again. A device without a name is out of use until the agent
        restarts."""
        return bool(self.bus_id and self.uuid)


def select_visible(devices: Sequence[Device], setting: str | None) -> tuple[Device, ...]:
    """Returns the devices that CUDA_VISIBLE_DEVICES leaves visible.

    setting: the variable's value; None if it is unset, and then all devices are visible.
    As in CUDA, entries keep their order, and a negative index or a word that names nothing ends the list. A UUID may be
    shortened as long as it is unique. A device that is named twice counts once.
    """
    if setting is None:
        return tuple(devices)
    chosen: dict[tuple[int, str], Device] = {}
    for entry in (part.strip() for part in setting.split(",")):
        if not _can_name(entry):
            break
        for device in _find(devices, entry):
            chosen.setdefault((device.index, device.uuid or device.problem), device)
    return tuple(chosen.values())


def find_problem(device: Device, reported: Sequence[Device]) -> str:
    """Returns the problem of a device that the agent started with; empty if there is none. Slots are neither added nor
    removed while the agent runs.

    reported: the devices that its GPU reports now.
    """
    same = next((each for each in reported if each.uuid == device.uuid), None)
    if same is not None:
        return same.problem
    of_gpu = next((each.problem for each in reported if each.problem), "")
    return of_gpu or "NVML no longer lists it; restart the agent if that was intended"


def _can_name(entry: str) -> bool:
    return entry.isdigit() or entry.startswith(("GPU-", "MIG-"))


def _find(devices: Sequence[Device], entry: str) -> tuple[Device, ...]:
    if entry.isdigit():
        matches = [device for device in devices if device.index == int(entry)]
        return tuple(matches) or (_unknown(int(entry), "", entry),)
    matches = [device for device in devices if _is_named(device, entry)]
    # A GPU's name may mean all of its MIG devices, so only names of several GPUs are ambiguous.
    if len({str(device.index) if entry.startswith("GPU-") else device.uuid for device in matches}) > 1:
        return (_unknown(-1, entry, entry, "more than one device"),)
    return tuple(matches) or (_unknown(-1, entry, entry),)


def _is_named(device: Device, entry: str) -> bool:
    if device.mig_path and entry.startswith("GPU-"):
        return device.mig_path.startswith(entry)
    if device.mig_path and entry.startswith("MIG-GPU-"):
        return f"MIG-{device.mig_path}" == entry
    return bool(device.uuid) and device.uuid.startswith(entry)


def _unknown(index: int, uuid: str, entry: str, what: str = "no device that NVML lists") -> Device:
    return Device(index, uuid=uuid, problem=f"CUDA_VISIBLE_DEVICES names {entry!r}, which is {what}")
