"""Copies of a save: where they are, how much memory they lock, and what happens where none is to be had.

Tensors of the CPU stand for those of a GPU, and a double locks their memory.
"""

from __future__ import annotations

import logging

import pytest
import torch

from gangline.pytorch.checkpoint.name import Path
from gangline.pytorch.checkpoint.page_lock import PageLockError
from gangline.pytorch.checkpoint.staging import Staging, lock_problem

_GIB = 1 << 30


class Locks:
    """The memory that is locked now, by its address. problem: why none is given."""

    def __init__(self) -> None:
        self.bytes_by_address: dict[int, int] = {}
        self.problem = ""

    def __call__(self, whole: torch.Tensor) -> Unlock:
        if self.problem:
            raise PageLockError(self.problem)
        self.bytes_by_address[whole.data_ptr()] = whole.numel()
        return Unlock(self, whole.data_ptr())

    def holds(self, tensor: torch.Tensor) -> bool:
        return any(0 <= tensor.data_ptr() - start < size for start, size in self.bytes_by_address.items())


class Unlock:
    def __init__(self, locks: Locks, address: int) -> None:
        self._locks, self._address = locks, address

    def __call__(self) -> None:
        del self._locks.bytes_by_address[self._address]


def _tensors(*sizes: int) -> dict[Path, torch.Tensor]:
    """Tensors of several types, also without a dimension and without an element."""
    tensors: dict[Path, torch.Tensor] = {
        ("models", 0, f"weight{place}"): torch.randn(size, 3).to(torch.bfloat16 if place % 2 else torch.float32)
        for place, size in enumerate(sizes)
    }
    return {
        **tensors,
        ("models", 0, "none"): torch.empty(0, 4),
        ("optimizers", 0, "step"): torch.tensor(7.0),
        ("models", 0, "mask"): torch.tensor([True, False, True]),
    }


def _staging(locks: Locks, free: int = 16 * _GIB, local_size: int = 1) -> Staging:
    return Staging(local_size, lock=locks, free_bytes=lambda: free, is_locked=lambda tensor: True)


def test_copies_are_exact_and_take_one_buffer_of_their_size() -> None:
    locks = Locks()
    tensors = _tensors(1000, 3000, 500)
    staging = _staging(locks)
    copies = staging.copy(tensors)
    assert all(torch.equal(copies[path], tensor) for path, tensor in tensors.items())
    assert all(copies[path].dtype == tensor.dtype for path, tensor in tensors.items())
    assert all(locks.holds(copied) for copied in copies.values() if copied.numel())
    own = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    (locked,) = locks.bytes_by_address.values()
    assert own <= locked <= own + 64 * len(tensors) + 1, "nothing is rounded up to a power of two"
    # A file has the bytes of a tensor's storage, and so it must not be that of all.
    assert all(copied.untyped_storage().nbytes() == copied.nbytes for copied in copies.values())


def test_memory_is_unlocked_before_it_is_freed() -> None:
    locks = Locks()
    staging = _staging(locks)
    copied = staging.copy(_tensors(1000))["models", 0, "weight0"]
    before = copied.clone()
    assert locks.holds(copied)
    del staging
    assert locks.bytes_by_address == {}
    assert torch.equal(copied, before)


def test_the_next_save_uses_the_same_memory_and_another_set_gives_it_back() -> None:
    locks = Locks()
    staging = _staging(locks)
    first = staging.copy(_tensors(1000))
    tensors = _tensors(1000)
    again = staging.copy(tensors)
    assert [copied.data_ptr() for copied in again.values()] == [copied.data_ptr() for copied in first.values()]
    assert all(torch.equal(again[path], tensor) for path, tensor in tensors.items())
    tensors = _tensors(1000, 2000)
    copies = staging.copy(tensors)
    assert all(torch.equal(copies[path], tensor) for path, tensor in tensors.items())
    assert len(locks.bytes_by_address) == 1
    assert sum(locks.bytes_by_address.values()) < 1000 * 12 + 2000 * 6 + 500


@pytest.mark.parametrize(
    ("free", "problem", "reason"),
    [
        (16 * _GIB, "CUDA error 2 for 12345 bytes", "CUDA error 2 for 12345 bytes"),
        (20_000, "", "1 rank(s) need 0.00 GiB each, and 0.00 GiB of the machine are free"),
    ],
)
def test_without_locked_memory_a_save_goes_on_in_other_memory_and_says_so_once(
    free: int, problem: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    locks = Locks()
    locks.problem = problem
    staging = _staging(locks, free)
    with caplog.at_level(logging.WARNING, "gangline"):
        for sizes in ((1000,), (1000,), (1000, 2000)):
            tensors = _tensors(*sizes)
            copies = staging.copy(tensors)
            assert all(torch.equal(copies[path], tensor) for path, tensor in tensors.items())
    assert locks.bytes_by_address == {}
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        f"checkpoints are copied to memory that is not page-locked, so steps stand still for longer: {reason}"
    )


def test_ranks_of_a_machine_lock_at_most_half_of_what_is_free() -> None:
    assert lock_problem(4 * _GIB, 2, 16 * _GIB) == ""
    assert lock_problem(4 * _GIB, 3, 16 * _GIB) == (
        "3 rank(s) need 4.00 GiB each, and 16.00 GiB of the machine are free, of which at most 50% may be locked"
    )


def test_copies_of_a_cpu_are_not_locked() -> None:
    locks = Locks()
    Staging(lock=locks).copy(_tensors(100))
    assert locks.bytes_by_address == {}
