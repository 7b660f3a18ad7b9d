"""The GPU of a local rank: which of the visible ones it is, and what is said where there is none."""

from __future__ import annotations

import pytest

from gangline.domain.visible_device import device_index, device_name, own_mig_device
from gangline.errors import GanglineError


def _environment(local_rank: int, visible: str | None) -> dict[str, str]:
    return {"LOCAL_RANK": str(local_rank), **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}


@pytest.mark.parametrize(
    ("local_rank", "visible", "name"),
    [
        (0, None, "0"),
        (2, None, "2"),
        (1, "3, GPU-ab", "GPU-ab"),
        (1, "5", "5"),
        (1, "MIG-b", "MIG-b"),
        (0, "", ""),
        (2, "3,4", ""),
    ],
)
def test_name_of_the_device(local_rank: int, visible: str | None, name: str) -> None:
    assert device_name(_environment(local_rank, visible)) == name


@pytest.mark.parametrize(
    ("local_rank", "visible", "num_devices", "index"),
    [
        (0, None, 1, 0),
        (1, None, 4, 1),
        (1, "3,GPU-ab", 2, 1),
        (1, "5", 1, 0),
        (3, "MIG-b", 1, 0),
    ],
)
def test_number_of_the_device(local_rank: int, visible: str | None, num_devices: int, index: int) -> None:
    assert device_index(_environment(local_rank, visible), num_devices) == index


@pytest.mark.parametrize(
    ("local_rank", "visible", "num_devices", "setting"),
    [
        (1, None, 1, "is not set"),
        (4, None, 4, "is not set"),
        (2, "GPU-a,GPU-b", 2, "is 'GPU-a,GPU-b'"),
        (1, "GPU-a,GPU-gone", 1, "is 'GPU-a,GPU-gone'"),
        (1, "MIG-a,MIG-b", 1, "is 'MIG-a,MIG-b'"),
    ],
)
def test_more_local_ranks_than_devices_are_refused(
    local_rank: int, visible: str | None, num_devices: int, setting: str
) -> None:
    with pytest.raises(GanglineError) as refused:
        device_index(_environment(local_rank, visible), num_devices)
    assert refused.value.code == "pytorch.devices"
    assert refused.value.message == (
        f"local rank {local_rank} has no GPU: CUDA shows {num_devices} device(s) to this process, and "
        f"CUDA_VISIBLE_DEVICES {setting}; start at most {num_devices} rank(s) on this machine, or give each rank a "
        "device of its own"
    )


@pytest.mark.parametrize(
    ("local_rank", "visible", "own"),
    [
        (0, "MIG-a,MIG-b", "MIG-a"),
        (1, "MIG-a,MIG-b", "MIG-b"),
        (2, "MIG-a,MIG-b", ""),
        (0, "MIG-a", ""),
        (1, "GPU-a,GPU-b", ""),
        (0, None, ""),
    ],
)
def test_a_process_with_several_mig_devices_takes_its_own(local_rank: int, visible: str | None, own: str) -> None:
    assert own_mig_device(_environment(local_rank, visible)) == own
