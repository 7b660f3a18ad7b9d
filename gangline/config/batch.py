"""PURE: splits a global batch over the slots of a trial. It is the only place that knows the rule: the check at submit,
the trial context and the messages all use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gangline.config.complaint import Complaint, Path
from gangline.config.hyperparameter import Categorical, Const, Int, is_nested, parse_range
from gangline.config.section import describe
from gangline.errors import invalid

NAME = "global_batch_size"
_PLACE: Path = ("hyperparameters", NAME)


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """The split of a global batch. Each of the slots takes per_slot records. effective: the records of one step over
    all slots, never above asked."""

    asked: int
    slots: int
    per_slot: int
    effective: int

    @property
    def warning(self) -> str | None:
        """Returns the warning about records that the split drops; None when it drops none."""
        if self.effective == self.asked:
            return None
        return (
            f"hyperparameters.global_batch_size: {self.asked} is no multiple of {self.slots} slots; "
            f"training uses {self.effective} ({self.per_slot} on each slot)"
        )


def find_bad_batch_size(hyperparameters: Mapping[str, Any]) -> Complaint | None:
    """Refuses a global_batch_size that is no whole number, or a range from which a search could draw one that is
    not."""
    if NAME not in hyperparameters:
        return None
    value = hyperparameters[NAME]
    if is_nested(value):
        return _no_whole_number(value, _PLACE)
    match parse_range(value):
        case Int():
            return None
        case Const(val=only):
            place = _PLACE if value is only else (*_PLACE, "val")
            return None if _is_whole(only) else _no_whole_number(only, place)
        case Categorical(vals=candidates):
            odd = next((position for position, one in enumerate(candidates) if not _is_whole(one)), None)
            return None if odd is None else _no_whole_number(candidates[odd], (*_PLACE, "vals", odd))
        case other:
            text = f"a range of type {other.type} draws fractions, but records are counted; use type: int"
            return Complaint("wrong_type", (*_PLACE, "type"), text)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _no_whole_number(value: Any, place: Path) -> Complaint:
    return Complaint("wrong_type", place, f"expected a whole number such as 64, found {describe(value)}")


def split_batch(global_batch_size: int, slots: int) -> BatchSplit:
    """Splits a batch. Raises GanglineError `config.batch_too_small` when a slot would get no record."""
    per_slot = global_batch_size // slots
    if per_slot < 1:
        raise invalid(
            "config.batch_too_small",
            f"hyperparameters.global_batch_size: {global_batch_size} is smaller than the {slots} slots of "
            f"resources.slots_per_trial; use at least {slots}, or fewer slots",
        )
    return BatchSplit(global_batch_size, slots, per_slot, per_slot * slots)
