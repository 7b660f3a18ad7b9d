"""How long a trial shall train, as a script asks for it: the searcher part of the Core API.

The search itself runs in the scheduler, which stops a trial by preempting it. So there is one operation: train up to
searcher.max_length. Owns that operation and who may report on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from gangline.core.distributed import DistributedContext
from gangline.core.train import TrainContext
from gangline.errors import invalid


class SearcherMode(Enum):
    """WorkersAskChief: all ranks iterate in step and get the chief's operation. ChiefOnly: only the chief iterates."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"


class Unit(Enum):
    """What a length counts."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherOperation:
    """length: how far to train, counted from the begin of the trial, in the unit of searcher.max_length."""

    def __init__(self, train: TrainContext, is_chief: bool, length: int) -> None:
        self._train = train
        self._is_chief = is_chief
        self.length = length
        self.is_completed = False

    def report_progress(self, length: float) -> None:
        """Chief only. length: how far training is, in the same unit."""
        self._check("report_progress")
        self._train.report_progress(min(1.0, max(0.0, length / self.length)))

    def report_completed(self, searcher_metric: Any = None) -> None:
        """Chief only, once, after the validation at the end. searcher_metric: accepted, as the validation metrics that
        were reported decide."""
        self._check("report_completed")
        if self.is_completed:
            raise invalid("core.searcher", "report_completed() was called twice for one operation")
        self.is_completed = True
        self._train.report_progress(1.0)

    def _check(self, call: str) -> None:
        if not self._is_chief:
            raise invalid("core.chief_only", f"only rank 0 may call {call}() of a searcher operation")


class SearcherContext:
    """max_length: the experiment's, as a bare number of batches or {epochs: n} and the like; None for a script that
    runs by itself."""

    def __init__(self, distributed: DistributedContext, train: TrainContext, max_length: Any, is_local: bool) -> None:
        self._distributed = distributed
        self._train = train
        self._max_length = max_length
        self._is_local = is_local

    def operations(
        self, searcher_mode: SearcherMode = SearcherMode.WorkersAskChief, auto_ack: bool = True
    ) -> Iterator[SearcherOperation]:
        """Yields the one operation. On the chief it must have been reported as completed when the next one is asked
        for. auto_ack: accepted; see acknowledge_out_of_ops. Off the cluster the length is 1."""
        is_chief = self._distributed.is_chief
        if searcher_mode is SearcherMode.ChiefOnly and not is_chief:
            raise invalid(
                "core.chief_only",
                f"rank {self._distributed.rank} iterates searcher.operations(), but SearcherMode.ChiefOnly lets only "
                "rank 0",
            )
        operation = SearcherOperation(self._train, is_chief, self._length()[1])
        yield operation
        if is_chief and not operation.is_completed:
            raise invalid(
                "core.searcher",
                "the next searcher operation was asked for before report_completed() of this one; call it after the "
                "last validation",
            )

    def acknowledge_out_of_ops(self) -> None:
        """Nothing is left to say: a trial ends when its script does."""

    def get_configured_units(self) -> Unit | None:
        """What lengths count; None off the cluster."""
        return None if self._is_local else self._length()[0]

    def _length(self) -> tuple[Unit, int]:
        value = self._max_length
        if isinstance(value, int) and value > 0:
            return Unit.BATCHES, value
        given = {key: number for key, number in value.items() if number} if isinstance(value, Mapping) else {}
        for key, number in given.items():
            return Unit[key.upper()], int(number)
        if self._is_local:
            return Unit.BATCHES, 1
        raise invalid(
            "core.searcher",
            "searcher.operations() needs a length: set searcher.max_length, as in max_length: {batches: 100}",
        )
