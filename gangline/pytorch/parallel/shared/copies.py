"""Lists the tensors that several ranks keep as copies of one another, for the check that these copies stay the same.

Owns Copies, and the choice of the buffers that such a check reads. Each strategy lists its own copies, and
gangline.pytorch.training.comparison compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from gangline.pytorch.parallel.shared.ownership import class_name


@dataclass(frozen=True, slots=True)
class Copies:
    """Tensors of this rank that the other ranks of a process group have as well. All ranks of a trial list equally many
    Copies, in the same order."""

    owner: str  # for messages, the owner of one copy: `rank`, `replica` or `stage`
    tensors: Mapping[str, torch.Tensor]  # by name; empty if this rank is in none of the groups
    # index of this rank's group among the groups of this kind; None if this rank is in none of them
    index: int | None = 0
    count: int = 1  # number of groups of this kind
    group: dist.ProcessGroup | None = None  # None for all ranks


def buffers_to_compare(models: Iterable[nn.Module], *, only_saved: bool = False) -> dict[str, torch.Tensor]:
    """Returns the buffers that ranks may fill from their own records, by name. With several models each name begins
    with the model's number. only_saved: leaves out those that a checkpoint does not have.

    Running statistics of normalisation layers are left out: gangline.pytorch.parallel.shared.batch_norm warns of those.
    """
    wrapped = list(models)
    return {
        f"{class_name(model)} {number}: {name}" if len(wrapped) > 1 else name: buffer
        for number, model in enumerate(wrapped)
        for name, buffer in _buffers_of(model, only_saved)
    }


def _buffers_of(model: nn.Module, only_saved: bool) -> Iterable[tuple[str, torch.Tensor]]:
    for path, module in model.named_modules():
        if isinstance(module, _NormBase):
            continue
        for name, buffer in module.named_buffers(recurse=False):
            is_left_out = only_saved and name in module._non_persistent_buffers_set
            if not is_left_out and not buffer.is_meta and buffer.layout is torch.strided and not buffer.is_quantized:
                yield f"{path}.{name}" if path else name, buffer
