"""Copies tensors to memory that training does not change, so that training can continue while they are written.

Owns the copies of one saver. Each save uses them again, because allocating memory costs more than the copy. Copies of a
GPU's tensors are in page-locked memory as long as that leaves enough of the machine's memory free.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from gangline.pytorch.checkpoint.name import Path
from gangline.pytorch.checkpoint.page_lock import Lock, PageLockedBuffer, PageLockError, lock_for_cuda, padded_bytes
from gangline.pytorch.host_memory import free_host_bytes

# Part of the machine's free memory that the ranks of a trial may lock together. The kernel can neither swap out nor
# move locked pages.
LOCKED_RATIO = 0.5
_GIB = 1024.0**3
_log = logging.getLogger("gangline")


def copy_values(value: Any) -> Any:
    """Copies dictionaries, lists and tuples with their tensors, to the CPU; other values are kept."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copy_values(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        copies = [copy_values(entry) for entry in value]
        return copies if isinstance(value, list) else tuple(copies)
    return value


class Staging:
    """Keeps copies of tensors. Allows one use at a time: a copy lasts until the next call.

    local_size: ranks of this machine, which stage at the same time. lock, free_bytes, is_locked: replaceable for tests;
    is_locked: whether a tensor's copy belongs into page-locked memory.
    """

    def __init__(
        self,
        local_size: int = 1,
        *,
        lock: Lock = lock_for_cuda,
        free_bytes: Callable[[], int] = free_host_bytes,
        is_locked: Callable[[torch.Tensor], bool] = lambda tensor: tensor.is_cuda,
    ) -> None:
        self._local_size = local_size
        self._lock = lock
        self._free_bytes = free_bytes
        self._is_locked = is_locked
        self._copies: dict[Path, torch.Tensor] = {}
        self._buffer: PageLockedBuffer[Path] | None = None
        self._has_warned = False
        self._cpu_meshes: dict[DeviceMesh, DeviceMesh] = {}

    def copy(self, tensors: Mapping[Path, torch.Tensor]) -> dict[Path, torch.Tensor]:
        """Copies tensors to the CPU; shards stay shards. All ranks call it in step."""
        parts = {path: _own_part(tensor) for path, tensor in tensors.items()}
        if any(not _fits(self._copies.get(path), part) for path, part in parts.items()):
            self._make_room(parts)
        for path, part in parts.items():
            self._copies[path].copy_(part.detach(), non_blocking=True)
        if any(part.is_cuda for part in parts.values()):
            torch.cuda.synchronize()
        return {path: self._like(tensor, self._copies[path]) for path, tensor in tensors.items()}

    def _make_room(self, parts: Mapping[Path, torch.Tensor]) -> None:
        """Allocates memory for the copies of these tensors; the copies of others are given back first."""
        locked = {path: part for path, part in parts.items() if self._is_locked(part)}
        is_outdated = any(not _fits(self._copies.get(path), part) for path, part in locked.items())
        self._copies = {
            path: copied
            for path, copied in self._copies.items()
            if path in parts and _fits(copied, parts[path]) and not (is_outdated and path in locked)
        }
        if is_outdated:
            if self._buffer is not None:
                self._buffer.release()
                self._buffer = None
            self._copies |= self._lock_room(locked)
        for path, part in parts.items():
            if path not in self._copies:
                self._copies[path] = torch.empty(part.shape, dtype=part.dtype, device="cpu")

    def _lock_room(self, parts: Mapping[Path, torch.Tensor]) -> dict[Path, torch.Tensor]:
        """Returns page-locked memory for the copies; none where it would take too much, or is not to be had."""
        needed = sum(map(padded_bytes, parts.values()))
        problem = lock_problem(needed, self._local_size, self._free_bytes())
        if not problem:
            try:
                self._buffer = PageLockedBuffer(parts, self._lock)
                return self._buffer.tensors
            except PageLockError as error:
                problem = str(error)
        if not self._has_warned:
            self._has_warned = True
            text = "checkpoints are copied to memory that is not page-locked, so steps stand still for longer: %s"
            _log.warning(text, problem)
        return {}

    def _like(self, tensor: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
        """Returns a copy as what its tensor is: a tensor, or a part of a divided one."""
        if not isinstance(tensor, DTensor):
            return copied
        return DTensor.from_local(
            copied,
            self._mesh_on_cpu(tensor.device_mesh),
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )

    def _mesh_on_cpu(self, mesh: DeviceMesh) -> DeviceMesh:
        if mesh.device_type == "cpu":
            return mesh
        if mesh not in self._cpu_meshes:
            self._cpu_meshes[mesh] = DeviceMesh("cpu", mesh.mesh, mesh_dim_names=mesh.mesh_dim_names)
        return self._cpu_meshes[mesh]


def lock_problem(needed: int, local_size: int, free: int) -> str:
    """Returns why ranks should lock no memory for their copies; empty if they may. needed: bytes of each rank. free:
    bytes of the machine."""
    if needed * local_size <= LOCKED_RATIO * free:
        return ""
    return (
        f"{local_size} rank(s) need {needed / _GIB:.2f} GiB each, and {free / _GIB:.2f} GiB of the machine are free, "
        f"of which at most {LOCKED_RATIO:.0%} may be locked"
    )


def _own_part(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _fits(copied: torch.Tensor | None, tensor: torch.Tensor) -> bool:
    return copied is not None and (copied.shape, copied.dtype) == (tensor.shape, tensor.dtype)
