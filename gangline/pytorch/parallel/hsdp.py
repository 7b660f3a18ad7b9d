"""Hybrid sharding: as ZeRO-3 inside a machine, with a copy of the divided model on each machine.

The gathering of blocks stays inside the machines; only what is reduced of the gradients crosses the network.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gangline.pytorch.parallel.sharded import ShardedStrategy


class HsdpStrategy(ShardedStrategy):
    """size, num_machines: of the trial."""

    name = "hsdp"
    reshards = True

    def __init__(
        self, device: torch.device, blocks: Sequence[str] | None = None, *, size: int, num_machines: int = 1
    ) -> None:
        super().__init__(device, blocks)
        self.shape = mesh_shape(size, num_machines)

    def make_mesh(self) -> DeviceMesh:
        return init_device_mesh(self._device.type, self.shape, mesh_dim_names=("replicate", "shard"))


def mesh_shape(size: int, num_machines: int) -> tuple[int, int]:
    """Copies, and parts of each copy: a copy for each machine where they have equally many slots, at least two; else
    two copies. Ranks of a machine follow one another. size is even and at least 4."""
    if num_machines > 1 and size % num_machines == 0 and size // num_machines > 1:
        return num_machines, size // num_machines
    return 2, size // 2
