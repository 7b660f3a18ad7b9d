"""Finds state that a part changes and that other parts have as well: each slot has a copy of its own, and the copies
would drift apart without an error.

State is what differs from run to run: numbers, texts, states of generators, entries of containers, and tensors that
change in place. A part runs twice for it, as what is the same after both runs is none, like a table that is made once.
Values that a run puts in the place of others are none either. Used by runs that find out shapes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from gangline.pytorch.parallel.staged.cutting.model_state import Content, ModelState, Owner

_PLAIN = (int, float, complex, bool, str, bytes, type(None))
# Before the text of a float. Parts may have changed one to different values, as the time of a call.
_FLOAT = "float "
# Before the digest of a tensor that was put in the place of another value.
_TENSOR = "tensor "
_MISSING = "nothing"

# What an object has by now where that differs from before: texts by the names of its entries.
_Entries = dict[str, str]


class StateChanges:
    """Compares the state after runs of one part. state: as before them, with the owners of objects. has_several_parts:
    whether this rank has several parts, each of which runs the model's own code and the hooks of units."""

    def __init__(self, model: nn.Module, state: ModelState, *, has_several_parts: bool) -> None:
        self._has_several_parts = has_several_parts
        # Those of the model itself are in own_buffers.
        self._buffers = {id(buffer) for buffer in model.buffers()}
        self._contents = [content for content in state.contents if content.kind.write is not None]
        self._tensors = state.tensors
        self._first = self._now()

    @property
    def is_any(self) -> bool:
        """Whether the first run has changed something that other parts may have."""
        return bool(self._first)

    def compare(self, replaced: dict[str, bool]) -> tuple[str | None, dict[str, str]]:
        """Called after the second run. Returns why the part cannot change its state as it has done, as words after
        "whose forward", None where it can; and what the model's own code has changed, for `conflict_between`. replaced:
        names that earlier parts of this rank have given other tensors, with whether these differ from run to run; gets
        those of this part."""
        second = self._now()
        own: dict[str, str] = {}
        for number, (place, owners, entries) in self._first.items():
            later = second[number][2] if number in second else {}
            for name in {**entries, **later}:
                value = entries.get(name, _MISSING)
                is_changed, key = later.get(name, _MISSING) != value, ".".join(filter(None, (place, name)))
                is_tensor = value.startswith(_TENSOR)
                if is_tensor:
                    is_changed_here, is_changed = is_changed, key in replaced and (replaced[key] or is_changed)
                    replaced[key] = is_changed_here
                if not is_changed:
                    continue
                text = self._conflict(f"{place}.{name}" if place and name.isidentifier() else place or name, owners)
                if text is not None:
                    return text, {}
                if not is_tensor and any(owner.part is None for owner in owners):
                    own[key] = _FLOAT if value.startswith(_FLOAT) else value
        return None, own

    def _conflict(self, place: str, owners: list[Owner]) -> str | None:
        by_part = {owner.part: owner.path for owner in owners if owner.part is not None}
        if len(by_part) > 1:
            return (
                f"changes {place}, which {' and '.join(by_part.values())} have in common, and each stage has a copy of "
                "its own; give each of them its own, put them into one stage with parallelism.split, or use ddp"
            )
        if not self._has_several_parts or any(owner.part is not None and not owner.is_hook for owner in owners):
            return None
        where = f"in a hook of {next(iter(by_part.values()))}" if by_part else "between its units"
        return (
            f"changes {place} {where}, which each of the parts on a rank would do; change it inside of a unit, or use "
            "a schedule with one part on each rank, as 1F1B"
        )

    def _now(self) -> dict[int, tuple[str, list[Owner], _Entries]]:
        found: dict[int, tuple[str, list[Owner], _Entries]] = {}
        for number, content in enumerate(self._contents):
            if self._is_relevant(content.owners):
                entries = _changed_entries(content, has_tensors=self._runs_twice(content.owners))
                if entries:
                    found[number] = (content.place, content.owners, entries)
        for number, (place, tensor, owners) in enumerate(self._tensors, len(self._contents)):
            is_own_buffer = id(tensor.tensor) in self._buffers and all(owner.part is None for owner in owners)
            is_state = not isinstance(tensor.tensor, nn.Parameter) and not is_own_buffer
            if is_state and tensor.is_written and self._is_relevant(owners):
                found[number] = (place, owners, {"": _digest(tensor.tensor.detach().cpu())})
        return found

    def _is_relevant(self, owners: list[Owner]) -> bool:
        """Returns whether others than the units of one part have an object, or each part on this rank may change it.
        What the model is called with is there for one call."""
        if any(owner.is_caller for owner in owners):
            return False
        parts = {owner.part for owner in owners}
        return len(parts) > 1 or None in parts or self._runs_twice(owners)

    def _runs_twice(self, owners: list[Owner]) -> bool:
        """Returns whether code that changes an object is no unit's own, and each of several parts on this rank runs
        it."""
        return self._has_several_parts and all(owner.part is None or owner.is_hook for owner in owners)


def conflict_between(earlier: dict[str, str], later: dict[str, str]) -> str | None:
    """Returns why two parts cannot have changed the model's own state as they have done, as words after "whose
    forward"; None where they have done the same. earlier, later: from `StateChanges.compare`."""
    for place in {**later, **earlier}:
        if earlier.get(place) != later.get(place):
            return (
                f"changes {place} between its units, which not all parts would see; change it before the first unit, "
                "or inside of a unit"
            )
    return None


def _changed_entries(content: Content, *, has_tensors: bool) -> _Entries:
    now = content.kind.read(content.holder)
    if content.kind.is_state:
        before, after = {"": _digest(content.content)}, {"": _digest(now)}
    else:
        count = len(content.content)
        before, after = dict(_entries(content.content, count)), dict(_entries(now, count))
    changed = {
        name: after.get(name, _MISSING)
        for name in {**before, **after}
        if after.get(name, _MISSING) != before.get(name, _MISSING)
    }
    if has_tensors and isinstance(now, dict):
        known = content.content
        changed |= {
            str(name): _TENSOR + _digest(value.detach().cpu())
            for name, value in now.items()
            if isinstance(value, torch.Tensor) and known.get(name) is not value
        }
    return changed


def _entries(value: Any, count: int) -> Iterator[tuple[str, str]]:
    """Yields the plain values in a content by their names. count: of entries that a list had before. Floats behind
    these are a log, which is only looked at."""
    if isinstance(value, dict):
        yield from ((str(name), _text(entry)) for name, entry in value.items() if isinstance(entry, _PLAIN))
    elif isinstance(value, set):
        yield "", repr(sorted(repr(entry) for entry in value if isinstance(entry, _PLAIN)))
    else:
        for place, entry in enumerate(value):
            if isinstance(entry, _PLAIN) and (place < count or not isinstance(entry, float)):
                yield str(place), _text(entry)


def _text(value: Any) -> str:
    return f"{_FLOAT}{value!r}" if isinstance(value, float) else repr(value)


def _bytes_of(array: Any) -> Any:
    """Returns what tells an array from others; repr leaves out most of a long one."""
    content = array.tolist() if array.dtype.hasobject else array.tobytes()
    return array.dtype.str, array.shape, content


def _digest(value: Any) -> str:
    """Returns a text for a tensor, or for the state of a generator. It is the same in all processes."""
    if not isinstance(value, torch.Tensor):
        return hashlib.sha256(repr(tree_map_only(np.ndarray, _bytes_of, value)).encode()).hexdigest()
    if value.layout is not torch.strided:
        value = value.to_dense()
    return hashlib.sha256(value.reshape(-1).view(torch.uint8).numpy()).hexdigest()
