"""Finds tensors that units and hooks collect in lists, dictionaries and objects, as losses and activations.

train_batch looks for them on the slot of the last part. What a hook of a unit collects is there, because hooks run
around placeholders too, and the outputs that it keeps go along. What comes from inside of a unit is not there. Tensors
in attributes and buffers of a unit's modules are in kept_values. Used by runs that find out shapes.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from gangline.pytorch.parallel.staged.cutting.model_state import Content, ModelState
from gangline.pytorch.parallel.staged.layout import tensors_of


class Collected:
    """What one run of a part has collected. state: as before it."""

    def __init__(self, model: nn.Module, state: ModelState) -> None:
        registered = {id(each) for module in model.modules() for each in (module._buffers, module._parameters)}
        contents = (each for each in state.contents if not each.kind.is_state and id(each.holder) not in registered)
        self._found = [(content, name, tensor) for content in contents for name, tensor in _new_tensors(content)]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [tensor for _, _, tensor in self._found]

    def places(self) -> list[str]:
        """Returns the names of what units and their hooks have put somewhere."""
        return sorted({_name(content, name) for content, name, _ in self._found if _is_of_unit(content)})

    def conflict(self, is_computed: Callable[[torch.Tensor], bool]) -> str | None:
        """Returns why a part that is not the last one cannot collect what it has collected, as words after "whose
        forward"; None where it can. is_computed: whether a unit has computed a value from its inputs."""
        for content, name, tensor in self._found:
            path = next((each.path for each in content.owners if each.part is not None and not each.is_hook), None)
            if path is not None and tensor.grad_fn is not None and is_computed(tensor):
                return (
                    f"keeps a value from inside of {path} in {_name(content, name)}, which the stage of the loss does "
                    f"not have; let {path} return it beside its output, add such values up in the model's forward and "
                    "let the model return the sum, detach it where it is only looked at, or use ddp"
                )
        return None

    def growing(self) -> list[Growing]:
        """Returns the lists that have got values with a graph."""
        lists = {
            id(content.holder): Growing(content.holder, _name(content, ""))
            for content, _, tensor in self._found
            if isinstance(content.holder, list | deque) and tensor.grad_fn is not None
        }
        return list(lists.values())


class Growing:
    """A list that each run of the last part adds to. train_batch has to take the values out before the next one."""

    def __init__(self, values: Any, place: str) -> None:
        self.place = place
        self._values = values
        self._newest: weakref.ref[torch.Tensor] | None = None

    def note(self) -> None:
        """Called after a run."""
        tensors = tensors_of(list(self._values))
        self._newest = weakref.ref(tensors[-1]) if tensors else None

    @property
    def is_left(self) -> bool:
        """Whether the values of the newest run are still there."""
        newest = self._newest() if self._newest is not None else None
        return newest is not None and any(each is newest for each in tensors_of(list(self._values)))


def _new_tensors(content: Content) -> Iterator[tuple[str, torch.Tensor]]:
    now, is_module = content.kind.read(content.holder), isinstance(content.holder, nn.Module)
    if isinstance(now, dict):
        known = content.content
        values = [(str(name), value) for name, value in now.items() if name not in known or known[name] is not value]
    else:
        before = {id(value) for value in content.content}
        values = [("", value) for value in now if id(value) not in before]
    for name, value in values:
        if not (is_module and isinstance(value, torch.Tensor) and _is_of_unit(content)):
            yield from ((name, tensor) for tensor in tensors_of(value) if not isinstance(tensor, nn.Parameter))


def _is_of_unit(content: Content) -> bool:
    return any(owner.part is not None for owner in content.owners)


def _name(content: Content, name: str) -> str:
    return f"{content.place}.{name}" if content.place and name.isidentifier() else content.place or name
