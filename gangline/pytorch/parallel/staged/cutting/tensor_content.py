"""Keeps the values of tensors, and what else a forward may change of them: their memory, shape, gradient and hooks.

Values are kept by memory, so that tensors which share some go on to do so. Parameters, gradients and very large tensors
are copied only before an operation writes to them, as copies of all of them may not fit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from gangline.pytorch.parallel.staged.absent import Absent
from gangline.pytorch.parallel.staged.cutting.marks import changed_by, storages_of

# Larger tensors are copied only before they are written to.
_MOST_BYTES = 2**30


class Memory:
    """Copies of the memory of tensors."""

    def __init__(self) -> None:
        # By the id of the memory, which is kept.
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        # Not copied yet.
        self._waiting: dict[int, torch.UntypedStorage] = {}

    def add(self, tensor: torch.Tensor, *, is_copied: bool) -> None:
        """is_copied: whether it is copied now, and not before it is written to."""
        for storage in storages_of(tensor):
            if is_copied and storage.nbytes() <= _MOST_BYTES:
                self._copy(storage)
            elif id(storage) not in self._copies:
                self._waiting[id(storage)] = storage

    def note_write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called before each operation."""
        if func._schema.is_mutable:
            for storage in storages_of(changed_by(func, args, kwargs)):
                if id(storage) in self._waiting:
                    self._copy(storage)

    def has_copy(self, tensor: torch.Tensor) -> bool:
        storages = list(storages_of(tensor))
        return bool(storages) and all(id(each) in self._copies or not each.nbytes() for each in storages)

    def restore(self) -> None:
        for storage, copy in self._copies.values():
            if storage.nbytes() != copy.nbytes():
                storage.resize_(copy.nbytes())
            # Memory of a file may be there for reading alone, so what has not changed is not written.
            if storage.device.type != "cpu" or not torch.equal(_bytes_of(storage), _bytes_of(copy)):
                storage.copy_(copy)

    def _copy(self, storage: torch.UntypedStorage) -> None:
        self._waiting.pop(id(storage), None)
        if id(storage) not in self._copies:
            self._copies[id(storage)] = (storage, storage.clone())  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class TensorContent:
    """One tensor as it was. memory: gets its values."""

    def __init__(self, tensor: torch.Tensor, memory: Memory) -> None:
        self.tensor = tensor
        self._memory = memory
        with _as_plain(tensor):
            self._read(tensor)

    def _read(self, tensor: torch.Tensor) -> None:
        self._is_leaf = tensor.is_leaf
        self._graph = tensor.grad_fn
        self._requires_grad = tensor.requires_grad
        self._version = _version_of(tensor)
        # With the memory, shape and strides of now.
        self._alias = tensor.detach()
        self._gradient = tensor.grad if tensor.is_leaf else None
        hooks: Any = tensor
        self.hooks = (hooks._backward_hooks, hooks._post_accumulate_grad_hooks) if tensor.is_leaf else (None, None)
        if tensor.is_meta:
            return
        self._memory.add(tensor, is_copied=not isinstance(tensor, nn.Parameter))
        if self._gradient is not None:
            self._memory.add(self._gradient, is_copied=False)

    @property
    def is_written(self) -> bool:
        """Whether the values were changed in place."""
        return not self.tensor.is_meta and _version_of(self.tensor) != self._version

    def restore(self) -> tuple[str, str] | None:
        """Puts all but the values back. Returns how the tensor was changed if that cannot be put back, and the way
        out."""
        with _as_plain(self.tensor):
            return self._restore(self.tensor)

    def _restore(self, tensor: Any) -> tuple[str, str] | None:
        if self.is_written and _share_memory(tensor, self._alias) and not self._memory.has_copy(tensor):
            return "in place, of which there is no copy", "make it a buffer of its module"
        if tensor.grad_fn is not self._graph:
            if self._graph is not None or tensor._is_view():
                return "in place in a graph of gradients", "change it under torch.no_grad()"
            tensor.detach_()
        if not _is_alike(tensor, self._alias):
            tensor.data = self._alias
        if tensor.is_leaf and tensor.requires_grad is not self._requires_grad:
            tensor.requires_grad_(self._requires_grad)
        if self._is_leaf:
            if tensor.grad is not self._gradient:
                tensor.grad = self._gradient
            if tensor._backward_hooks is not self.hooks[0]:
                tensor._backward_hooks = self.hooks[0]
            if tensor._post_accumulate_grad_hooks is not self.hooks[1]:
                tensor._post_accumulate_grad_hooks = self.hooks[1]
        return None


def _as_plain(tensor: torch.Tensor) -> AbstractContextManager[None]:
    """Returns a context in which the attributes of an absent tensor are read and set as those of any other. It answers
    each of them in Python otherwise, and a model has many absent parameters."""
    return torch._C.DisableTorchFunctionSubclass() if isinstance(tensor, Absent) else nullcontext()


def _share_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return [*map(id, storages_of(tensor))] == [*map(id, storages_of(other))]


def _is_alike(tensor: torch.Tensor, alias: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_meta:
        return True
    is_alike = tensor.shape == alias.shape and tensor.dtype == alias.dtype and tensor.stride() == alias.stride()
    return is_alike and tensor.data_ptr() == alias.data_ptr()


def _version_of(tensor: torch.Tensor) -> int:
    # Tensors of torch.inference_mode have no versions.
    return 0 if tensor.is_inference() else tensor._version
