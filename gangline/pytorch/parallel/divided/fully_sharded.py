"""The strategies on top of ShardedStrategy: zero2, zero3 and hsdp.

zero2 keeps gathered parameters from forward to backward. zero3 gathers one block at a time. hsdp divides the model as
zero3 does, inside each machine only, and each machine holds a copy: only reduced gradients cross the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gangline.pytorch.parallel.divided.sharded import ShardedStrategy


class HsdpStrategy(ShardedStrategy):
    """Divides a model inside each machine. size, num_machines: ranks and machines of the trial."""

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
        # init_device_mesh would give its groups torch's default timeout.
        groups = [self._own_group(ranks.T), self._own_group(ranks)]
        return DeviceMesh.from_group(groups, self._device.type, mesh=ranks, mesh_dim_names=("replicate", "shard"))

    def _own_group(self, ranks: torch.Tensor) -> dist.ProcessGroup:
        """Makes a process group of each row, on all ranks in the same order. Returns the group of this rank."""
        groups: list[dist.ProcessGroup] = [dist.new_group(row, timeout=self._timeout) for row in ranks.tolist()]
        (place,) = (ranks == dist.get_rank()).any(dim=1).nonzero()
        return groups[int(place)]


def mesh_shape(size: int, num_machines: int) -> tuple[int, int]:
    """Returns the number of copies, and of parts of each copy. Each machine gets a copy where all have equally many
    slots, at least two; otherwise there are two copies. Ranks of a machine follow one another. size is even and at
    least 4."""
    if num_machines > 1 and size % num_machines == 0 and size // num_machines > 1:
        return num_machines, size // num_machines
    return 2, size // 2


class Zero2Strategy(ShardedStrategy):
    """Keeps the whole parameters from forward to backward."""

    name = "zero2"
    reshards = False

    def make_mesh(self) -> DeviceMesh:
        return init_device_mesh(self._device.type, (dist.get_world_size(),), mesh_dim_names=("shard",))


class Zero3Strategy(ShardedStrategy):
    """Keeps the whole parameters of one block at a time."""

    name = "zero3"
    reshards = True

    def make_mesh(self) -> DeviceMesh:
        return init_device_mesh(self._device.type, (dist.get_world_size(),), mesh_dim_names=("shard",))
