"""Checks that all ranks change a wrapped model alike in the middle of training.

Owns the comparison over the process group's key-value store. A collective does not work here. A rank that changed
nothing takes no part in the collective, and would mistake its message for one of the exchange of gradients. Used by the
strategies.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # public, but not in __all__
from torch.distributed.distributed_c10d import _get_default_store

from gangline.errors import GanglineError, invalid

# Ranks reach the same forward pass within a step of each other. A late rank may be writing a checkpoint.
WAIT_SECONDS = 300.0
# One counter for all trials of this process, because they share one process group and its store.
_numbers = itertools.count()


def check_same_change(model: str, trained: Sequence[str]) -> None:
    """Compares the trained parameters over all ranks, which call it at the same forward pass. trained: names of the
    parameters that this rank trains from now on. Raises GanglineError `parallelism.model_changed` where another rank
    trains other parameters, or has changed nothing."""
    store = PrefixStore(f"gangline/change/{next(_numbers)}", _get_default_store())
    rank, keys = dist.get_rank(), [str(other_rank) for other_rank in range(dist.get_world_size())]
    own = "\n".join([model, *trained])
    store.set(str(rank), own)
    try:
        store.wait(keys, timedelta(seconds=WAIT_SECONDS))
    except RuntimeError as error:
        raise _differs(model, f"rank {rank} has done so and others have not within {WAIT_SECONDS:g} s") from error
    for key in keys:
        reported = store.get(key).decode()
        if reported != own:
            odd = sorted(set(reported.split("\n")) ^ set(own.split("\n")))[0]
            raise _differs(model, f"ranks {rank} and {key} differ in {odd}")


def _differs(model: str, how: str) -> GanglineError:
    return invalid(
        "parallelism.model_changed",
        f"{model} is frozen or unfrozen differently on different ranks ({how}), so gradients cannot be exchanged; "
        "set requires_grad at the same batch on all ranks",
    )
