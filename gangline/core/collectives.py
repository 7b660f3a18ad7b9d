"""Counts the collectives of torch.distributed that this process has entered, from the numbers that torch's groups keep.

A gang's ranks enter the same collectives in the same order. So the rank with the smallest number has not entered the
collective in which the others wait, whatever code it runs.
"""

from __future__ import annotations

import sys
from typing import Any

from gangline.domain.beat import Collectives

# Prefix of the description of a process group that serves a background thread.
BACKGROUND_GROUP = "gangline:background"


def count_collectives() -> Collectives:
    """Returns the counts over the groups that exist now; all zero where no process group is open."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        groups = list(module._world.pg_map) if module is not None else []
    except (AttributeError, RuntimeError):
        # Another thread makes or leaves a group at this moment, or this version of torch keeps its groups elsewhere.
        return Collectives()
    world = others = background = 0
    for group in groups:
        number = _number_of(group)
        if group is module.GroupMember.WORLD:
            world = number
        elif getattr(group, "group_desc", "").startswith(BACKGROUND_GROUP):
            background += number
        else:
            others += number
    return Collectives(world, others, background)


def _number_of(group: Any) -> int:
    """Sums the sequence numbers over all backends of the group, because one may carry tensors of CPUs and another those
    of GPUs."""
    try:
        backends = {id(found): found for found in map(group._get_backend, group._device_types)}
        return sum(int(found._get_sequence_number_for_group()) for found in backends.values())
    except (AttributeError, RuntimeError):
        return 0
