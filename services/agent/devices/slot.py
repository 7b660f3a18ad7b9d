"""The slots that this agent offers: GPUs that NVML lists and CUDA_VISIBLE_DEVICES leaves visible, or artificial CPU
slots.

Owns the slots' stable ids. It reads NVML through nvml.py and starts nothing. The agent calls `load_slots` once, in a
thread, because NVML may block. From then on monitor.py owns the slots' health.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gangline.domain.resource import Slot
from gangline.domain.state import SlotKind
from gangline.domain.visible_device import VISIBLE_KEY
from gangline.errors import GanglineError, unavailable
from services.agent.devices import nvml
from services.agent.devices.visible import Device, select_visible

REMEDY = "start the agent with --slots N for N artificial CPU slots"


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots and their devices. devices[i] is the device of slots[i]; artificial slots have no devices."""

    slots: tuple[Slot, ...]
    devices: tuple[Device, ...] = ()


def load_slots(agent_id: str, setting: str, environment: Mapping[str, str] = os.environ) -> Slots:
    """Returns the slots. setting: "auto" for GPUs, or the number of artificial slots.

    Raises GanglineError `agent.no_gpus` if "auto" finds none. With a guessed number of CPU slots, a machine with a
    broken driver would join as a CPU machine. Trainings there would be slow without any warning.
    """
    if setting != "auto":
        return Slots(tuple(Slot(id=f"{agent_id}/{index}") for index in range(int(setting))))
    try:
        listed = nvml.list_devices()
    except nvml.NvmlUnavailableError as error:
        raise _no_gpus(f"NVML is not usable here ({error})") from error
    if not listed:
        raise _no_gpus("NVML lists no GPU")
    devices = select_visible(listed, environment.get(VISIBLE_KEY))
    if not devices:
        raise _no_gpus(f"{VISIBLE_KEY}={environment.get(VISIBLE_KEY)!r} hides all {len(listed)} devices")
    return Slots(tuple(_to_slot(agent_id, device) for device in devices), devices)


def with_problems(before: Slots, problems: Sequence[str]) -> Slots:
    """Returns the same slots with their current problems; an empty problem means healthy."""
    pairs = zip(before.slots, problems, strict=True)
    return replace(before, slots=tuple(replace(slot, is_healthy=not why, problem=why) for slot, why in pairs))


def _to_slot(agent_id: str, device: Device) -> Slot:
    return Slot(
        id=f"{agent_id}/{device.uuid or f'gpu-{device.index}'}",
        kind=SlotKind.GPU,
        uuid=device.uuid,
        model=device.model,
        memory_bytes=device.memory_bytes,
        is_healthy=not device.problem,
        problem=device.problem,
    )


def _no_gpus(why: str) -> GanglineError:
    return unavailable("agent.no_gpus", f"no GPU to offer: {why}; {REMEDY}")
