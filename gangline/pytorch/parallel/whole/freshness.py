"""Tracks which wrapped models a backward pass may reach, where torch looks for unused parameters or keeps a static
graph. torch then exchanges a wrapper's gradients once for each forward pass. Later gradients stay on their rank without
an error.

Owns the count of forward passes, and the errors for a backward pass whose gradients would not reach the other ranks.
With one model it is enough to know of a forward pass since the last backward pass. With several models, hooks on their
parameters report which models a backward pass really reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from gangline.errors import GanglineError, invalid

_LOST = "so its gradients would stay on this rank"
_CALL_WHOLE = "call the wrapped model itself and not a part of it"
_ADD_UP = "add losses up for one context.backward, or call the wrapped model itself again before the next one"


class FreshForwards:
    """Tracks the models of one trial, numbered as they were added. A model is fresh after a forward pass, and spent
    after the backward pass that reached it."""

    def __init__(self) -> None:
        self._models: list[tuple[str, list[nn.Parameter]]] = []
        self._owners: dict[int, list[int]] = {}
        self._fresh: set[int] = set()
        self._reached: set[int] = set()
        self._spent: set[int] = set()
        self._is_watching = False

    def add(self, name: str, model: nn.Module) -> Callable[[], None]:
        """Adds a model; name: for errors. Returns a function to call at each forward pass that records gradients."""
        index = len(self._models)
        self._models.append((name, [parameter for parameter in model.parameters() if parameter.requires_grad]))
        # A single model needs no hooks. The first model gets its hooks when the second is added.
        if index == 1:
            self._watch(0)
        if index > 0:
            self._watch(index)
        return partial(self._fresh.add, index)

    def renew(self, number: int, model: nn.Module) -> None:
        """Follows a change of the number-th model's trained parameters."""
        self._models[number] = (
            self._models[number][0],
            [parameter for parameter in model.parameters() if parameter.requires_grad],
        )
        if len(self._models) > 1:
            self._watch(number)

    def begin_backward(self, is_first: bool) -> None:
        """Prepares for a backward pass. is_first: whether it is the first of its batch. Raises GanglineError
        `parallelism.backward` where it can reach no model that made a forward pass."""
        if is_first:
            self._spent.clear()
        if self._models and not self._fresh:
            raise _not_again() if not is_first else _not_called()
        if len(self._models) == 1:
            self._fresh.clear()
            return
        self._reached.clear()
        self._is_watching = True

    def end_backward(self) -> None:
        if self._is_watching:
            self._is_watching = False
            self._fresh -= self._reached
            self._spent |= self._reached

    def forget(self) -> None:
        """Forgets forward passes whose gradients are not exchanged: an exchanged backward pass may not rely on them."""
        self._fresh.clear()

    def _watch(self, index: int) -> None:
        for parameter in self._models[index][1]:
            owners = self._owners.setdefault(id(parameter), [])
            if index in owners:
                continue
            owners.append(index)
            if len(owners) == 1:
                parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, owners))  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _on_gradient(self, owners: list[int], parameter: torch.Tensor) -> None:
        if not self._is_watching:
            return
        fresh = self._fresh.intersection(owners)
        if not fresh:
            self._is_watching = False
            name = self._models[owners[0]][0]
            raise _not_again(name) if self._spent.issuperset(owners) else _not_called(name)
        self._reached |= fresh


def _not_again(name: str | None = None) -> GanglineError:
    what = f"reached {name} again" if name else "was called again"
    model = "that model" if name else "a wrapped model"
    return invalid(
        "parallelism.backward",
        f"context.backward {what} without another forward pass of {model} since the last time, {_LOST}; {_ADD_UP}",
    )


def _not_called(name: str | None = None) -> GanglineError:
    reached = f"reached {name}, but that model" if name else "was called, but no wrapped model"
    has_made = "has made no forward pass" if name else "has made a forward pass"
    return invalid(
        "parallelism.backward",
        f"context.backward {reached} {has_made} with gradients in this batch, {_LOST}; {_CALL_WHOLE}",
    )
