"""A rank's device and its memory, by the real driver."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
import torch

from gangline.core.load import open_gpu
from gangline.domain.state import ExitKind
from gangline.errors import GanglineError
from gangline.launch.failure import describe
from gangline.pytorch.group import choose_device
from gangline.pytorch.plan.place import memory_limits, taken_bytes
from gangline.pytorch.plan.step_time import SPARE_BYTES
from services.agent.devices import nvml

_TAKEN = 4 << 30


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return choose_device()


def _take(link: Connection) -> None:
    kept = torch.empty(_TAKEN, dtype=torch.uint8, device="cuda")
    link.send(kept.numel())
    link.recv()


@pytest.fixture
def neighbour(device: torch.device) -> Iterator[None]:
    """Another process that uses memory of the same GPU."""
    context = multiprocessing.get_context("spawn")
    own, other = context.Pipe()
    process = context.Process(target=_take, args=(other,))
    process.start()
    try:
        assert own.poll(120), "the other process takes no memory"
        own.recv()
        yield
    finally:
        own.send(None)
        process.join()


def test_memory_that_another_process_uses_is_not_planned(device: torch.device, neighbour: None) -> None:
    total = torch.cuda.mem_get_info(device)[1]
    assert _TAKEN <= taken_bytes(device) <= total
    (limit,) = memory_limits(device).values()
    assert limit == pytest.approx(total - taken_bytes(device), abs=SPARE_BYTES)


def test_more_local_ranks_than_gpus_are_refused(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("LOCAL_RANK", str(torch.cuda.device_count()))
    with pytest.raises(GanglineError, match=f"local rank {torch.cuda.device_count()} has no GPU"):
        choose_device()


def test_load_is_that_of_the_own_gpu(device: torch.device) -> None:
    first = nvml.list_devices()[0]
    by_name = open_gpu({"CUDA_VISIBLE_DEVICES": first.uuid})()
    by_number = open_gpu({"CUDA_VISIBLE_DEVICES": str(first.index), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})()
    assert by_name.keys() == by_number.keys()
    assert by_name["gpu_memory_bytes"] > 0
    assert os.environ.get("LOCAL_RANK") is None


def test_a_full_gpu_is_a_lack_of_memory_whatever_the_library_says(device: torch.device) -> None:
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.empty(free - (64 << 20), dtype=torch.uint8, device=device)
    assert describe(RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED")).kind is ExitKind.OUT_OF_MEMORY
    with pytest.raises(torch.OutOfMemoryError) as lack:
        torch.empty(free, dtype=torch.uint8, device=device)
    assert describe(lack.value).kind is ExitKind.OUT_OF_MEMORY
    del kept
    torch.cuda.empty_cache()
    assert describe(RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED")).kind is ExitKind.USER_ERROR
