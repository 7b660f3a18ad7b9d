"""Remembers gradients that wait for a step, from the calls of train_batch before it, and sees whether a later backward
pass has added to them.

A mark has the identity and the version of each tensor that holds a parameter's gradient. A backward pass that adds to
a gradient changes its version, or puts another tensor in its place. Marks keep no gradient alive. Used by the gradient
guard.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from gangline.pytorch.parallel.shared.strategy import Places

_Find = Callable[[Iterable[torch.Tensor]], list[Places]]


def gradients_at(places: Places) -> list[torch.Tensor]:
    """Returns the tensors that hold a parameter's gradient now; none, one, or several whose sum it is."""
    gradients = (getattr(owner, name) for owner, name in places)
    return [gradient for gradient in gradients if gradient is not None]


@contextmanager
def taken_away(chosen: Iterable[Places]) -> Iterator[None]:
    """Returns a context in which these parameters have no gradients. Afterwards they have the same tensors again."""
    held = [(owner, name, getattr(owner, name)) for places in chosen for owner, name in places]
    for owner, name, _ in held:
        setattr(owner, name, None)
    try:
        yield
    finally:
        for owner, name, gradient in held:
            setattr(owner, name, gradient)


class GradientMarks:
    """Marks of one trial. find: returns the places of the gradients of some parameters, as Strategy.gradient_places."""

    def __init__(self, find: _Find) -> None:
        self._find = find
        self._by_owner_id: dict[int, _Mark] = {}

    def set(self, parameters: Iterable[torch.Tensor]) -> None:
        """Marks the present gradients of these parameters, in the place of earlier marks."""
        for places in self._find(parameters):
            owner = places[0][0]
            gradients = gradients_at(places)
            if gradients:
                self._by_owner_id[id(owner)] = _Mark(owner, gradients)
            else:
                self._by_owner_id.pop(id(owner), None)

    def drop(self, parameters: Iterable[torch.Tensor]) -> None:
        """Drops the marks of these parameters, after the step that has used their gradients."""
        for places in self._find(parameters):
            self._by_owner_id.pop(id(places[0][0]), None)

    def is_marked(self, places: Places) -> bool:
        """Returns whether a gradient is here that holds a marked one, alone or in a sum."""
        mark = self._by_owner_id.get(id(places[0][0]))
        return mark is not None and mark.owner() is places[0][0] and bool(gradients_at(places))

    def is_unchanged(self, places: Places) -> bool:
        """Returns whether nothing was added to a marked gradient since it was marked."""
        return self._by_owner_id[id(places[0][0])].fits(gradients_at(places))

    @contextmanager
    def following(self) -> Iterator[None]:
        """Returns a context for work of a strategy that averages and moves gradients, and adds none. Marks that fit
        before it fit after it."""
        owners = [owner for mark in self._by_owner_id.values() if (owner := mark.owner()) is not None]
        fitting = [
            places[0][0] for places in self._find(owners) if self.is_marked(places) and self.is_unchanged(places)
        ]
        yield
        self.set(fitting)


class _Mark:
    """Mark of one parameter. owner: refers to the parameter, whose id a later one may get."""

    def __init__(self, owner: torch.Tensor, gradients: list[torch.Tensor]) -> None:
        self.owner = weakref.ref(owner)
        self._gradients = [(weakref.ref(gradient), _version(gradient)) for gradient in gradients]

    def fits(self, gradients: list[torch.Tensor]) -> bool:
        return len(gradients) == len(self._gradients) and all(
            reference() is gradient and version == _version(gradient)
            for gradient, (reference, version) in zip(gradients, self._gradients, strict=True)
        )


def _version(gradient: torch.Tensor) -> Any:
    # torch adds to the local part of a divided gradient, which leaves the version of the DTensor as it is.
    return (gradient._version, gradient._local_tensor._version) if isinstance(gradient, DTensor) else gradient._version
