"""Checks that every gradient an optimizer steps with comes from a backward pass, where a model's parameters are
divided.

A gradient that a trial sets by itself belongs to one rank's records. The strategies that divide parameters cannot
average it. A trial sees whole parameters between forward and backward pass, and no optimizer has those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from gangline.errors import invalid
from gangline.pytorch.parallel.divided.whole_parameter import WholeParameters
from gangline.pytorch.parallel.shared.ownership import WrappedModels


class GradientOrigins:
    """Records the reduced gradients of one trial. groups: returns torch's records of parameters that are gathered
    together. wholes: the parameters that are not divided."""

    def __init__(
        self,
        strategy: str,
        groups: Callable[[], Sequence[Any]],
        models: WrappedModels,
        wholes: WholeParameters,
    ) -> None:
        self._strategy = strategy
        self._groups = groups
        self._models = models
        self._wholes = wholes
        # The parameters, with the value None. A copy of a model that a trial drops goes with its gradients.
        self._reduced = WeakIdKeyDictionary()

    def note(self, parameters: Iterable[torch.Tensor]) -> None:
        """Records that the gradients of these parameters are being reduced over the ranks."""
        for parameter in parameters:
            self._reduced[parameter] = None

    def forget_cleared(self) -> None:
        """Drops the records of parameters without a gradient, which need another reduction. Called before a forward
        pass."""
        for parameter in list(self._reduced):
            if parameter.grad is None:
                del self._reduced[parameter]

    def check(self, optimizer: Optimizer) -> None:
        """Checks an optimizer before its step. Raises GanglineError `parallelism.own_gradients`."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        odd = next(
            (parameter for parameter in parameters if parameter.grad is not None and parameter not in self._reduced),
            None,
        )
        if odd is None:
            stepped = set(parameters)
            odd = next((parameter for parameter in self._set_on_whole() if parameter in stepped), None)
        if odd is not None:
            # The error names the sharded parameter, but a model that is unsharded has the whole parameter in its place.
            for group in self._groups():
                group.reshard()
            self._wholes.close()
            raise invalid(
                "parallelism.own_gradients",
                f"{self._models.describe(odd)} has a gradient that no backward pass has made, and {self._strategy}, "
                "which divides parameters, does not average it over the ranks; call context.backward with a loss, or "
                "use ddp or zero1",
            )

    def _set_on_whole(self) -> Iterable[torch.Tensor]:
        """Yields the parameters whose whole tensor has a gradient. The whole tensor exists after a forward pass. A
        backward pass leaves no gradient on it at the end of a step."""
        for group in self._groups():
            for fsdp_parameter in group.fsdp_params:
                whole_parameter = getattr(fsdp_parameter, "_unsharded_param", None)
                if whole_parameter is not None and whole_parameter.grad is not None:
                    yield fsdp_parameter.sharded_param
        yield from self._wholes.with_own_gradient()
