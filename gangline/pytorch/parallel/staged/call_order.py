"""The order in which one run of a model calls the modules of its units. Used by runs of a part, and by plans.

A module that runs twice would have two outputs, and other parts have one value of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from torch import nn

from gangline.pytorch.parallel.staged.unit import Unit


class CallOrder:
    """The calls of one run so far. Modules without state, see stateless_paths, have no place in the order."""

    def __init__(self) -> None:
        self._called: set[str] = set()
        self._newest = (0, "")

    def has(self, path: str) -> bool:
        return path in self._called

    def is_code(self, place: int, path: str, end: str | None) -> bool:
        """Returns whether the next call of a module without state is like code between units, which belongs to none: it
        has run before, or its own unit does not run at present. Of one run of the whole model. end: of its unit."""
        has_ended = end is not None and self.has(end)
        return self.has(path) or has_ended or place not in (self._newest[0], self._newest[0] + 1)

    def note(self, place: int, path: str, *, is_stateless: bool = False) -> str | None:
        """Notes a call of a module of the unit with this place. Returns why the model is no chain, as words after "its
        forward"; None where it may be one."""
        if is_stateless:
            self._called.add(path)
            return None
        if path in self._called:
            how = "twice"
        elif place < self._newest[0]:
            how = f"after {self._newest[1]}"
        else:
            self._called.add(path)
            self._newest = place, path
            return None
        return f"calls {path} {how}; let each unit run once, in the order of its definition"


def stateless_paths(model: nn.Module, units: Sequence[Unit]) -> frozenset[str]:
    """Returns the modules beside the members of lists that have no parameters and no buffers, as one nn.Dropout that
    runs behind every layer. They are like a function: a part may call them anywhere and as often as it likes."""
    modules = {path: model.get_submodule(path) for unit in units for path in unit.paths if path != unit.end}
    return frozenset(
        path for path, module in modules.items() if not any(True for _ in chain(module.parameters(), module.buffers()))
    )
