"""Receives XIDs as they happen: one thread that waits for the events of a set of GPUs.

Owns the event calls of NVML and the thread, which holds NVML open as long as it runs. A GPU cannot be reset while any
process holds NVML open, so monitor.py stops the watch when a GPU needs a reset. gpu_health.py decides what an XID
means. GPUs and drivers without events are not watched; only checks find their faults.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml
import structlog

from services.agent.devices import nvml
from services.agent.devices.visible import Device
from services.agent.devices.xid import DOUBLE_BIT_ERROR

# Longest wait for an event in one call, after which the thread sees an order to stop.
WAIT_MILLISECONDS = 500
# Limit for the thread to release NVML. A thread that is blocked in the driver is left to itself.
STOP_SECONDS = 2.0
# NVML's value for an event that concerns no MIG instance.
NO_INSTANCE = 0xFFFFFFFF
# XIDs, and double-bit errors as events of their own, for drivers that raise no XID for them.
WANTED = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One XID of one GPU."""

    bus_id: str
    code: int
    # "<gpu instance>/" or "<gpu instance>/<compute instance>" of a MIG device; empty for the whole GPU
    instance: str = ""

    def is_about(self, device: Device) -> bool:
        _, _, instance = device.mig_path.partition("/")
        return device.bus_id == self.bus_id and (not instance or instance.startswith(self.instance))


class XidWatch:
    """Starts and stops the thread, any number of times. All methods run on the event loop, and so does on_event."""

    def __init__(self, on_event: Callable[[XidEvent], None]) -> None:
        self._on_event = on_event
        self._bus_ids: frozenset[str] = frozenset()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, bus_ids: Collection[str]) -> None:
        """Watches these GPUs and no others from now on. Does nothing if it watches them already.

        A thread that ended by itself is started again. It ends if a GPU is lost, or if NVML cannot be initialized.
        """
        wanted = frozenset(bus_ids)
        if self.is_running and wanted == self._bus_ids:
            return
        self.tell_to_stop()
        self._bus_ids, self._stopping, self._thread = wanted, threading.Event(), None
        if not wanted:
            return
        arguments = (wanted, self._stopping, asyncio.get_running_loop())
        self._thread = threading.Thread(target=self._run, args=arguments, daemon=True)
        self._thread.start()

    def tell_to_stop(self) -> None:
        """Orders the thread to end, and returns at once. A thread that is blocked in the driver is left to itself."""
        self._stopping.set()

    async def stop(self) -> None:
        """Returns once the thread has released NVML, or after STOP_SECONDS."""
        self.tell_to_stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    while thread.is_alive():  # noqa: ASYNC110 - a thread has no event of the loop
                        await asyncio.sleep(0.01)

    def _run(self, bus_ids: frozenset[str], stopping: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
        def tell(event: XidEvent) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._on_event, event)

        try:
            with nvml.opened():
                _watch(bus_ids, stopping, tell)
        except (pynvml.NVMLError, nvml.NvmlUnavailableError) as error:
            log.warning("the watch for XIDs ended; the next check starts it again", error=str(error))
        else:
            # If no GPU has events, the thread waits here: ended, it would only be started again.
            stopping.wait()


def _watch(bus_ids: Collection[str], stopping: threading.Event, tell: Callable[[XidEvent], None]) -> None:
    """Reports events until it is stopped. Raises NVMLError if a GPU is lost, or on any other error."""
    event_set = pynvml.nvmlEventSetCreate()
    try:
        bus_id_by_address = _register(bus_ids, event_set)
        while bus_id_by_address and not stopping.is_set():
            try:
                event = pynvml.nvmlEventSetWait_v2(event_set, WAIT_MILLISECONDS)
            except pynvml.NVMLError_Timeout:
                continue
            bus_id = bus_id_by_address.get(_address(event.device)) or pynvml.nvmlDeviceGetPciInfo(event.device).busId
            tell(_read(bus_id, event))
    finally:
        pynvml.nvmlEventSetFree(event_set)


def _register(bus_ids: Collection[str], event_set: Any) -> dict[int, str]:
    """Adds the GPUs to the event set. Returns their bus ids by the address of the handle, because a lost GPU may not
    report its bus id."""
    bus_id_by_address = {}
    for bus_id in bus_ids:
        try:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)
            wanted = WANTED & pynvml.nvmlDeviceGetSupportedEventTypes(handle)
            if wanted:
                pynvml.nvmlDeviceRegisterEvents(handle, wanted, event_set)
                bus_id_by_address[_address(handle)] = bus_id
        except pynvml.NVMLError as error:
            log.info("a GPU has no events; checks alone watch it", gpu=bus_id, error=str(error))
    return bus_id_by_address


def _read(bus_id: str, event: Any) -> XidEvent:
    is_xid = event.eventType == pynvml.nvmlEventTypeXidCriticalError
    numbers = (event.gpuInstanceId, event.computeInstanceId)
    gpu, compute = ("" if number == NO_INSTANCE else str(number) for number in numbers)
    return XidEvent(bus_id, int(event.eventData) if is_xid else DOUBLE_BIT_ERROR, f"{gpu}/{compute}" if gpu else "")


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
