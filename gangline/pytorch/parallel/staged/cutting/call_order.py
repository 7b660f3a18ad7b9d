"""The order in which one run of a model calls the modules of its units. Used by runs of a part, and by plans.

Members of lists run once each, in the order of their definition. A module beside the lists belongs to a unit where it
runs in that order too. Any other call of it is like code between units: an activation that runs behind every layer, a
norm that is defined before the layers and runs behind them, positions that are defined last and computed first.
"""

from __future__ import annotations

from gangline.pytorch.parallel.staged.unit import Unit


class CallOrder:
    """The calls of one run so far."""

    def __init__(self) -> None:
        self._called: set[str] = set()
        self._newest = (0, "")

    def is_code(self, place: int, path: str, unit: Unit) -> bool:
        """Returns whether the next call of a module is like code between units: it is beside the lists, and has run
        before, or its unit does not run at present. place: of its unit."""
        if path == unit.end:
            return False
        has_ended = unit.end is not None and unit.end in self._called
        return path in self._called or has_ended or place not in (self._newest[0], self._newest[0] + 1)

    def note(self, place: int, path: str) -> str | None:
        """Notes a call of a module that is_code says is none, of the unit with this place. Returns why the model is no
        chain, as words after "its forward"; None where it may be one."""
        if path in self._called:
            how = "twice"
        elif place < self._newest[0]:
            how = f"after {self._newest[1]}"
        else:
            self._called.add(path)
            self._newest = place, path
            return None
        return f"calls {path} {how}; let each unit run once, in the order of its definition"
