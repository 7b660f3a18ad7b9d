"""A rank's device, and the refusal of ranks that share one."""

from __future__ import annotations

import os

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in __all__

from gangline.errors import GanglineError
from gangline.pytorch import group


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices that become the current one, on a machine whose CUDA shows MIG devices as a driver does."""
    devices: list[torch.device] = []

    def count() -> int:
        names = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
        return 1 if names[0].startswith("MIG-") else len(names)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", count)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    return devices


@pytest.mark.parametrize(
    ("visible", "index", "left"),
    [
        ("GPU-a,GPU-b", 1, "GPU-a,GPU-b"),
        ("MIG-b", 0, "MIG-b"),
        ("MIG-a,MIG-b", 0, "MIG-b"),
    ],
)
def test_a_rank_takes_its_own_device(
    monkeypatch: pytest.MonkeyPatch, chosen: list[torch.device], visible: str, index: int, left: str
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert group.choose_device() == torch.device("cuda", index)
    assert (chosen, os.environ["CUDA_VISIBLE_DEVICES"]) == ([torch.device("cuda", index)], left)


def test_a_rank_without_a_device_does_not_share_one(
    monkeypatch: pytest.MonkeyPatch, chosen: list[torch.device]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    with pytest.raises(GanglineError, match="local rank 2 has no GPU"):
        group.choose_device()
    assert chosen == []


def test_two_ranks_with_one_gpu_are_refused() -> None:
    store = HashStore()
    group.claim_device(store, "GPU-a", 0)
    group.claim_device(store, "GPU-b", 1)
    group.claim_device(store, "GPU-a", 0)
    with pytest.raises(GanglineError) as refused:
        group.claim_device(store, "GPU-a", 3)
    assert refused.value.code == "pytorch.shared_device"
    assert refused.value.message == (
        "rank 3 and rank 0 have the same GPU, GPU-a; start one rank for each GPU, or give each rank a device of its "
        "own in CUDA_VISIBLE_DEVICES"
    )


def test_mig_devices_of_one_gpu_are_not_the_same() -> None:
    identities = {group.device_identity({"CUDA_VISIBLE_DEVICES": name}, "7c") for name in ("MIG-a", "MIG-b", "0")}
    assert identities == {"MIG-a", "MIG-b", "GPU-7c"}
