"""Gives a script the length of its training: the searcher part of the Core API.

The search itself runs in the scheduler, which stops a trial by preempting it. So there is one operation: train up to
searcher.max_length, or up to searcher.max_time where that gives the length. Owns that operation and the rule of which
rank may report on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from gangline.core.distributed import DistributedContext
from gangline.core.train import TrainContext
from gangline.errors import invalid

_log = logging.getLogger("gangline")


class SearcherMode(Enum):
    """WorkersAskChief: all ranks iterate in step and get the chief's operation. ChiefOnly: only the chief iterates."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"


class Unit(Enum):
    """The unit in which a length counts."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherOperation:
    """The one operation of a trial. length: how far to train, counted from the begin of the trial, in the unit of
    searcher.max_length."""

    def __init__(self, train: TrainContext, is_chief: bool, length: int) -> None:
        self._train = train
        self._is_chief = is_chief
        self.length = length
        self.is_completed = False
        self._has_warned = False

    def report_progress(self, length: float) -> None:
        """Reports how far training is. Chief only. length: in the unit of the operation's length. The validations that
        follow count as made at this length."""
        self._check("report_progress")
        self._train.note_units(length)
        if length > self.length and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the operation's length is %g, and %g is reported: validations past the length choose no best, and the "
                "cluster ends a trial far beyond it; stop training at operation.length",
                self.length,
                length,
            )
        self._train.report_progress(min(1.0, max(0.0, length / self.length)))

    def report_completed(self, searcher_metric: Any = None) -> None:
        """Reports the end of the operation. Chief only, once, after the last validation. searcher_metric: accepted
        without effect, because the reported validation metrics decide."""
        self._check("report_completed")
        if self.is_completed:
            raise invalid("core.searcher", "report_completed() was called twice for one operation")
        self.is_completed = True
        self._train.report_progress(1.0)

    def _check(self, call: str) -> None:
        if not self._is_chief:
            raise invalid("core.chief_only", f"only rank 0 may call {call}() of a searcher operation")


class SearcherContext:
    """Yields the searcher's operation. max_length: the experiment's, as a bare number of batches or as a mapping like
    {epochs: n}. A key that is no unit names a searcher.time_metric. It is None for a script that sets its own
    length."""

    def __init__(self, distributed: DistributedContext, train: TrainContext, max_length: Any, is_local: bool) -> None:
        self._distributed = distributed
        self._train = train
        self._max_length = max_length
        self._is_local = is_local

    def operations(
        self, searcher_mode: SearcherMode = SearcherMode.WorkersAskChief, auto_ack: bool = True
    ) -> Iterator[SearcherOperation]:
        """Yields the one operation. The chief must have reported it as completed before it asks for the next one.
        auto_ack: accepted; see acknowledge_out_of_ops. Off the cluster the length defaults to 1 batch."""
        is_chief = self._distributed.is_chief
        if searcher_mode is SearcherMode.ChiefOnly and not is_chief:
            raise invalid(
                "core.chief_only",
                f"rank {self._distributed.rank} iterates searcher.operations(), but SearcherMode.ChiefOnly lets only "
                "rank 0",
            )
        unit, length = self._length()
        operation = SearcherOperation(self._train, is_chief, length)
        if is_chief and unit is Unit.BATCHES:
            # Every validation then says that the script has taken its length from here.
            self._train.note_units(0.0)
        yield operation
        if is_chief and not operation.is_completed:
            raise invalid(
                "core.searcher",
                "the next searcher operation was asked for before report_completed() of this one; call it after the "
                "last validation",
            )

    def acknowledge_out_of_ops(self) -> None:
        """Does nothing: a trial ends when its script does."""

    def get_configured_units(self) -> Unit | None:
        """Returns the unit in which lengths count; None off the cluster, and where searcher.time_metric is a metric of
        the script."""
        return None if self._is_local else self._length()[0]

    def _length(self) -> tuple[Unit | None, int]:
        value = self._max_length
        if isinstance(value, int) and value > 0:
            return Unit.BATCHES, value
        given = {key: number for key, number in value.items() if number} if isinstance(value, Mapping) else {}
        for key, number in given.items():
            return Unit.__members__.get(key.upper()), int(number)
        if self._is_local:
            return Unit.BATCHES, 1
        raise invalid(
            "core.searcher",
            "searcher.operations() needs a length: set searcher.max_length, as in max_length: {batches: 100}",
        )


def length_by_unit(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the length of a trial as one number by its unit in small letters, or by the name of another
    time_metric; empty where a script sets its own length."""
    length = length_of(section)
    values = {"batches": length} if isinstance(length, int) else length or {}
    return {unit: value for unit, value in values.items() if value}


def length_of(section: Mapping[str, Any]) -> Any:
    """Returns the length of a trial by the section `searcher`: max_length, or else {time_metric: max_time}; None where
    a script sets its own."""
    time_metric, max_time = section.get("time_metric"), section.get("max_time")
    return section.get("max_length") or ({time_metric: max_time} if time_metric and max_time else None)
