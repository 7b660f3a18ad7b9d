"""Counts the bytes of live tensors while code runs, on any device, the meta device included.

Each storage counts once, from the operation that returns a tensor of it until the last reference to it is dropped.
Memory that a kernel takes and frees inside of one operation is not seen.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class ByteLedger:
    """The live storages of one process on one kind of device. live: bytes at present. peak: the most since the last
    `restart`. Threads that count into one ledger use a LiveBytes each."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self.live = self.peak = 0
        self._lock = threading.RLock()
        self._bytes: dict[int, int] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._ignored: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        with self._lock:
            return storage._cdata in self._references

    def restart(self) -> None:
        """Begins a new peak at the bytes that are live."""
        with self._lock:
            self.peak = self.live

    def add(self, tensors: Iterable[Any]) -> bool:
        """Counts the storages of these tensors that are new. Other values are skipped. Returns whether one of them is
        on the ledger's device."""
        is_here = False
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                inner = getattr(tensor, "_local_tensor", tensor)
                # Sparse tensors have no storage of their own.
                if inner.layout is torch.strided and inner.device.type == self._device_type:
                    self.resize(inner.untyped_storage(), is_new=True)
                    is_here = True
        return is_here

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Takes the storages of these tensors out of the count, and never counts them again."""
        with self._lock:
            for tensor in tensors:
                storage = tensor.untyped_storage()
                self._ignored.add(storage)
                self._drop(storage._cdata)

    def resize(self, storage: torch.UntypedStorage, is_new: bool = False) -> None:
        """Notes the size of a storage. is_new: whether one that is not known yet begins to count."""
        key = storage._cdata
        with self._lock:
            if key in self._references:
                self._change(storage.nbytes() - self._bytes[key])
                self._bytes[key] = storage.nbytes()
            elif is_new and storage not in self._ignored:
                self._references[key] = weakref.ref(storage, lambda _: self._drop(key))
                self._bytes[key] = storage.nbytes()
                self._change(storage.nbytes())

    def _drop(self, key: int) -> None:
        with self._lock:
            if self._references.pop(key, None) is not None:
                self._change(-self._bytes.pop(key))

    def _change(self, amount: int) -> None:
        self.live += amount
        self.peak = max(self.peak, self.live)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts the tensors that operations of the entering thread return into a ledger. num_kernels: operations so far
    that returned a dense tensor on the ledger's device."""

    def __init__(self, ledger: ByteLedger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.ledger = ledger
        self.num_kernels = 0
        self._resize: Any = None

    def __enter__(self) -> LiveBytes:
        # No operation is dispatched where fully_shard frees and refills a storage.
        original = self._resize = torch.UntypedStorage.resize_

        @functools.wraps(original)
        def resize(storage: torch.UntypedStorage, *arguments: Any) -> Any:
            result = original(storage, *arguments)
            self.ledger.resize(storage)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]  # put back at the end
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def __exit__(self, *failure: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]  # the one of before
        super().__exit__(*failure)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.num_kernels += self.ledger.add(tree_leaves(result))
        return result
