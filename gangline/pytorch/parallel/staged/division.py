"""Divides the step of each stage over the replicas of a pipeline: `replicas: zero2`.

Each parameter has one owner among the replicas. Before a step its gradient goes to the owner alone, and the other
replicas free theirs. The owner keeps the optimizer's state, steps the parameter and sends the new value. Gradients are
whole while the microbatches of a batch run, because the replicas exchange them once for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from gangline.pytorch.parallel.shared.broadcast import average_tensors_on
from gangline.pytorch.parallel.shared.even_division import divide
from gangline.pytorch.parallel.shared.owner_values import OwnerValues
from gangline.pytorch.parallel.staged.gradient import make_gradients_alike
from gangline.pytorch.parallel.staged.group import Replicas
from gangline.pytorch.parallel.staged.holding import Holding


class ReplicaDivision:
    """Owners of one model's parameters among its replicas, the same on all ranks. They stay when the model is divided
    anew over the stages. Its methods are called in step by the ranks with the same place in all replicas. name_of:
    returns a parameter's name, for errors."""

    def __init__(self, holding: Holding, replicas: Replicas, name_of: Callable[[torch.Tensor], str]) -> None:
        self._replicas = replicas
        self._values = OwnerValues(name_of, group=replicas.across)
        self._owner_by_id: dict[int, int] = {}
        by_places: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for parameter in holding.parameters():
            by_places.setdefault(holding.holders(parameter), []).append(parameter)
        for parameters in by_places.values():
            owners = divide([parameter.numel() for parameter in parameters], replicas.count)
            for parameter, owner in zip(parameters, owners, strict=True):
                self._owner_by_id[id(parameter)] = owner

    def is_own(self, parameter: nn.Parameter) -> bool:
        """Returns whether this replica steps a parameter."""
        return self._owner_by_id[id(parameter)] == self._replicas.index

    def begin(self, parameters: Iterable[nn.Parameter]) -> None:
        """Notes the parameters of an optimizer as they are before the first step."""
        self._values.note(parameters)

    def join_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Averages gradients over the replicas. Afterwards the owners alone have them."""
        assert self._replicas.across is not None
        self._values.before_step(parameters)
        chosen = make_gradients_alike(parameters, self._replicas.across)
        for owner, members in self._by_owner(chosen):
            gradients = [parameter.grad for parameter in members if parameter.grad is not None]
            average_tensors_on(self._rank_of(owner), gradients, self._replicas.across)
        for parameter in chosen:
            if not self.is_own(parameter):
                parameter.grad = None

    def spread(self, parameters: Sequence[nn.Parameter]) -> None:
        """Gives all replicas the values of the owners."""
        self._values.send((self._rank_of(owner), members) for owner, members in self._by_owner(parameters))

    def _by_owner(self, parameters: Iterable[nn.Parameter]) -> list[tuple[int, list[torch.Tensor]]]:
        found: dict[int, list[torch.Tensor]] = {owner: [] for owner in range(self._replicas.count)}
        for parameter in parameters:
            found[self._owner_by_id[id(parameter)]].append(parameter)
        return list(found.items())

    def _rank_of(self, owner: int) -> int:
        return owner * self._replicas.stages + self._replicas.place
