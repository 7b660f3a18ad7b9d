"""Tensors in the place of outputs that a part does not have."""

from __future__ import annotations

import torch

from gangline.pytorch.parallel.staged.layout import TensorShape


class Placeholders:
    """Tensors that no result depends on. They are not a number, so that a wrong use that was not found shows."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._shared: dict[TensorShape, torch.Tensor] = {}

    def make(self, shape: TensorShape, *, is_own: bool) -> torch.Tensor:
        """Returns a placeholder. is_own: with a storage of its own, so that its module is known; others of the same
        shape share one."""
        if is_own:
            return self._make(shape)
        if shape not in self._shared:
            with torch.inference_mode(False):
                self._shared[shape] = self._make(shape)
        return self._shared[shape].detach()

    def _make(self, shape: TensorShape) -> torch.Tensor:
        placeholder = shape.make(self._device)
        return placeholder.fill_(torch.nan) if placeholder.is_floating_point() else placeholder
