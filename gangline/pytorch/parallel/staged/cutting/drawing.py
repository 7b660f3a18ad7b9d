"""Random numbers that the model's own code draws with torch, which all parts draw alike for one microbatch.

Each part runs the code between units, so noise or a mask that begins before the first unit and is used behind the last
one must be the same in all of them. Units draw from the rank's own generators, because only one part runs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


class SharedDraws:
    """Generators of the model's own code in one run of a part. number: the same for all parts, and another one for each
    microbatch."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._states: list[torch.Tensor] = []

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Draws from these generators. Afterwards the rank's own are as they were."""
        own = _states()
        if self._states:
            _restore(self._states)
        else:
            torch.default_generator.manual_seed(self._number)
            if len(own) > 1:
                torch.cuda.manual_seed(self._number)
        try:
            yield
        finally:
            self._states = _states()
            _restore(own)


class DrawNumbers:
    """Numbers for SharedDraws, alike on all ranks of a replica, which take them in step. They come from a generator of
    their own, so that the trial's code draws what it draws in one process. seed: alike on all ranks of the replica."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self) -> int:
        return int(torch.randint(2**62, (), device="cpu", generator=self._generator))

    def capture(self) -> torch.Tensor:
        return self._generator.get_state()

    def restore(self, state: torch.Tensor) -> None:
        self._generator.set_state(state)


@cache
def is_random(func: Any) -> bool:
    """Returns whether an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags


def _states() -> list[torch.Tensor]:
    has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return [torch.get_rng_state(), torch.cuda.get_rng_state()] if has_gpu else [torch.get_rng_state()]


def _restore(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1])
