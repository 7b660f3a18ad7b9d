"""Random numbers of a rank: where their generators start, and their state in a checkpoint.

A trial is built with the trial's seed on every rank, so that all ranks draw the same initial weights and split data
alike. Training then goes on with seed + 1 + rank, so that ranks do not drop the same units.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

_LIMIT = 2**32


def seed_build(trial_seed: int) -> None:
    """The same on all ranks."""
    _seed(trial_seed)


def seed_training(trial_seed: int, rank: int) -> None:
    """Another stream on every rank."""
    _seed(trial_seed + 1 + rank)


def capture() -> dict[str, Any]:
    """The state of all generators of this process, in types that torch.load reads with weights_only."""
    version, keys, gauss = random.getstate()
    name, numbers, *rest = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(keys), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(numbers).astype(np.int64)), *rest],
        "cpu": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    name, numbers, *rest = state["numpy"]
    np.random.set_state((name, numbers.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number % _LIMIT)
    torch.manual_seed(number)
