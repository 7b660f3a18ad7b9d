"""The one operation of a search, and who may report on it."""

from __future__ import annotations

from typing import Any

import pytest

from gangline import core
from gangline.core import DistributedContext, SearcherContext, SearcherMode, TensorboardMode, TrainContext, Unit
from gangline.core.link import Link
from gangline.core.tensorboard import TensorboardFolder
from gangline.domain.history import MetricsPoint
from gangline.domain.settled.reading import settle_values
from gangline.domain.settled.searcher import SettledLength
from gangline.errors import GanglineError
from tests.support.world import in_ranks


class _Link(Link):
    def __init__(self) -> None:
        super().__init__()
        self.batches_completed = 10
        self.progress: list[float] = []

    def send_progress(
        self, batches_completed: int, batches_total: int, samples_per_second: float, seconds_per_batch: float
    ) -> None:
        self.progress.append(batches_completed / batches_total)


def _searcher(
    length: Any,
    distributed: DistributedContext | None = None,
    link: Link | None = None,
    is_local: bool = False,
    **section: Any,
) -> SearcherContext:
    distributed = distributed or DistributedContext()
    folder = TensorboardFolder("memory://searcher", "", distributed.rank, TensorboardMode.MANUAL)
    train = TrainContext(distributed, link or Link(), None, folder)
    settled = settle_values({"searcher": {"max_length": length, **section}})
    return SearcherContext(distributed, train, settled.searcher.operation_length, is_local)


@pytest.mark.parametrize(
    ("length", "unit", "number"),
    [(30, Unit.BATCHES, 30), ({"epochs": 5}, Unit.EPOCHS, 5), ({"records": 64}, Unit.RECORDS, 64)],
)
def test_one_operation_of_the_configured_length(length: Any, unit: Unit, number: int) -> None:
    link = _Link()
    searcher = _searcher(length, link=link)
    assert searcher.get_configured_units() is unit
    for operation in searcher.operations():
        assert operation.length == number
        operation.report_progress(number / 2)
        operation.report_completed(0.25)
    assert link.progress == [0.5, 1.0]


def test_the_length_may_be_that_of_a_time_metric() -> None:
    searcher = _searcher(None, time_metric="epochs", max_time=5)
    assert (searcher.get_configured_units(), next(searcher.operations()).length) == (Unit.EPOCHS, 5)
    # A metric of the script is no unit.
    searcher = _searcher(None, time_metric="tokens", max_time=9)
    assert (searcher.get_configured_units(), next(searcher.operations()).length) == (None, 9)
    searcher = _searcher(3, time_metric="epochs", max_time=5)
    assert (searcher.get_configured_units(), next(searcher.operations()).length) == (Unit.BATCHES, 3)


def test_a_validation_carries_the_progress_that_was_reported_before_it() -> None:
    sent: list[tuple[str, float | None]] = []

    class SentLink(Link):
        def send_metrics(self, point: MetricsPoint, *, units: float | None = None, at: float | None = None) -> None:
            sent.append((point.group, units))

    link = SentLink()
    folder = TensorboardFolder("memory://searcher", "", 0, TensorboardMode.MANUAL)
    train = TrainContext(DistributedContext(), link, None, folder)
    searcher = SearcherContext(DistributedContext(), train, SettledLength("epochs", 4), is_local=False)
    operation = next(searcher.operations())
    train.report_validation_metrics(10, {"loss": 1.0})
    operation.report_progress(2)
    train.report_training_metrics(20, {"loss": 1.0})
    train.report_validation_metrics(20, {"loss": 1.0})
    assert sent == [("validation", None), ("training", None), ("validation", 2)]


def test_all_ranks_get_it_and_the_chief_reports() -> None:
    def work(distributed: DistributedContext) -> list[int]:
        lengths = []
        for operation in _searcher(7, distributed).operations():
            lengths.append(operation.length)
            if distributed.is_chief:
                operation.report_completed(1.0)
            else:
                with pytest.raises(GanglineError, match="only rank 0 may call report_progress"):
                    operation.report_progress(3)
        return lengths

    assert in_ranks(2, work) == [[7], [7]]


def test_off_the_cluster_it_has_a_length_of_one() -> None:
    with core.init() as context:
        (length,) = [_complete(operation) for operation in context.searcher.operations()]
    assert length == 1
    assert context.searcher.get_configured_units() is None


def _complete(operation: core.SearcherOperation) -> int:
    operation.report_completed()
    return operation.length


def test_refused() -> None:
    with pytest.raises(GanglineError, match=r"needs a length: set searcher\.max_length"):
        next(_searcher(None).operations())
    with pytest.raises(GanglineError, match=r"before report_completed\(\) of this one"):
        list(_searcher(3).operations())
    operation = next(_searcher(3).operations())
    operation.report_completed()
    with pytest.raises(GanglineError, match="was called twice"):
        operation.report_completed()

    def work(distributed: DistributedContext) -> None:
        if not distributed.is_chief:
            next(_searcher(3, distributed).operations(SearcherMode.ChiefOnly))

    with pytest.raises(GanglineError, match=r"SearcherMode\.ChiefOnly lets only rank 0"):
        in_ranks(2, work)


def test_an_operation_in_batches_marks_its_validations_and_warns_once_past_its_length(
    caplog: pytest.LogCaptureFixture,
) -> None:
    train = TrainContext(
        DistributedContext(), Link(), None, TensorboardFolder("memory://s", "", 0, TensorboardMode.MANUAL)
    )
    searcher = SearcherContext(DistributedContext(), train, SettledLength("batches", 4), is_local=False)
    operation = next(searcher.operations())
    assert train._units == 0.0
    with caplog.at_level("WARNING", "gangline"):
        for batch in (4, 5, 6):
            operation.report_progress(batch)
    [told] = caplog.messages
    assert told.startswith("the operation's length is 4, and 5 is reported: validations past the length choose no best")
