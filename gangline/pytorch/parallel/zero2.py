"""ZeRO-2: every rank keeps its part of parameters, gradients and optimizer state. Whole parameters stay from the
forward pass to the backward pass."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gangline.pytorch.parallel.sharded import ShardedStrategy


class Zero2Strategy(ShardedStrategy):
    name = "zero2"
    reshards = False

    def make_mesh(self) -> DeviceMesh:
        return init_device_mesh(self._device.type, (dist.get_world_size(),), mesh_dim_names=("shard",))
