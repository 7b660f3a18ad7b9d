"""Owns the health of the slots: checks their GPUs regularly, receives XIDs, and reports which slots are out of use.

gpu_health.py decides what a finding means. This module obtains the findings, logs and counts them, and calls on_change
with slots whose problem changed. A driver that hangs costs one thread for each GPU and never blocks the agent. Runs as
one long-lived task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from services.agent.devices import health_file, nvml
from services.agent.devices.gpu_health import GpuHealth, GpuReading, Policy, after_reading, after_xid
from services.agent.devices.slot import Slots, with_problems
from services.agent.devices.visible import Device, find_problem
from services.agent.devices.xid import XidKind, classify
from services.agent.devices.xid_watch import XidEvent, XidWatch
from services.agent.machine import metrics
from services.agent.machine.daemon_call import start_call

# Limit for a check. NVML needs less time even for a GPU that is being reset.
NVML_SECONDS = 20.0
# Delay between a suspicious XID and the check that it causes. By then the related XIDs have arrived, and the GPU's
# counters have risen.
SETTLE_SECONDS = 2.0

log = structlog.get_logger(__name__)


class SlotMonitor:
    """Checks the devices of all slots. `slots` is the newest state at any time, from the start on.

    state: the folder in which it remembers which GPUs are out of use.
    on_change: called on the event loop with the new slots.
    """

    def __init__(
        self, slots: Slots, policy: Policy, period_seconds: float, state: Path, on_change: Callable[[Slots], None]
    ) -> None:
        self._policy = policy
        self._period_seconds = period_seconds
        self._path = state / health_file.NAME
        self._on_change = on_change
        remembered = health_file.load_healths(self._path) if slots.devices else {}
        self._healths = [_begin(device, remembered.get(device.uuid)) for device in slots.devices]
        self.slots = with_problems(slots, self._problems()) if slots.devices else slots
        # At most one check of each GPU runs at a time. One that hangs stays here and is awaited again, so a broken GPU
        # holds one thread only.
        self._looks: dict[str, asyncio.Future[nvml.Look]] = {}
        self._watch = XidWatch(self._on_xid)
        self._hurry = asyncio.Event()
        for kind in XidKind:
            metrics.gpu_xids.labels(kind=kind)

    async def run(self) -> None:
        """Checks until it is cancelled. Artificial slots are always healthy."""
        if not self.slots.devices:
            await asyncio.Event().wait()
        try:
            while True:
                self._watch.start({device.bus_id for device, health in self._pairs() if not health.problem})
                await self._pause()
                await self._check_once()
        finally:
            self._watch.tell_to_stop()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._period_seconds):
                await self._hurry.wait()
        if self._hurry.is_set():
            await asyncio.sleep(min(SETTLE_SECONDS, self._period_seconds))
        self._hurry.clear()

    def _on_xid(self, event: XidEvent) -> None:
        xid = classify(event.code)
        metrics.gpu_xids.labels(kind=xid.kind).inc()
        is_suspicious = xid.kind in (XidKind.HARDWARE, XidKind.UNKNOWN)
        note = log.warning if is_suspicious else log.debug
        note("XID", gpu=event.bus_id, instance=event.instance, xid=event.code, kind=xid.kind, meaning=xid.meaning)
        now = time.monotonic()
        self._set(
            [
                after_xid(health, event.code, now, self._policy) if event.is_about(device) else health
                for device, health in self._pairs()
            ]
        )
        if is_suspicious:
            self._hurry.set()

    async def _check_once(self) -> None:
        try:
            await self._check()
        except Exception:
            # This is the top of a long-lived task: the slots keep their health until a check succeeds.
            log.exception("a check of the GPUs failed")

    async def _check(self) -> None:
        if any(device.is_known and health.problem for device, health in self._pairs()):
            # While the watch holds NVML open, an operator cannot reset the GPU.
            await self._watch.stop()
        looks = await self._look()
        for look in looks.values():
            _report(look.samples)
        now = time.monotonic()
        self._set(
            [
                after_reading(health, _read(device, looks.get(device.bus_id)), now, self._policy)
                for device, health in self._pairs()
            ]
        )

    async def _look(self) -> Mapping[str, nvml.Look]:
        """Returns the results by the GPU's bus id, for the GPUs that answered in time. An NVML that cannot be
        initialized counts as an answer.

        A call that still hangs from the last check is awaited again, and not repeated.
        """
        for device in self.slots.devices:
            if device.is_known and device.bus_id not in self._looks:
                self._looks[device.bus_id] = start_call(partial(_look_at, device.index, device.bus_id))
        if self._looks:
            await asyncio.wait(self._looks.values(), timeout=NVML_SECONDS)
        done = {bus_id: look for bus_id, look in self._looks.items() if look.done()}
        self._looks = {bus_id: look for bus_id, look in self._looks.items() if bus_id not in done}
        return {bus_id: look.result() for bus_id, look in done.items()}

    def _set(self, healths: list[GpuHealth]) -> None:
        self._healths = healths
        slots = with_problems(self.slots, self._problems())
        if slots == self.slots:
            return
        # Problems that a device has had since the start are left out, because the next start detects them itself.
        health_by_uuid = {device.uuid: health for device, health in self._pairs() if not device.problem}
        health_file.save_healths(self._path, health_by_uuid)
        _log_changes(self.slots, slots)
        self.slots = slots
        self._on_change(slots)

    def _problems(self) -> list[str]:
        return [health.problem for health in self._healths]

    def _pairs(self) -> list[tuple[Device, GpuHealth]]:
        return list(zip(self.slots.devices, self._healths, strict=True))


def _begin(device: Device, remembered: GpuHealth | None) -> GpuHealth:
    if remembered is None or device.problem:
        return GpuHealth(problem=device.problem)
    return remembered


def _look_at(index: int, bus_id: str) -> nvml.Look:
    try:
        return nvml.look_at_gpu(index, bus_id)
    except nvml.NvmlUnavailableError as error:
        return nvml.Look((), GpuReading(f"NVML is not usable ({error}); look at the driver of this host"))


def _read(device: Device, look: nvml.Look | None) -> GpuReading:
    """Returns the reading of a device. look: None if its GPU did not answer in time."""
    if not device.is_known:
        return GpuReading(device.problem)
    if look is None:
        return GpuReading(f"NVML did not answer within {NVML_SECONDS:g} s; reboot the host if it goes on like this")
    problem = look.reading.problem or find_problem(device, look.devices)
    return replace(look.reading, problem=problem)


def _report(samples: tuple[nvml.DeviceLoad, ...]) -> None:
    for sample in samples:
        for gauge, value in (
            (metrics.gpu_utilization, sample.utilization_ratio),
            (metrics.gpu_memory_used, sample.memory_used_bytes),
            (metrics.gpu_memory_total, sample.memory_total_bytes),
        ):
            if value is not None:
                gauge.labels(uuid=sample.uuid).set(value)


def _log_changes(before: Slots, now: Slots) -> None:
    for old, new in zip(before.slots, now.slots, strict=True):
        if new.problem and not old.problem:
            log.error("a slot became unhealthy", slot_id=new.id, problem=new.problem)
        elif old.problem and not new.problem:
            log.info("a slot is healthy again", slot_id=new.id)
