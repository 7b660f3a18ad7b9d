"""The monitor of the slots over a driver that hangs, fails or surprises; threads and the event loop are real."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gangline.domain.resource import Slot
from services.agent.devices import monitor, nvml
from services.agent.devices.gpu_health import GpuReading, Policy
from services.agent.devices.health_file import NAME, load_healths
from services.agent.devices.monitor import SlotMonitor
from services.agent.devices.slot import Slots
from services.agent.devices.visible import Device
from tests.support.agent_process import wait_until

GOOD = GpuReading(num_uncorrected=0)
DEVICES = tuple(Device(index, f"GPU-{index}", "a model", 1 << 30, bus_id=f"bus-{index}") for index in range(2))


class Driver:
    """The behaviour of look_at_gpu for each GPU: answers, or hangs until the test is over."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.hanging: set[str] = set()
        self.readings: dict[str, GpuReading | Exception] = {}
        self.calls: list[str] = []

    async def wait_for_calls(self, number: int) -> None:
        """So many more."""
        wanted = len(self.calls) + number
        await wait_until(lambda: len(self.calls) >= wanted)

    def look(self, index: int, bus_id: str) -> nvml.Look:
        self.calls.append(bus_id)
        if bus_id in self.hanging:
            self.is_over.wait()
        reading = self.readings.get(bus_id, GOOD)
        if isinstance(reading, Exception):
            raise reading
        return nvml.Look((DEVICES[index],), reading)


@pytest.fixture
async def driver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Driver]:
    driver = Driver()
    monkeypatch.setattr(nvml, "look_at_gpu", driver.look)
    monkeypatch.setattr(monitor, "NVML_SECONDS", 0.2)
    yield driver
    driver.is_over.set()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[tuple[Device, ...]], SlotMonitor]]:
    tasks: list[asyncio.Task[None]] = []

    def start(devices: tuple[Device, ...]) -> SlotMonitor:
        slots = tuple(
            Slot(f"a1/{device.uuid}", problem=device.problem, is_healthy=not device.problem) for device in devices
        )
        made = SlotMonitor(Slots(slots, devices), Policy(), 0.01, tmp_path, lambda _: None)
        tasks.append(asyncio.create_task(made.run()))
        return made

    yield start
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


Start = Callable[[tuple[Device, ...]], SlotMonitor]


def _problems(watched: SlotMonitor) -> list[str]:
    return [slot.problem for slot in watched.slots.slots]


async def test_gpu_that_hangs_does_not_take_the_others_along(driver: Driver, start: Start) -> None:
    watched = start(DEVICES)
    driver.hanging.add("bus-0")
    await wait_until(lambda: _problems(watched)[0])
    assert _problems(watched) == ["NVML did not answer within 0.2 s; reboot the host if it goes on like this", ""]
    assert driver.calls.count("bus-1") > driver.calls.count("bus-0"), "a call that hangs is not made again"
    driver.hanging.clear()
    driver.is_over.set()
    await wait_until(lambda: _problems(watched) == ["", ""])


async def test_check_that_fails_in_a_way_nobody_thought_of(driver: Driver, start: Start) -> None:
    driver.readings["bus-0"] = ZeroDivisionError()
    watched = start(DEVICES)
    await wait_until(lambda: driver.calls.count("bus-0") > 5)
    assert _problems(watched) == ["", ""]
    driver.readings["bus-0"] = GpuReading("it is lost")
    await wait_until(lambda: _problems(watched) == ["it is lost", ""])


async def test_device_that_nvml_could_not_name_stays_out_of_use(driver: Driver, start: Start) -> None:
    nameless = Device(-1, problem="CUDA_VISIBLE_DEVICES names '9', which is no device that NVML lists")
    watched = start((nameless, DEVICES[1]))
    await wait_until(lambda: len(driver.calls) > 10)
    assert _problems(watched) == [nameless.problem, ""]


async def test_mig_device_that_is_gone(driver: Driver, start: Start) -> None:
    """The GPU is well, and has other devices than when the agent started."""
    gone = Device(0, "MIG-1", mig_path="GPU-0/7/0", bus_id="bus-0")
    watched = start((gone,))
    await wait_until(lambda: _problems(watched)[0])
    assert _problems(watched) == ["NVML no longer lists it; restart the agent if that was intended"]


async def test_restart_does_not_bring_a_gpu_back(driver: Driver, start: Start, tmp_path: Path) -> None:
    """Errors that were counted before the agent started are no finding by themselves."""
    first = start(DEVICES)
    for errors in (0, 1, 2):
        driver.readings["bus-0"] = GpuReading(num_uncorrected=errors)
        await driver.wait_for_calls(5)
    assert _problems(first)[0].startswith("1 uncorrected memory error, 2 times; reset the GPU")
    second = start(DEVICES)
    assert _problems(second) == _problems(first), "from the first hello on"
    await driver.wait_for_calls(20)
    assert _problems(second) == _problems(first)
    driver.readings["bus-0"] = GOOD
    await wait_until(lambda: _problems(second) == ["", ""])
    await wait_until(lambda: load_healths(tmp_path / NAME) == {})


@pytest.mark.parametrize("text", ["", "[]", "{", '{"GPU-0": 3}', '{"GPU-0": {"problem": 3, "reset_below": null}}'])
async def test_file_that_makes_no_sense(driver: Driver, start: Start, tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    assert _problems(start(DEVICES)) == ["", ""]


async def test_artificial_slots_are_never_checked(driver: Driver, start: Start) -> None:
    watched = start(())
    await asyncio.sleep(0)
    assert watched.slots.slots == ()
    assert driver.calls == []
