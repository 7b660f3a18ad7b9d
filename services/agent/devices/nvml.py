"""Queries the NVIDIA driver about this machine's GPUs, through nvidia-ml-py.

Owns the queries. A query that fails makes that GPU a device with a problem, never an exception. xid_watch.py receives
the events. This module decides nothing about visibility, slots or health (visible.py, slot.py, gpu_health.py). NVML
calls may block for seconds on a broken GPU, or for ever, so callers on the event loop run these functions in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pynvml

from services.agent.devices.gpu_health import GpuReading
from services.agent.devices.visible import Device
from services.agent.devices.xid import REBOOT, RESET

MIG_ENABLED = 1
# Numbers whose names the older releases of nvidia-ml-py lack. The field has the action that the driver recommends for a
# GPU. With the values in RECOVERIES the GPU is unusable until the action is taken.
RECOVERY_ACTION_FIELD = 230
RECOVERIES = {1: RESET, 2: REBOOT, 6: RESET, 7: REBOOT}

T = TypeVar("T")


class NvmlUnavailableError(Exception):
    """Raised if there is no NVML, or if it cannot be initialized; the text has the reason."""


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """The load of one device, each number None if the device does not report it."""

    uuid: str
    utilization_ratio: float | None  # 0 to 1; MIG devices have none
    memory_used_bytes: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one check of a GPU."""

    devices: tuple[Device, ...]  # the GPU itself, or its MIG devices, as in list_devices
    reading: GpuReading  # reading of the whole GPU
    samples: tuple[DeviceLoad, ...] = ()  # samples of the devices that answered


@contextmanager
def opened() -> Iterator[None]:
    """Keeps NVML initialized inside the block. Raises NvmlUnavailableError."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(str(error)) from error
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def list_devices() -> tuple[Device, ...]:
    """Returns all GPUs in PCI order, and the MIG devices in place of a MIG-enabled one. Raises NvmlUnavailableError."""
    with opened():
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise NvmlUnavailableError(f"it does not tell how many GPUs there are: {error}") from error
        return tuple(device for index in range(count) for device in _read_by_index(index))


def look_at_gpu(index: int, bus_id: str) -> Look:
    """Checks a GPU that list_devices has named. Raises NvmlUnavailableError."""
    with opened():
        devices = _read_gpu(index, lambda: pynvml.nvmlDeviceGetHandleByPciBusId(bus_id))
        try:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)
            samples = tuple(sample for each in _handles(handle) if (sample := _sample(each)) is not None)
            return Look(devices, _read_health(handle), samples)
        except pynvml.NVMLError as error:
            return Look(devices, GpuReading(_word(f"GPU {index}", error)))


def _read_by_index(index: int) -> tuple[Device, ...]:
    return _read_gpu(index, lambda: pynvml.nvmlDeviceGetHandleByIndex(index))


def _read_gpu(index: int, find_handle: Callable[[], Any]) -> tuple[Device, ...]:
    # Values that are known at a failure are kept: a lost GPU usually still reports its UUID.
    bus_id = uuid = model = ""
    try:
        handle = find_handle()
        bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        model = pynvml.nvmlDeviceGetName(handle)
        if _is_mig_enabled(handle):
            return _read_mig_devices(Device(index, uuid, model, bus_id=bus_id), handle)
        return (Device(index, uuid, model, int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), bus_id=bus_id),)
    except pynvml.NVMLError as error:
        problem = _word(f"GPU {index}", error) if uuid else f"{_word(f'GPU {index}', error)}; then restart the agent"
        return (Device(index, uuid, model, problem=problem, bus_id=bus_id),)


def _read_mig_devices(gpu: Device, handle: Any) -> tuple[Device, ...]:
    devices = tuple(_read_mig_device(gpu, mig) for mig in _mig_handles(handle))
    if devices:
        return devices
    return (replace(gpu, problem=f"GPU {gpu.index} has MIG enabled and no MIG device; create one or disable MIG"),)


def _read_mig_device(gpu: Device, handle: Any) -> Device:
    device = Device(gpu.index, bus_id=gpu.bus_id)
    try:
        device = replace(device, uuid=pynvml.nvmlDeviceGetUUID(handle))
        instance = pynvml.nvmlDeviceGetGpuInstanceId(handle)
        path = f"{gpu.uuid}/{instance}/{pynvml.nvmlDeviceGetComputeInstanceId(handle)}"
        device = replace(device, mig_path=path, model=pynvml.nvmlDeviceGetName(handle))
        return replace(device, memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))
    except pynvml.NVMLError as error:
        return replace(device, problem=_word(f"a MIG device of GPU {gpu.index}", error))


def _word(what: str, error: pynvml.NVMLError) -> str:
    return f"NVML says of {what}: {error}; {RESET}"


def _read_health(handle: Any) -> GpuReading:
    """Reads the health of a whole GPU, whose memory its MIG devices share. Raises NVMLError for a GPU that does not
    answer."""
    rows = _if_supported(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    remedy = RECOVERIES.get(_if_supported(lambda: _read_recovery(handle)) or 0)
    return GpuReading(
        problem=f"the driver says: {remedy}" if remedy else "",
        num_uncorrected=_if_supported(lambda: _count_uncorrected(handle)),
        is_remap_pending=rows is not None and bool(rows[2]),
        has_remap_failed=rows is not None and bool(rows[3]),
    )


def _count_uncorrected(handle: Any) -> int:
    kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, since))


def _read_recovery(handle: Any) -> int | None:
    (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION_FIELD])
    return int(value.value.uiVal) if value.nvmlReturn == pynvml.NVML_SUCCESS else None


def _if_supported(query: Callable[[], T | None]) -> T | None:
    """Returns None if this GPU, driver or mode does not support the query, which says nothing about its health."""
    try:
        return query()
    except (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired):
        raise
    except pynvml.NVMLError:
        return None


def _handles(handle: Any) -> tuple[Any, ...]:
    return _mig_handles(handle) if _is_mig_enabled(handle) else (handle,)


def _mig_handles(handle: Any) -> tuple[Any, ...]:
    handles = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            handles.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except pynvml.NVMLError_NotFound:
            continue  # positions of MIG devices may be empty, also in the middle
    return tuple(handles)


def _is_mig_enabled(handle: Any) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return False  # GPUs and drivers without MIG
    return bool(current == MIG_ENABLED)


def _sample(handle: Any) -> DeviceLoad | None:
    """Returns the load of a device; None for one without a name."""
    try:
        uuid = pynvml.nvmlDeviceGetUUID(handle)
    except pynvml.NVMLError:
        return None
    memory = _number(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    percent = _number(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    return DeviceLoad(
        uuid,
        None if percent is None else float(percent) / 100,
        None if memory is None else int(memory.used),
        None if memory is None else int(memory.total),
    )


def _number(query: Callable[[], Any]) -> Any:
    """Returns None for a number that the device does not report. Its health is read elsewhere."""
    with suppress(pynvml.NVMLError):
        return query()
    return None
