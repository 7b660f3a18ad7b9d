"""Random numbers of a rank: the seeds of its generators, and their state in a checkpoint.

A trial is built with the trial's seed on every rank, so that all ranks draw the same initial weights and split data
alike. Training then uses seed + 1 + the replica's index, so that replicas do not drop the same units. A sampler draws
the order of the data from streams that depend on trial and epoch alone, so that replicas divide one order.
"""

from __future__ import annotations

import hashlib
import random
from types import TracebackType
from typing import Any

import numpy as np
import torch

# numpy's legacy generator takes seeds below this number.
_LIMIT = 2**32


def number_of(seed: int, *numbers: int) -> int:
    """Returns a seed for each row of numbers. A hash, so that neighbouring seeds do not share their epochs' orders."""
    digest = hashlib.sha256("/".join(map(str, (seed, *numbers))).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seed_build(trial_seed: int) -> None:
    """Seeds the generators for building a trial, with the same seed on all ranks."""
    _seed(trial_seed)


def seed_training(trial_seed: int, replica: int) -> None:
    """Seeds the generators for training, with another seed for every data replica. replica: its index."""
    _seed(trial_seed + 1 + replica)


def capture() -> dict[str, Any]:
    """Returns the state of all generators of this process, in types that torch.load reads with weights_only."""
    version, keys, gauss = random.getstate()
    name, numbers, *position_and_gauss = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(keys), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(numbers).astype(np.int64)), *position_and_gauss],
        "cpu": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    name, numbers, *position_and_gauss = state["numpy"]
    np.random.set_state((name, numbers.numpy().astype(np.uint32), *position_and_gauss))
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


class SharedStreams:
    """Context in which the process draws from separate streams. They begin at `number` and continue from block to
    block. After each block the rank's own streams are back in their previous state."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._states: list[Any] = []

    def __enter__(self) -> None:
        own = _states()
        if self._states:
            _set_states(self._states)
        else:
            random.seed(self._number)
            np.random.seed(self._number % _LIMIT)
            # torch.manual_seed would also seed a GPU that is not in use yet, and that could not be undone.
            torch.default_generator.manual_seed(self._number)
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
                torch.cuda.manual_seed(self._number)
        self._states = own

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shared = _states()
        _set_states(self._states)
        self._states = shared


def seed_generators(content: dict[str, Any], number: int) -> None:
    """Seeds each random number generator among these values. content: an object's attributes."""
    for value in content.values():
        if isinstance(value, torch.Generator):
            value.manual_seed(number)
        elif isinstance(value, random.Random):
            value.seed(number)
        elif isinstance(value, np.random.RandomState):
            value.seed(number % _LIMIT)
        elif isinstance(value, np.random.Generator):
            generator_type: Any = type(value.bit_generator)
            value.bit_generator.state = generator_type(number).state


def _states() -> list[Any]:
    has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    gpu = torch.cuda.get_rng_state() if has_gpu else None
    return [random.getstate(), np.random.get_state(), torch.get_rng_state(), gpu]


def _set_states(states: list[Any]) -> None:
    python, numpy, cpu, gpu = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if gpu is not None:
        torch.cuda.set_rng_state(gpu)


def _seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number % _LIMIT)
    # torch.accelerator.is_available would begin CUDA, which a process that is to fork must not do.
    if torch.accelerator.current_accelerator() is not None:
        torch.manual_seed(number)
    else:
        # Where torch is built for no accelerator, torch.manual_seed would keep a call for each kind of them, with the
        # lines of the stack, which takes milliseconds.
        torch.default_generator.manual_seed(number)
