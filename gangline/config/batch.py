"""PURE: how a global batch is split over the slots of a trial. The one place that knows the rule: the check at submit,
the trial context and the messages all come from here."""

from __future__ import annotations

from dataclasses import dataclass

from gangline.errors import invalid


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """per_slot records on each of slots; effective is what one step over all slots takes, never above asked."""

    asked: int
    slots: int
    per_slot: int
    effective: int

    @property
    def warning(self) -> str | None:
        """None when nothing was dropped."""
        if self.effective == self.asked:
            return None
        return (
            f"hyperparameters.global_batch_size: {self.asked} is no multiple of {self.slots} slots; "
            f"training uses {self.effective} ({self.per_slot} on each slot)"
        )


def split_batch(global_batch_size: int, slots: int) -> BatchSplit:
    """Raises GanglineError `config.batch_too_small` when a slot would get nothing."""
    per_slot = global_batch_size // slots
    if per_slot < 1:
        raise invalid(
            "config.batch_too_small",
            f"hyperparameters.global_batch_size: {global_batch_size} is smaller than the {slots} slots of "
            f"resources.slots_per_trial; use at least {slots}, or fewer slots",
        )
    return BatchSplit(global_batch_size, slots, per_slot, per_slot * slots)
