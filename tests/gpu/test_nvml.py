"""The agent's slots on a machine with NVIDIA GPUs, against what torch sees of the same."""

from __future__ import annotations

import pytest

from gangline.domain.state import SlotKind
from services.agent import nvml
from services.agent.slot import load_slots, refresh_slots
from services.agent.visible import Device


@pytest.fixture(scope="module")
def devices() -> tuple[Device, ...]:
    try:
        found = nvml.list_devices()
    except nvml.NvmlUnavailableError as error:
        pytest.skip(f"there is no NVIDIA driver here: {error}")
    if not found:
        pytest.skip("NVML lists no GPU here")
    return found


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


def test_refresh_changes_nothing_on_a_healthy_machine(devices: tuple[Device, ...]) -> None:
    before = load_slots("a1", "auto", {})
    assert refresh_slots("a1", before) == before
    assert before.devices == devices


def test_samples(devices: tuple[Device, ...]) -> None:
    samples = {sample.uuid: sample for sample in nvml.sample_devices()}
    for device in devices:
        assert samples[device.uuid].memory_total_bytes == device.memory_bytes
        assert 0 <= samples[device.uuid].memory_used_bytes <= device.memory_bytes


def test_torch_sees_the_same_gpus(devices: tuple[Device, ...]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this build of torch has no CUDA")
    if any(device.mig_path for device in devices):
        pytest.skip("with MIG a process sees one device only")
    seen = {f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(torch.cuda.device_count())}
    assert seen <= {device.uuid for device in devices}
