"""Random numbers of one rank of a pipeline, and their state in a checkpoint.

Owns the streams from which the units draw, and the numbers from which the model's own code does. Both are apart from
the rank's own generators, so that the trial's code draws what it draws in one process. Used by the strategy `pipeline`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from gangline.pytorch.data import seed
from gangline.pytorch.parallel.staged.cutting.drawing import DrawNumbers
from gangline.pytorch.parallel.staged.group import Replicas

# Names of the states in a checkpoint.
_UNITS, _NUMBERS = "stage_random", "model_random"


class StageRandom:
    """Seeded by the rank's generators as they are. All ranks make it in step.

    units: a context in which this rank's units draw. numbers: alike on all ranks of the replica.
    """

    def __init__(self, replicas: Replicas) -> None:
        initial = torch.initial_seed()
        self.units = seed.SharedStreams(seed.number_of(initial, 1 + dist.get_rank()))
        self.numbers = DrawNumbers(replicas.share_number(seed.number_of(initial, 0, replicas.index)))

    def capture(self) -> dict[str, Any]:
        with self.units:
            return {_UNITS: seed.capture(), _NUMBERS: self.numbers.capture()}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a state. Checkpoints of other strategies have none, and older ones have that of the units."""
        if _UNITS in state:
            with self.units:
                seed.restore(state[_UNITS])
        if _NUMBERS in state:
            self.numbers.restore(state[_NUMBERS])
