"""What the NVIDIA driver says about this machine's GPUs, through nvidia-ml-py.

Owns every call into NVML: a query that fails makes that GPU an unhealthy device with its problem, never an exception.
It decides nothing about visibility or slots (visible.py, slot.py). NVML calls may block for seconds on a broken GPU,
so callers on the event loop run these functions in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pynvml

from services.agent.visible import Device

MIG_ENABLED = 1


class NvmlUnavailableError(Exception):
    """There is no NVML here, or it does not come up; the text says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """utilization_ratio: 0 to 1, None where the GPU does not tell (MIG)."""

    uuid: str
    utilization_ratio: float | None
    memory_used_bytes: int
    memory_total_bytes: int


@contextmanager
def opened() -> Iterator[None]:
    """NVML is initialised inside. Raises NvmlUnavailableError."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(str(error)) from error
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def list_devices() -> tuple[Device, ...]:
    """All GPUs in PCI order, a MIG-enabled one as its MIG devices. Raises NvmlUnavailableError."""
    with opened():
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise NvmlUnavailableError(f"it does not tell how many GPUs there are: {error}") from error
        return tuple(device for index in range(count) for device in _read_gpu(index))


def sample_devices() -> tuple[Sample, ...]:
    """Utilisation and memory of every GPU and MIG device that answers. Raises NvmlUnavailableError."""
    with opened():
        handles = [handle for index in range(pynvml.nvmlDeviceGetCount()) for handle in _handles(index)]
        return tuple(sample for handle in handles if (sample := _sample(handle)) is not None)


def _read_gpu(index: int) -> tuple[Device, ...]:
    # What is known by the time of a failure stays known: a lost GPU mostly still tells its UUID.
    uuid = model = ""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        model = pynvml.nvmlDeviceGetName(handle)
        if _is_mig_enabled(handle):
            return _read_mig_devices(index, uuid, model, handle)
        return (Device(index, uuid, model, int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)),)
    except pynvml.NVMLError as error:
        return (Device(index, uuid, model, problem=f"NVML says of GPU {index}: {error}"),)


def _read_mig_devices(index: int, uuid: str, model: str, handle: Any) -> tuple[Device, ...]:
    devices = tuple(_read_mig_device(index, uuid, mig) for mig in _mig_handles(handle))
    if devices:
        return devices
    return (
        Device(index, uuid, model, problem=f"GPU {index} has MIG enabled and no MIG device; create one or disable MIG"),
    )


def _read_mig_device(index: int, gpu_uuid: str, handle: Any) -> Device:
    uuid = model = path = ""
    try:
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        instance = pynvml.nvmlDeviceGetGpuInstanceId(handle)
        path = f"{gpu_uuid}/{instance}/{pynvml.nvmlDeviceGetComputeInstanceId(handle)}"
        model = pynvml.nvmlDeviceGetName(handle)
        return Device(index, uuid, model, int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), mig_path=path)
    except pynvml.NVMLError as error:
        problem = f"NVML says of a MIG device of GPU {index}: {error}"
        return Device(index, uuid, model, problem=problem, mig_path=path)


def _handles(index: int) -> tuple[Any, ...]:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return _mig_handles(handle) if _is_mig_enabled(handle) else (handle,)
    except pynvml.NVMLError:
        return ()


def _mig_handles(handle: Any) -> tuple[Any, ...]:
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except pynvml.NVMLError_NotFound:
            continue  # MIG places may be empty, also in the middle
    return tuple(found)


def _is_mig_enabled(handle: Any) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return False  # GPUs and drivers without MIG
    return bool(current == MIG_ENABLED)


def _sample(handle: Any) -> Sample | None:
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return Sample(pynvml.nvmlDeviceGetUUID(handle), _utilization(handle), int(memory.used), int(memory.total))
    except pynvml.NVMLError:
        return None


def _utilization(handle: Any) -> float | None:
    try:
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except pynvml.NVMLError:
        return None
