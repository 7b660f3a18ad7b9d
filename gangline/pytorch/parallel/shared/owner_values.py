"""Sends the values of parameters from their owners to the other ranks after a step, and finds what the step would hide.

Owns the comparison of what the trial itself has changed since the last step. The owners' values take the place of the
other ranks' copies, so changes that differ from rank to rank would leave no trace for the check for drift. Only changed
parameters are read, and two numbers of each go along with the values. Used by the strategies that divide a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist

from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.shared.broadcast import broadcast_tensors

# Of a difference to the norm. Rounding on GPUs of several kinds stays below it.
_TOLERANCE = 1e-3
_FINE = (torch.float32, torch.float64)


class OwnerValues:
    """name_of: returns a parameter's name, for errors. around, group: as in broadcast_tensors."""

    def __init__(
        self,
        name_of: Callable[[torch.Tensor], str],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._name_of = name_of
        self._around = around
        self._group = group
        # By the parameter's id: torch's count of changes in place behind the last step, and numbers of a changed one.
        self._versions: dict[int, int] = {}
        self._changed: dict[int, torch.Tensor] = {}

    def note(self, parameters: Iterable[torch.Tensor]) -> None:
        """Takes the parameters for the same on all ranks."""
        self._versions.update((id(parameter), parameter._version) for parameter in parameters)

    def before_step(self, parameters: Iterable[torch.Tensor]) -> None:
        """Measures those that the trial has changed since the last step."""
        for parameter in parameters:
            if self._versions.get(id(parameter), parameter._version) != parameter._version:
                self._changed[id(parameter)] = numbers_of(parameter)

    def send(self, parameters_by_owner: Iterable[tuple[int, Sequence[torch.Tensor]]]) -> None:
        """Gives all ranks of the group the values of the owners, which are ranks; they call it in step. Raises
        GanglineError `training.drift` where the trial has changed a parameter otherwise than on the owner."""
        refusals: list[GanglineError] = []
        for owner, parameters in parameters_by_owner:
            if not parameters:
                continue
            numbers = self._join_numbers(parameters)
            broadcast_tensors([numbers, *parameters], source=owner, around=self._around, group=self._group)
            refusals += self._compare(owner, parameters, numbers)
            self.note(parameters)
        self._changed.clear()
        if refusals:
            # Behind the last message, for which other ranks wait.
            raise refusals[0]

    def _join_numbers(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the numbers of these parameters, which are no numbers (NaN) for unchanged ones. Their type lets them
        travel in the message of the values where these have at least fp32."""
        first = parameters[0]
        dtype = first.dtype if first.dtype in _FINE else torch.float32
        joined = torch.full((len(parameters), 2), math.nan, dtype=dtype, device=first.device)
        for place, parameter in enumerate(parameters):
            if id(parameter) in self._changed:
                joined[place] = self._changed[id(parameter)]
        return joined

    def _compare(self, owner: int, parameters: Sequence[torch.Tensor], numbers: torch.Tensor) -> list[GanglineError]:
        """numbers: the owner's. A rank that has changed nothing does not wait for a device to read them."""
        places = [place for place, parameter in enumerate(parameters) if id(parameter) in self._changed]
        if not places or owner == dist.get_rank():
            return []
        theirs = numbers.tolist()
        ratios = ((place, ratio(self._changed[id(parameters[place])].tolist(), theirs[place])) for place in places)
        return [
            invalid(
                "training.drift",
                f"{self._name_of(parameters[place])} was changed on rank {dist.get_rank()} otherwise than on rank "
                f"{owner}, whose value all ranks get in a step; change parameters in the same way on all ranks, and "
                "draw what changes them from the same seed",
            )
            for place, amount in ratios
            if amount > _TOLERANCE
        ]


@torch.no_grad()
def numbers_of(parameter: torch.Tensor) -> torch.Tensor:
    """Returns the sum and the norm of a parameter."""
    values = torch.view_as_real(parameter) if parameter.is_complex() else parameter
    dtype = values.dtype if values.dtype in _FINE else torch.float32
    return torch.stack([values.sum(dtype=dtype), torch.linalg.vector_norm(values, dtype=dtype)])


def ratio(own: Sequence[float], other: Sequence[float]) -> float:
    """Returns the difference of two parameters by their numbers, relative to the larger norm. 0 where one of them is
    not known or not finite."""
    if not all(map(math.isfinite, (*own, *other))):
        return 0.0
    largest = max(own[1], other[1])
    return max(abs(a - b) for a, b in zip(own, other, strict=True)) / largest if largest else 0.0
