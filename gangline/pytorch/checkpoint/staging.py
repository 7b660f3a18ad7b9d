"""Copies tensors to memory that training does not change, so that training can continue while they are written.

Owns the copies of one saver. Each save uses them again, because allocating memory costs more than the copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from gangline.pytorch.checkpoint.name import Path


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
    """Keeps copies of tensors. Allows one use at a time: a copy lasts until the next call."""

    def __init__(self) -> None:
        self._copies: dict[Path, torch.Tensor] = {}
        self._cpu_meshes: dict[DeviceMesh, DeviceMesh] = {}

    def copy(self, tensors: Mapping[Path, torch.Tensor]) -> dict[Path, torch.Tensor]:
        """Copies tensors to the CPU; shards stay shards. All ranks call it in step."""
        staged = {path: self._copy(path, tensor) for path, tensor in tensors.items()}
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        return staged

    def _copy(self, path: Path, tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, DTensor):
            return self._copy_local(path, tensor)
        local = self._copy_local(path, tensor.to_local())
        return DTensor.from_local(
            local,
            self._mesh_on_cpu(tensor.device_mesh),
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )

    def _copy_local(self, path: Path, tensor: torch.Tensor) -> torch.Tensor:
        kept = self._copies.get(path)
        if kept is None or (kept.shape, kept.dtype) != (tensor.shape, tensor.dtype):
            # Page-locked memory, which the GPU fills while the CPU continues.
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
            self._copies[path] = kept
        kept.copy_(tensor.detach(), non_blocking=True)
        return kept

    def _mesh_on_cpu(self, mesh: DeviceMesh) -> DeviceMesh:
        if mesh.device_type == "cpu":
            return mesh
        if mesh not in self._cpu_meshes:
            self._cpu_meshes[mesh] = DeviceMesh("cpu", mesh.mesh, mesh_dim_names=mesh.mesh_dim_names)
        return self._cpu_meshes[mesh]
