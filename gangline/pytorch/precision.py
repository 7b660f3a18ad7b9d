"""Mixed precision: the type in which forward passes run, and the scaler that fp16 needs.

Owns the autocast region around the trial's train_batch and evaluate_batch. A trial that opens torch.autocast by itself
and wraps its own scaler needs none of this.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gangline.errors import invalid

_NOTHING: AbstractContextManager[None] = nullcontext()
_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Precision:
    """Makes the contexts of one trial's precision. kind: fp16, bf16, or None for the model's own type."""

    def __init__(self, device: torch.device, kind: str | None) -> None:
        self._device = device
        self.kind = kind

    def autocast(self) -> AbstractContextManager[Any]:
        """Returns the context of a forward pass, which does nothing without mixed precision."""
        return _NOTHING if self.kind is None else torch.autocast(self._device.type, dtype=_TYPES[self.kind])

    def without_autocast(self) -> AbstractContextManager[Any]:
        """Returns a context for code inside a forward pass's region that must not be cast: backward passes and
        updates."""
        return _NOTHING if self.kind is None else torch.autocast(self._device.type, enabled=False)

    def make_scaler(self, **options: Any) -> torch.amp.GradScaler | None:
        """Returns a scaler for fp16, which keeps small gradients from vanishing; else None. bf16 has the range of full
        precision."""
        return torch.amp.GradScaler(self._device.type, **options) if self.kind == "fp16" else None


def check_one_scaler(has_own: bool, has_wrapped: bool) -> None:
    """Raises GanglineError `pytorch.two_scalers`. has_own: the context made one for fp16. has_wrapped: the trial
    wrapped one."""
    if has_own and has_wrapped:
        raise invalid(
            "pytorch.two_scalers",
            "the trial wraps a GradScaler, but mixed_precision fp16 brings its own; drop wrap_scaler and the scaling "
            "of the loss, or set optimizations.mixed_precision to O0",
        )
