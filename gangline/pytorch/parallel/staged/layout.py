"""Describes nested values by the shapes and types of their tensors, so that ranks can make room for values of another
rank, and compare batches.

A description travels between ranks as JSON. Used by the cut model and by the strategy `pipeline`.
"""

from __future__ import annotations

import json
import math
import sys
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import (
    SUPPORTED_NODES,
    TreeSpec,
    is_namedtuple_class,
    register_pytree_node,
    tree_flatten,
    tree_map,
    tree_unflatten,
    treespec_dumps,
    treespec_loads,
)

from gangline.errors import GanglineError, invalid

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
class KeptValue:
    """A tensor in an attribute or buffer that a module, or one inside of it, has changed."""

    # Of the module that has it, from the other one on.
    path: str
    name: str
    shape: TensorShape
    # Whether a loss of its own could be computed from it: it has a graph, and comes from the module's input.
    has_graph: bool


Kept = tuple[KeptValue, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """A nested value."""

    tree: TreeSpec
    leaves: tuple[Any, ...]  # a TensorShape for each tensor, and plain values as they are
    changes_input: bool = False  # whether the module that returned it has changed its own input in place
    kept: Kept = ()  # what that module has left elsewhere

    @property
    def shapes(self) -> list[TensorShape]:
        return [leaf for leaf in self.leaves if isinstance(leaf, TensorShape)]

    def fill(self, tensors: list[torch.Tensor]) -> Any:
        """Returns the nested value with these tensors, in the order of `shapes`."""
        rest = iter(tensors)
        return tree_unflatten(
            [next(rest) if isinstance(leaf, TensorShape) else leaf for leaf in self.leaves], self.tree
        )


class Absent:
    """Stands in a model's output for an object, which cannot go from rank to rank, and to which each part of the model
    may have added something, as to a cache."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Absent) and self.kind == other.kind

    def __hash__(self) -> int:
        return hash(self.kind)

    def __getattr__(self, name: str) -> Any:
        # Python itself asks for names such as __deepcopy__.
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error()

    def __getitem__(self, key: Any) -> Any:
        raise self._error()

    def __len__(self) -> int:
        raise self._error()

    def __iter__(self) -> Any:
        raise self._error()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._error()

    def _error(self) -> GanglineError:
        return invalid(
            "parallelism.model",
            f"the model's output has a {self.kind}, which cannot go from stage to stage of a pipeline; let the model "
            "return its tensors, alone or in dictionaries, lists and tuples",
        )


def without_objects(value: Any) -> Any:
    """Returns a model's output with Absent in the place of each leaf that is neither a tensor nor a plain value. One
    without any tensor stays as it is, and is refused when it is described."""
    if not tensors_of(value):
        return value
    return tree_map(
        lambda leaf: leaf if isinstance(leaf, (torch.Tensor, *_PLAIN)) else Absent(type(leaf).__name__), value
    )


def describe(value: Any, what: str, *, changes_input: bool = False, kept: Kept = ()) -> Described:
    """Describes a value. what: its place, for the error. changes_input, kept: as in Described. Raises GanglineError
    `parallelism.model` for a value with something else than tensors and plain values in dictionaries, lists and
    tuples."""
    leaves, tree = tree_flatten(value)
    described: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            described.append(shape_of(leaf))
        elif isinstance(leaf, (*_PLAIN, Absent)):
            described.append(leaf)
        else:
            raise invalid(
                "parallelism.model",
                f"{what} returns a {type(leaf).__name__}, which cannot go from stage to stage; return tensors and "
                "plain values, alone or in dictionaries, lists and tuples",
            )
    return Described(tree, tuple(described), changes_input, kept)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Returns the tensors of a nested value, in order."""
    found: list[torch.Tensor] = []
    _add_tensors(value, found)
    return found


def _add_tensors(value: Any, found: list[torch.Tensor]) -> None:
    """Adds them in torch's order. Operations that are watched call it for each of their arguments, and torch's own
    function would also note the structure."""
    kind = type(value)
    if kind is tuple or kind is list:
        for each in value:
            _add_tensors(each, found)
    elif kind is dict:
        for each in value.values():
            _add_tensors(each, found)
    elif isinstance(value, torch.Tensor):
        found.append(value)
    elif kind not in _PLAIN:
        found += [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def shape_of(tensor: torch.Tensor) -> TensorShape:
    return TensorShape(tuple(tensor.shape), tensor.dtype)


def contents_of(value: Any) -> tuple[TreeSpec, list[Any], list[tuple[Any, str, Any]]]:
    """Returns what a nested value consists of, for are_same: its structure, its leaves, and the attributes of objects
    among them. Modules keep states of their own."""
    leaves, tree = tree_flatten(value)
    objects = [leaf for leaf in leaves if hasattr(leaf, "__dict__") and not isinstance(leaf, torch.Tensor | nn.Module)]
    return tree, leaves, [(each, name, entry) for each in objects for name, entry in vars(each).items()]


def are_same(contents: tuple[TreeSpec, list[Any], list[tuple[Any, str, Any]]], value: Any) -> bool:
    """Returns whether a nested value still has the contents that contents_of has returned. What objects compute and
    keep in new attributes, as cached properties, is no change."""
    tree, leaves, attributes = contents
    new_leaves, new_tree = tree_flatten(value)
    if tree != new_tree or any(ours is not theirs for ours, theirs in zip(leaves, new_leaves, strict=True)):
        return False
    return all(vars(each).get(name) is entry for each, name, entry in attributes)


def are_equal(ours: Described, theirs: Described) -> bool:
    """Returns whether two descriptions are alike. NaN is like NaN."""
    is_alike = ours.tree == theirs.tree and len(ours.leaves) == len(theirs.leaves)
    pairs = zip(ours.leaves, theirs.leaves, strict=False)
    return is_alike and all(one == other or (_is_nan(one) and _is_nan(other)) for one, other in pairs)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def signature_of(value: Any) -> tuple[Any, ...]:
    """Returns the shapes and plain values of a nested value in a form that can be compared and hashed."""
    leaves, tree = tree_flatten(value)
    marks = tuple(
        shape_of(leaf)
        if isinstance(leaf, torch.Tensor)
        else (type(leaf).__name__, leaf if isinstance(leaf, _PLAIN) else None)
        for leaf in leaves
    )
    return (str(tree), marks)


def encode(described_by_name: dict[str, Described]) -> bytes:
    """Returns descriptions as JSON. Raises GanglineError `parallelism.model` for a named tuple whose class another rank
    cannot find."""
    entries = {}
    for name, described in described_by_name.items():
        classes = _named_tuples(described.tree)
        for each in classes:
            _register(each)
        tree = _text_of(described.tree)
        if tree is None:
            raise invalid(
                "parallelism.model",
                f"{f'what {name}' if name else 'what a part'} returns cannot go from stage to stage; return tensors "
                "and plain values in lists, tuples, and dictionaries with strings as keys",
            )
        entries[name] = {
            "tree": tree,
            "named_tuples": [[each.__module__, each.__qualname__] for each in classes],
            "changes_input": described.changes_input,
            "kept": [[each.path, each.name, _encode_leaf(each.shape), each.has_graph] for each in described.kept],
            "leaves": [_encode_leaf(leaf) for leaf in described.leaves],
        }
    return json.dumps(entries).encode()


def decode(content: bytes) -> dict[str, Described]:
    """Returns what `encode` has made bytes of, on a rank that runs the same program."""
    described = {}
    for name, entry in json.loads(content).items():
        for module, qualname in entry["named_tuples"]:
            _register(_find_class(module, qualname))
        leaves = tuple(map(_decode_leaf, entry["leaves"]))
        kept = tuple(KeptValue(path, key, _decode_leaf(shape), graph) for path, key, shape, graph in entry["kept"])
        described[name] = Described(treespec_loads(entry["tree"]), leaves, entry["changes_input"], kept)
    return described


def _text_of(tree: TreeSpec) -> str | None:
    """Returns a tree as text; None where that cannot be read again, as for classes of the user's own."""
    try:
        text = treespec_dumps(tree)
        return text if treespec_loads(text) == tree else None
    except (NotImplementedError, TypeError):
        return None


def _encode_leaf(leaf: Any) -> dict[str, Any]:
    if isinstance(leaf, TensorShape):
        return {"shape": list(leaf.shape), "type": str(leaf.dtype).removeprefix("torch.")}
    return {"absent": leaf.kind} if isinstance(leaf, Absent) else {"value": leaf}


def _decode_leaf(leaf: dict[str, Any]) -> Any:
    if "shape" in leaf:
        return TensorShape(tuple(leaf["shape"]), getattr(torch, leaf["type"]))
    return Absent(leaf["absent"]) if "absent" in leaf else leaf["value"]


def _named_tuples(tree: TreeSpec) -> set[type[Any]]:
    own = {tree.context} if tree.type is namedtuple else set()
    return own.union(*map(_named_tuples, tree.children()))


def _register(kind: type[Any]) -> None:
    """Lets torch write the class of a named tuple into the text of a tree. Flattening stays as it is."""
    if kind in SUPPORTED_NODES:
        return
    if _find_class(kind.__module__, kind.__qualname__) is not kind:
        raise _no_class(kind.__qualname__)
    register_pytree_node(
        kind,
        lambda value: (list(value), kind),
        lambda values, _: kind(*values),
        serialized_type_name=f"{kind.__module__}:{kind.__qualname__}",
    )


def _find_class(module: str, qualname: str) -> type[Any]:
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, type) or not is_namedtuple_class(found):
        raise _no_class(qualname)
    return found


def _no_class(qualname: str) -> GanglineError:
    return invalid(
        "parallelism.model",
        f"the named tuple {qualname} cannot go from stage to stage, because another rank cannot find its class; define "
        "the class at the top of a module, or return a plain tuple",
    )
