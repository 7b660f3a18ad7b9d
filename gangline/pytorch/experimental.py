"""The switches that Determined keeps in context.experimental, for trials that bring their own way of loading data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.lacking import Lacking

if TYPE_CHECKING:
    from gangline.pytorch.context import PyTorchTrialContext


class PyTorchExperimentalContext(Lacking):
    """takes_any_loader, moves_batches: what was switched, for the trainer."""

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
        """Leaves batches where the loader put them; the trial calls context.to_device."""
        self.moves_batches = False

    def use_amp(self) -> None:
        """As optimizations.mixed_precision fp16. In __init__."""
        self._context.use_amp()

    def reset_reducers(self) -> None:
        """As context.reset_reducers."""
        self._context.reset_reducers()
