"""The agent's slots and their health on a machine with NVIDIA GPUs, against what torch sees of the same."""

from __future__ import annotations

import pytest

from gangline.domain.state import SlotKind
from services.agent.devices import nvml
from services.agent.devices.gpu_health import GpuHealth, Policy, after_reading
from services.agent.devices.slot import load_slots
from services.agent.devices.visible import Device, find_problem
from services.agent.devices.xid_watch import XidEvent, XidWatch


@pytest.fixture(scope="module")
def devices() -> tuple[Device, ...]:
    try:
        gpus = nvml.list_devices()
    except nvml.NvmlUnavailableError as error:
        pytest.skip(f"there is no NVIDIA driver here: {error}")
    if not gpus:
        pytest.skip("NVML lists no GPU here")
    return gpus


def test_every_device_is_a_healthy_slot(devices: tuple[Device, ...]) -> None:
    slots = load_slots("a1", "auto", {}).slots
    assert [slot.uuid for slot in slots] == [device.uuid for device in devices]
    for slot in slots:
        assert slot.kind is SlotKind.GPU
        assert slot.uuid.startswith(("GPU-", "MIG-"))
        assert slot.id == f"a1/{slot.uuid}"
        assert slot.model
        assert slot.memory_bytes > 1 << 30
        assert (slot.is_healthy, slot.problem) == (True, "")


def test_uuid_prefix_and_index_choose_the_same(devices: tuple[Device, ...]) -> None:
    first = devices[0]
    by_index = load_slots("a1", "auto", {"CUDA_VISIBLE_DEVICES": str(first.index)})
    by_prefix = load_slots("a1", "auto", {"CUDA_VISIBLE_DEVICES": first.uuid[:-4]})
    assert first in by_index.devices
    assert by_prefix.devices == (first,)


def test_look_at_a_healthy_machine(devices: tuple[Device, ...]) -> None:
    """The driver's answers on a healthy machine must never count as a fault."""
    for device in devices:
        look = nvml.look_at_gpu(device.index, device.bus_id)
        assert device in look.devices
        assert find_problem(device, look.devices) == ""
        assert look.reading.problem == ""
        assert not look.reading.has_remap_failed
        health = GpuHealth()
        for now in (0.0, 15.0, 30.0):
            health = after_reading(health, look.reading, now, Policy())
        assert health.problem == ""


def test_look_at_a_gpu_that_is_not_there(devices: tuple[Device, ...]) -> None:
    look = nvml.look_at_gpu(99, "00000000:FF:1F.0")
    assert look.reading.problem.startswith("NVML says of GPU 99: ")
    assert find_problem(devices[0], look.devices).startswith("NVML says of GPU 99: ")


async def test_watch_starts_and_lets_go(devices: tuple[Device, ...]) -> None:
    events: list[XidEvent] = []
    watch = XidWatch(events.append)
    for _ in range(2):
        watch.start({device.bus_id for device in devices})
        assert watch.is_running
        await watch.stop()
        assert not watch.is_running
    assert events == []


def test_samples(devices: tuple[Device, ...]) -> None:
    looks = [nvml.look_at_gpu(index, bus_id) for index, bus_id in {(each.index, each.bus_id) for each in devices}]
    samples = {sample.uuid: sample for look in looks for sample in look.samples}
    for device in devices:
        assert samples[device.uuid].memory_total_bytes == device.memory_bytes
        used = samples[device.uuid].memory_used_bytes
        assert used is not None
        assert 0 <= used <= device.memory_bytes


def test_torch_sees_the_same_gpus(devices: tuple[Device, ...]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this build of torch has no CUDA")
    if any(device.mig_path for device in devices):
        pytest.skip("with MIG a process sees one device only")
    seen = {f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(torch.cuda.device_count())}
    assert seen <= {device.uuid for device in devices}
