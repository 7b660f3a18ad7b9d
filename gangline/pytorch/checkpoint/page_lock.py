"""One buffer of page-locked memory for all copies of a save, which GPUs fill while the CPU continues.

torch's own allocator of such memory rounds each tensor up to a power of two and never gives it back. This buffer has
exactly the bytes that are asked for, and its tensors have storages of their own, so that each is written alone.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import torch

# Beginnings of tensors, as those of torch's allocators.
_ALIGNMENT = 64
_Key = TypeVar("_Key")


class PageLockError(Exception):
    """Raised if the driver or the kernel does not give page-locked memory; the text has the reason."""


class Lock(Protocol):
    """Locks the pages of a tensor's memory and returns a function that unlocks them. Raises PageLockError."""

    def __call__(self, whole: torch.Tensor) -> Unlock: ...


class Unlock(Protocol):
    def __call__(self) -> None: ...


class PageLockedBuffer(Generic[_Key]):
    """Memory for tensors like the given ones, by key; `release` gives it back. Raises PageLockError."""

    def __init__(self, likes: Mapping[_Key, torch.Tensor], lock: Lock) -> None:
        offsets, end = {}, 0
        for key, like in likes.items():
            offsets[key] = end
            end += padded_bytes(like)
        try:
            # One byte more: an empty mapping is an error.
            memory = mmap.mmap(-1, end + 1)
        except OSError as error:
            raise PageLockError(f"{end} bytes: {error.strerror}") from error
        # Memory that is freed while it is locked stays so for CUDA, and a later copy to the same address fails.
        self._unlock = weakref.finalize(self, lock(torch.frombuffer(memory, dtype=torch.uint8)))
        self._unlock.atexit = False
        self.tensors = {
            key: torch.frombuffer(memory, dtype=like.dtype, count=like.numel(), offset=offsets[key]).view(like.shape)
            if like.numel()
            else torch.empty(like.shape, dtype=like.dtype)
            for key, like in likes.items()
        }

    def release(self) -> None:
        """Unlocks the memory. It is freed with the last of its tensors. May be called again."""
        self._unlock()
        self.tensors = {}


def padded_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's copy in the buffer."""
    return -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT


def lock_for_cuda(whole: torch.Tensor) -> Unlock:
    """Registers a tensor's memory with CUDA."""
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    code = int(cudart.cudaHostRegister(whole.data_ptr(), whole.numel(), 0))
    if code:
        _forget_error()
        raise PageLockError(f"CUDA error {code} for {whole.numel()} bytes")
    address = whole.data_ptr()

    def unlock() -> None:
        if int(cudart.cudaHostUnregister(address)):
            _forget_error()

    return unlock


def _forget_error() -> None:
    """Clears the error of a failed call of CUDA's runtime, which torch would report for the next kernel."""
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda").add_(1)
