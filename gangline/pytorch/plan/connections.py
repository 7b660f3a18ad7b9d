"""Finds the outputs of earlier units that later units need besides the output of the unit before them: those that a
pipeline carries over the borders of its parts.

Follows values through the code between units, as gangline.pytorch.parallel.staged.cutting.watch does in a part. There
the real outputs of earlier units are missing; here all of them exist, and nothing is refused. Works on the meta device
and on the CPU. Keeps no tensor alive, so that the bytes that are measured meanwhile stay the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gangline.pytorch.parallel.staged.cutting.call_order import CallOrder
from gangline.pytorch.parallel.staged.cutting.marks import (
    NONE,
    Marks,
    ReadWatch,
    Sources,
    depends_on_values,
    storages_of,
)
from gangline.pytorch.parallel.staged.layout import tensors_of
from gangline.pytorch.parallel.staged.unit import Unit
from gangline.pytorch.plan.model_size import Connection


@dataclass(slots=True)
class _Output:
    """The output of a unit's module."""

    nbytes: int
    storages: list[weakref.ref[torch.UntypedStorage]]
    last: int  # index of the last unit that needs it


class ConnectionWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Follows the outputs of units through the first call of the model.

    A storage has the paths of the modules from whose outputs its values come. The output of a unit's module has its own
    path alone. A module that returns the storage of its input takes it over. What happens inside of units is not
    followed. A module that runs as CallOrder.is_code says is followed like the code between units.

    carry: the paths of the modules whose outputs go along to all later parts, as the option of that name."""

    def __init__(self, model: nn.Module, units: Sequence[Unit], carry: Collection[str] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._model = model
        self._units = units
        self._carry = carry
        self._marks = Marks()
        self._outputs: dict[str, _Output] = {}
        self._newest_unit = -1
        self._order = CallOrder()
        # Whether the module of a unit that runs at present is followed like code.
        self._is_code = False
        # Modules of units that run at present.
        self._depth = 0
        self._is_running = self._has_run = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the model meanwhile."""
        handles = [
            self._model.register_forward_pre_hook(lambda *_: self._begin()),
            self._model.register_forward_hook(lambda _module, _inputs, output: self._end(output)),
        ]
        for place, unit in enumerate(self._units):
            for path in unit.paths:
                module = self._model.get_submodule(path)
                handles += [
                    module.register_forward_pre_hook(
                        lambda _module, args, kwargs, place=place, path=path: self._enter(place, path, (args, kwargs)),
                        with_kwargs=True,
                    ),
                    module.register_forward_hook(lambda _module, _inputs, output, path=path: self._leave(path, output)),
                ]
        try:
            with self, ReadWatch(self._marks, self._need_for_reading):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def found(self, records: int, keepers: Mapping[int, int]) -> tuple[Connection, ...]:
        """Returns the connections that some division carries over a border, in the order of the units. records: of the
        batch. keepers: the units whose passes keep a storage, by its address."""
        made_by = {path: place for place, unit in enumerate(self._units) for path in unit.paths}
        connections = []
        for path, output in self._outputs.items():
            maker = made_by[path]
            # The output of a unit's end crosses the border behind the unit anyway.
            first = maker + 1 if path == self._units[maker].end else maker
            if first < output.last:
                keeper = self._keeper_of(output, keepers)
                connections.append(Connection(path, output.nbytes / records, maker, first, output.last, keeper))
        return tuple(sorted(connections, key=lambda each: each.maker))

    def need(self, sources: Sources, place: int | None = None) -> None:
        """Notes that a unit needs outputs. place: of the unit; None for all units, as each part repeats a decision by
        values."""
        last = len(self._units) - 1 if place is None else place
        for path in sources:
            self._outputs[path].last = max(self._outputs[path].last, last)

    def sources_of(self, value: Any) -> Sources:
        """Returns the paths of the modules from whose outputs these values come."""
        return self._marks.sources_of(value) if self._is_following else NONE

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        sources = self.sources_of((args, kwargs))
        if sources and depends_on_values(func):
            self.need(sources)
        result = func(*args, **kwargs)
        if sources:
            self._marks.note(func, args, kwargs, result, sources)
        return result

    def _need_for_reading(self, sources: Sources) -> None:
        if self._is_following:
            self.need(sources)

    @property
    def _is_following(self) -> bool:
        return self._is_running and not self._depth

    def _begin(self) -> None:
        self._is_running = not self._has_run

    def _end(self, output: Any) -> None:
        self.need(self.sources_of(output), len(self._units) - 1)
        self._is_running, self._has_run = False, True
        self._marks.clear()

    def _enter(self, place: int, path: str, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        if self._depth:
            # A unit's own code runs a module that it has in common with the model.
            self._depth += 1
            return
        self._is_code = self._order.is_code(place, path, self._units[place])
        if self._is_code:
            return
        self._order.note(place, path)
        args, kwargs = inputs
        is_first, self._newest_unit = place > self._newest_unit, max(place, self._newest_unit)
        if is_first and place and self._units[place - 1].end is None:
            # The border behind such a unit is this argument, see staged.cutting.cut.
            args = args[1:]
        self.need(self.sources_of((args, kwargs)), place)
        self._depth += 1

    def _leave(self, path: str, output: Any) -> None:
        if self._is_code:
            self._is_code = False
            return
        self._depth -= 1
        if self._depth or not self._is_following:
            return
        tensors = tensors_of(output)
        storages = list(storages_of(tensors))
        last = len(self._units) - 1 if path in self._carry else 0
        self._outputs[path] = _Output(sum(tensor.nbytes for tensor in tensors), list(map(weakref.ref, storages)), last)
        self._marks.replace(tensors, frozenset((path,)))

    @staticmethod
    def _keeper_of(output: _Output, keepers: Mapping[int, int]) -> int | None:
        """Returns the unit whose passes keep an output; None where none keeps all of it."""
        storages = [reference() for reference in output.storages]
        found = {None if storage is None else keepers.get(storage._cdata) for storage in storages}
        return max((place for place in found if place is not None), default=None) if None not in found else None
