"""Describes nested values by the shapes and types of their tensors, so that ranks can make room for values of another
rank, and compare batches.

A description travels between ranks as bytes. Used by the cut model and by the strategy `pipeline`.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from gangline.errors import invalid

_PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def make(self, device: torch.device) -> torch.Tensor:
        """Returns a tensor of zeros."""
        return torch.zeros(self.shape, dtype=self.dtype, device=device)


@dataclass(frozen=True, slots=True)
class Described:
    """A nested value. leaves: a TensorShape for each tensor, plain values as they are. changes_input: whether the
    module that returned it has changed its own input in place."""

    tree: TreeSpec
    leaves: tuple[Any, ...]
    changes_input: bool = False

    @property
    def shapes(self) -> list[TensorShape]:
        return [leaf for leaf in self.leaves if isinstance(leaf, TensorShape)]

    def fill(self, tensors: list[torch.Tensor]) -> Any:
        """Returns the nested value with these tensors, in the order of `shapes`."""
        rest = iter(tensors)
        return tree_unflatten(
            [next(rest) if isinstance(leaf, TensorShape) else leaf for leaf in self.leaves], self.tree
        )


def describe(value: Any, what: str, *, changes_input: bool = False) -> Described:
    """Describes a value. what: its place, for the error. changes_input: as in Described. Raises GanglineError
    `parallelism.model` for a value with something else than tensors and plain values in dictionaries, lists and
    tuples."""
    leaves, tree = tree_flatten(value)
    described: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            described.append(TensorShape(tuple(leaf.shape), leaf.dtype))
        elif isinstance(leaf, _PLAIN):
            described.append(leaf)
        else:
            raise invalid(
                "parallelism.model",
                f"{what} returns a {type(leaf).__name__}, which cannot go from stage to stage; return tensors and "
                "plain values, alone or in dictionaries, lists and tuples",
            )
    return Described(tree, tuple(described), changes_input)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Returns the tensors of a nested value, in order."""
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def contents_of(value: Any) -> list[Any]:
    """Returns what a nested value consists of, to find out whether its lists and dictionaries, or attributes of objects
    in it, have changed: the structure, and by identity the objects inside. Modules keep states of their own."""
    leaves, tree = tree_flatten(value)
    attributes = [
        vars(leaf) for leaf in leaves if hasattr(leaf, "__dict__") and not isinstance(leaf, torch.Tensor | nn.Module)
    ]
    return [tree, *leaves, *(entry for each in attributes for pair in each.items() for entry in pair)]


def are_same(contents: Sequence[Any], others: Sequence[Any]) -> bool:
    """Returns whether two results of contents_of are of the same objects."""
    (tree, *leaves), (other_tree, *other_leaves) = contents, others
    is_alike = tree == other_tree and len(leaves) == len(other_leaves)
    return is_alike and all(ours is theirs for ours, theirs in zip(leaves, other_leaves, strict=True))


def signature_of(value: Any) -> tuple[Any, ...]:
    """Returns the shapes and plain values of a nested value in a form that can be compared and hashed."""
    leaves, tree = tree_flatten(value)
    marks = tuple(
        (tuple(leaf.shape), leaf.dtype)
        if isinstance(leaf, torch.Tensor)
        else (type(leaf).__name__, leaf if isinstance(leaf, _PLAIN) else None)
        for leaf in leaves
    )
    return (str(tree), marks)


def encode(described_by_name: dict[str, Described]) -> bytes:
    """Returns descriptions as bytes for another rank of the trial. Raises GanglineError `parallelism.model` for a named
    tuple whose class another rank cannot import."""
    values = {
        name: (tree_unflatten(described.leaves, described.tree), described.changes_input)
        for name, described in described_by_name.items()
    }
    try:
        return pickle.dumps(values)
    except (AttributeError, pickle.PicklingError) as error:
        raise invalid(
            "parallelism.model",
            f"an output of a unit cannot go from stage to stage ({error}); define its class at the top of a module",
        ) from None


def decode(content: bytes) -> dict[str, Described]:
    """Returns what `encode` has made bytes of."""
    described = {}
    for name, (value, changes_input) in pickle.loads(content).items():  # noqa: S301  from a rank of the same trial
        leaves, tree = tree_flatten(value)
        described[name] = Described(tree, tuple(leaves), changes_input)
    return described
