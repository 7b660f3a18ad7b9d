"""ZeRO-3: every rank keeps its part of parameters, gradients and optimizer state. It keeps whole parameters of one
block at a time."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gangline.pytorch.parallel.sharded import ShardedStrategy


class Zero3Strategy(ShardedStrategy):
    name = "zero3"
    reshards = True

    def make_mesh(self) -> DeviceMesh:
        return init_device_mesh(self._device.type, (dist.get_world_size(),), mesh_dim_names=("shard",))
