"""Hybrid sharding: as ZeRO-3 inside a machine, with a copy of the divided model on each machine.

The gathering of blocks stays inside the machines; only what is reduced of the gradients crosses the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gangline.pytorch.parallel.sharded import ShardedStrategy


class HsdpStrategy(ShardedStrategy):
    """size, num_machines: of the trial."""

    name = "hsdp"
    reshards = True

    def __init__(
        self,
        device: torch.device,
        blocks: Sequence[str] | None = None,
        timeout: timedelta | None = None,
        *,
        size: int,
        num_machines: int = 1,
    ) -> None:
        super().__init__(device, blocks, timeout)
        self.shape = mesh_shape(size, num_machines)

    def make_mesh(self) -> DeviceMesh:
        ranks = torch.arange(dist.get_world_size()).view(self.shape)
        # Not init_device_mesh, which gives its groups torch's default timeout.
        groups = [self._own_group(ranks.T), self._own_group(ranks)]
        return DeviceMesh.from_group(groups, self._device.type, mesh=ranks, mesh_dim_names=("replicate", "shard"))

    def _own_group(self, ranks: torch.Tensor) -> dist.ProcessGroup:
        """Makes a group of each row, on all ranks in the same order. Returns that of this rank."""
        groups: list[dist.ProcessGroup] = [dist.new_group(row, timeout=self._timeout) for row in ranks.tolist()]
        (place,) = (ranks == dist.get_rank()).any(dim=1).nonzero()
        return groups[int(place)]


def mesh_shape(size: int, num_machines: int) -> tuple[int, int]:
    """Copies, and parts of each copy: a copy for each machine where they have equally many slots, at least two; else
    two copies. Ranks of a machine follow one another. size is even and at least 4."""
    if num_machines > 1 and size % num_machines == 0 and size // num_machines > 1:
        return num_machines, size // num_machines
    return 2, size // 2
