"""Gives a script the length of its training: the searcher part of the Core API.

The search itself runs in the scheduler, which stops a trial by preempting it. So there is one operation: train up to
searcher.max_length, or up to searcher.max_time where that gives the length. Owns that operation and the rule of which
rank may report on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from enum import Enum
from typing import Any

from gangline.core.distributed import DistributedContext
from gangline.core.train import TrainContext
from gangline.domain.settled.searcher import SettledLength
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


def unit_of(length: SettledLength | None) -> Unit | None:
    """Returns the unit of a length; None without one, and for a metric of the script."""
    return Unit.__members__.get(length.unit.upper()) if length is not None else None


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
    """Yields the searcher's operation. length: the experiment's; None for a script that sets its own. A name that is no
    unit is a searcher.time_metric."""

    def __init__(
        self, distributed: DistributedContext, train: TrainContext, length: SettledLength | None, is_local: bool
    ) -> None:
        self._distributed = distributed
        self._train = train
        self._configured = length
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
        if self._configured is not None and self._configured.units > 0:
            return unit_of(self._configured), self._configured.units
        if self._is_local:
            return Unit.BATCHES, 1
        raise invalid(
            "core.searcher",
            "searcher.operations() needs a length: set searcher.max_length, as in max_length: {batches: 100}",
        )
