"""PURE: splits a global batch over the data replicas of a trial. It is the only place that knows the rule: the check at
submit, the trial context and the messages all use it."""

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
    """The split of a global batch. Each of the replicas takes per_replica records."""

    asked: int
    replicas: int
    per_replica: int
    effective: int  # records of one step over all replicas, never above `asked`
    ranks_per_replica: int = 1

    @property
    def warning(self) -> str | None:
        """Returns the warning about records that the split drops; None when it drops none."""
        if self.effective == self.asked:
            return None
        each = "slot" if self.ranks_per_replica == 1 else "replica"
        return (
            f"hyperparameters.global_batch_size: {self.asked} is no multiple of "
            f"{_count(self.replicas, self.ranks_per_replica)}; training uses {self.effective} ({self.per_replica} on "
            f"each {each})"
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
            odd = next((position for position, candidate in enumerate(candidates) if not _is_whole(candidate)), None)
            return None if odd is None else _no_whole_number(candidates[odd], (*_PLACE, "vals", odd))
        case fraction_range:
            text = f"a range of type {fraction_range.type} draws fractions, but records are counted; use type: int"
            return Complaint("wrong_type", (*_PLACE, "type"), text)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _no_whole_number(value: Any, place: Path) -> Complaint:
    return Complaint("wrong_type", place, f"expected a whole number such as 64, found {describe(value)}")


def split_batch(global_batch_size: int, slots: int, ranks_per_replica: int = 1) -> BatchSplit:
    """Splits a batch. Raises GanglineError `config.batch_too_small` when a replica would get no record."""
    text = too_small(global_batch_size, slots, ranks_per_replica)
    if text is not None:
        raise invalid("config.batch_too_small", f"hyperparameters.global_batch_size: {text}")
    replicas = _replicas(slots, ranks_per_replica)
    per_replica = global_batch_size // replicas
    return BatchSplit(global_batch_size, replicas, per_replica, per_replica * replicas, ranks_per_replica)


def too_small(global_batch_size: int, slots: int, ranks_per_replica: int = 1) -> str | None:
    """Returns why a batch is too small; None when each replica gets a record."""
    replicas = _replicas(slots, ranks_per_replica)
    if global_batch_size >= replicas:
        return None
    return (
        f"{global_batch_size} is smaller than the {_count(replicas, ranks_per_replica)} of resources.slots_per_trial; "
        f"use at least {replicas}, or fewer slots"
    )


def _replicas(slots: int, ranks_per_replica: int) -> int:
    # Too few slots for one replica are refused for themselves, in elastic.py.
    return max(1, slots // ranks_per_replica)


def _count(replicas: int, ranks_per_replica: int) -> str:
    return f"{replicas} slots" if ranks_per_replica == 1 else f"{replicas} replicas of {ranks_per_replica} slots"
