"""Parameters that a part of a pipeline uses outside of their module: all ranks of the replica have their values.

Owns the list of them. Their holders step them and send the others the new values. All ranks of a replica call the
methods in step. Made by the strategy `pipeline` with its parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import nn

from gangline.pytorch.parallel.staged.gradient import join_gradients
from gangline.pytorch.parallel.staged.group import Replicas
from gangline.pytorch.parallel.staged.holding import Holding


class Borrowed:
    """The borrowed parameters of one model. holding, where a method takes it: the present one."""

    def __init__(self, replicas: Replicas, device: torch.device) -> None:
        self._replicas = replicas
        self._device = device
        self._parameters: dict[int, nn.Parameter] = {}

    @property
    def ids(self) -> Collection[int]:
        return self._parameters.keys()

    def take(self, parameter: nn.Parameter, holding: Holding) -> None:
        """Gives this rank the value of a parameter."""
        value = torch.empty_like(parameter, device=self._device) if parameter.is_meta else parameter.detach()
        self._replicas.share([value], holding.holders(parameter)[0])
        if parameter.is_meta:
            holding.take(parameter, value)
        self._parameters[id(parameter)] = parameter

    def give_back(self, holding: Holding) -> None:
        """Drops all values, which are found again where parts begin elsewhere."""
        for parameter in self._parameters.values():
            if self._replicas.place not in holding.holders(parameter):
                holding.drop(parameter)
        self._parameters.clear()

    def join_gradients(self, stepped: Iterable[nn.Parameter], holding: Holding) -> None:
        """Adds up the gradients of those among an optimizer's parameters. Only the holders keep them."""
        borrowed = self._trained_among(stepped)
        join_gradients(borrowed, self._replicas.inside, is_mean=False)
        for parameter in borrowed:
            if self._replicas.place not in holding.holders(parameter):
                parameter.grad = None

    @torch.no_grad()
    def send(self, stepped: Iterable[nn.Parameter], holding: Holding) -> None:
        """Sends the new values of those among an optimizer's parameters."""
        for parameter in self._trained_among(stepped):
            self._replicas.share([parameter], holding.holders(parameter)[0])

    def _trained_among(self, stepped: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        ids = {id(parameter) for parameter in stepped}
        return [value for key, value in self._parameters.items() if key in ids and value.requires_grad]
