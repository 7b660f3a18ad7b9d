"""PyTorchExperimentalContext: the switches of Determined's context.experimental, for trials with their own data
loading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.lacking import Lacking

if TYPE_CHECKING:
    from gangline.pytorch.context import PyTorchTrialContext


class PyTorchExperimentalContext(Lacking):
    """Keeps the experimental switches. takes_any_loader, moves_batches: their state, for the trainer."""

    lacks = ("reduce_metrics", "wrap_reducer")

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context
        self.takes_any_loader = False
        self.moves_batches = True

    def disable_dataset_reproducibility_checks(self) -> None:
        """Lets the build_ methods return a torch DataLoader. The trial then divides the data over the ranks, shuffles
        by its seed and skips context.get_initial_batch() batches by itself."""
        self.takes_any_loader = True

    def disable_auto_to_device(self) -> None:
        """Leaves batches on the loader's device; the trial calls context.to_device."""
        self.moves_batches = False

    def use_amp(self) -> None:
        """Turns on mixed precision as optimizations.mixed_precision fp16 does. Called in __init__."""
        self._context.use_amp()

    def reset_reducers(self) -> None:
        """Resets all reducers, as context.reset_reducers does."""
        self._context.reset_reducers()
