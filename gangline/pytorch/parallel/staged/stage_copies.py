"""Lists what the ranks of a pipeline keep as copies of one another: a stage in all replicas, and weights that several
stages of a replica have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
import torch.distributed as dist
from torch import nn

from gangline.pytorch.parallel.shared.copies import Copies, buffers_to_compare
from gangline.pytorch.parallel.shared.ownership import plain_names
from gangline.pytorch.parallel.staged.group import Replicas
from gangline.pytorch.parallel.staged.holding import Holding


def list_copies(
    parameters: Mapping[str, nn.Parameter],
    holding: Holding,
    replicas: Replicas,
    groups: Mapping[tuple[int, ...], dist.ProcessGroup | None],
    borrowed: Collection[int],
) -> list[Copies]:
    """Returns the copies that this rank has. parameters: of the model, by name. groups: of the ranks of this replica
    that hold parameters together, by their places; None for a group without this rank. borrowed: ids of the parameters
    whose values all ranks of the replica have. The number of entries is the same on all ranks."""
    named = plain_names(parameters)
    held = {id(parameter) for parameter in holding.held_by(replicas.place)}
    own = {name: parameter for name, parameter in named.items() if id(parameter) in held}
    copies = _across_replicas(own, replicas)
    for places, group in sorted(groups.items()):
        shared = {name: parameter for name, parameter in own.items() if holding.holders(parameter) == places}
        index = replicas.index if group is not None else None
        copies.append(Copies("stage", shared, index, replicas.count, group))
    lent = {name: parameter for name, parameter in named.items() if id(parameter) in borrowed}
    copies.append(Copies("stage", lent, replicas.index, replicas.count, replicas.inside))
    return copies


def list_buffers(models: Iterable[nn.Module], holding: Holding, replicas: Replicas) -> list[Copies]:
    """Returns the buffers of this rank's stage that a checkpoint has, as copies of those in the other replicas."""
    buffers = plain_names(buffers_to_compare(models, only_saved=True))
    own = {name: buffer for name, buffer in buffers.items() if holding.has_buffer(name, replicas.place)}
    return _across_replicas(own, replicas)


def _across_replicas(own: Mapping[str, torch.Tensor], replicas: Replicas) -> list[Copies]:
    if replicas.across is None:
        return []
    return [Copies("replica", own, replicas.place, replicas.stages, replicas.across)]
