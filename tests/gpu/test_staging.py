"""Copies of a GPU's tensors in page-locked memory: they are exact, CUDA knows the memory, and its refusal breaks
nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gangline.pytorch.checkpoint.name import Path
from gangline.pytorch.checkpoint.page_lock import PageLockError, lock_for_cuda
from gangline.pytorch.checkpoint.staging import Staging


@pytest.fixture
def tensors() -> dict[Path, torch.Tensor]:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    return {
        ("models", 0, "weight"): torch.randn(1000, 1001, device="cuda"),
        ("models", 0, "half"): torch.randn(77, device="cuda").to(torch.bfloat16),
        ("models", 0, "none"): torch.empty(0, 4, device="cuda"),
        ("optimizers", 0, "step"): torch.tensor(7.0),
    }


def test_copies_are_exact_and_page_locked(tensors: dict[Path, torch.Tensor]) -> None:
    staging = Staging()
    for _ in range(2):
        copies = staging.copy(tensors)
        assert all(torch.equal(copies[path], tensor.cpu()) for path, tensor in tensors.items())
        assert copies["models", 0, "weight"].is_pinned()
        assert copies["models", 0, "half"].is_pinned()
        assert not copies["optimizers", 0, "step"].is_pinned()
        tensors["models", 0, "weight"].add_(1)
    grown = {**tensors, ("optimizers", 0, "moment"): torch.randn(500, device="cuda")}
    copies = staging.copy(grown)
    assert all(torch.equal(copies[path], tensor.cpu()) for path, tensor in grown.items())
    assert copies["optimizers", 0, "moment"].is_pinned()


def test_a_copy_to_locked_memory_lets_the_cpu_continue(tensors: dict[Path, torch.Tensor]) -> None:
    """The time of a copy of 1 GiB is that of the link; one to other memory takes longer."""
    large: dict[Path, torch.Tensor] = {("models", 0, "weight"): torch.randn(1 << 28, device="cuda")}
    event: Any = torch.cuda.Event
    seconds = {}
    for is_locked in (True, False):
        staging = Staging(is_locked=lambda _, is_locked=is_locked: is_locked)  # type: ignore[misc]  # bound by default
        staging.copy(large)
        times = []
        for _ in range(5):
            begin, end = (event(enable_timing=True) for _ in range(2))
            begin.record()
            staging.copy(large)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        seconds[is_locked] = min(times)
    assert seconds[True] < seconds[False]


def test_a_refusal_of_cuda_leaves_no_error_for_the_next_kernel(tensors: dict[Path, torch.Tensor]) -> None:
    memory = torch.empty(1 << 20, dtype=torch.uint8)
    unlock = lock_for_cuda(memory)
    with pytest.raises(PageLockError, match="CUDA error 712 for 1048576 bytes"):
        lock_for_cuda(memory)
    assert float(torch.ones(8, device="cuda").sum()) == 8
    unlock()
    unlock()
    assert float(torch.ones(8, device="cuda").sum()) == 8
