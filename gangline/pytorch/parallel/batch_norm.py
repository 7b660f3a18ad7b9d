"""Tells a user once that batch normalisation sees one slot's records only. For the strategies of several ranks."""

from __future__ import annotations

import logging

import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

_log = logging.getLogger("gangline")


def warn_of_batch_norm(model: nn.Module) -> None:
    """Its results differ from those of one slot with the whole batch, whatever the strategy."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    local = [module for module in layers if not isinstance(module, nn.SyncBatchNorm)]
    if local and dist.get_rank() == 0:
        _log.warning(
            "%s has %d %s layers, which normalise over one slot's part of the batch, so its losses differ from those "
            "of one slot; use GroupNorm, or on GPUs torch.nn.SyncBatchNorm.convert_sync_batchnorm",
            type(model).__name__,
            len(local),
            type(local[0]).__name__,
        )
