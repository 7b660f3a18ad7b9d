"""Follows the parameters that a model had before it was divided, because fully_shard puts others in their place.

A model that keeps one in a list or a closure would go on with it: no optimizer steps it, and torch reports no error. A
second model that shares one would be trained apart. Hooks that a trial has registered on one would never run. Used by
the strategies that divide models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakTensorKeyDictionary

from gangline.errors import invalid
from gangline.pytorch.parallel.shared.ownership import class_name

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class Originals:
    """Keeps the names of the original parameters of one trial's models, as long as something refers to them."""

    def __init__(self, strategy: str) -> None:
        self._strategy = strategy
        self._names: Any = WeakTensorKeyDictionary()

    def check(self, model: nn.Module) -> None:
        """Raises GanglineError `parallelism.model` for a model with a parameter of a model that is divided already.
        Called before the model is divided."""
        for name, parameter in model.named_parameters():
            if parameter in self._names:
                raise invalid(
                    "parallelism.model",
                    f"{class_name(model)}.{name} is {self._names[parameter]} of a model that was wrapped before, and "
                    f"{self._strategy} would train them apart; put both models into one and wrap that, or use ddp or "
                    "zero1",
                )

    def follow(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Returns the parameters of a model by name. Called before the model is divided."""
        return {name: parameter for name, parameter in model.named_parameters() if not isinstance(parameter, DTensor)}

    def replace(self, model: nn.Module, originals: dict[str, nn.Parameter]) -> None:
        """Gives the hooks of the original parameters to the divided ones, and refuses gradients of the originals from
        now on. Called when the model is divided."""
        divided = dict(model.named_parameters())
        for name, original in originals.items():
            for kind in _HOOKS:
                # The same dictionary: a handle removes its hook from it.
                setattr(divided[name], kind, getattr(original, kind))
                setattr(original, kind, None)
            self._names[original] = f"{class_name(model)}.{name}"
            if original.requires_grad:
                original.register_post_accumulate_grad_hook(self._refuse)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _refuse(self, original: torch.Tensor) -> None:
        raise invalid(
            "parallelism.old_parameter",
            f"{self._names[original]} was used as it was before context.wrap_model, and {self._strategy} has put "
            "another parameter in its place; take it from its module in each pass, and not from a list or a variable "
            "that was made before, or use ddp or zero1",
        )
