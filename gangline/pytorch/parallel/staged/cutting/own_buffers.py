"""Watches buffers of the model itself, which the code between units may change in one part and not in another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from gangline.pytorch.parallel.staged.cutting.watch import Versions
from gangline.pytorch.parallel.staged.unit import Unit


class OwnBuffers:
    """The buffers of no unit. has_several_parts: as in CutModel."""

    def __init__(self, model: nn.Module, units: Sequence[Unit], *, has_several_parts: bool) -> None:
        self.has_several_parts = has_several_parts
        modules = [model.get_submodule(path) for unit in units for path in unit.paths]
        of_units = {id(buffer) for module in modules for buffer in module.buffers()}
        # Name, module, and name inside the module.
        self._places = [
            (name, model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2])
            for name, buffer in model.named_buffers()
            if id(buffer) not in of_units
        ]

    def note(self, versions: Versions) -> None:
        """Called before each unit. The first call counts."""
        if not versions.has_buffers:
            versions.note_buffers(self._now())

    def conflict(self, versions: Versions) -> str | None:
        """Returns why a run cannot change its buffers as it has done, as words after "its forward"; None for no
        change."""
        name = versions.changed_buffer(self._now())
        if name is None:
            return None
        if self.has_several_parts:
            return (
                f"changes its buffer {name}, which each of the parts on a rank would do; change it inside of a unit, "
                "or use a schedule with one part on each rank, as 1F1B"
            )
        return (
            f"changes its buffer {name} between its units, which one part alone would see; change it before the first "
            "unit, or inside of a unit"
        )

    def _now(self) -> dict[str, torch.Tensor | None]:
        """Returns the buffers by name. The model may have given a name another tensor."""
        return {name: module._buffers[key] for name, module, key in self._places}
