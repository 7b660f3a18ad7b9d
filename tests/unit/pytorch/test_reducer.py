"""Metric reducers: what all ranks saw becomes one number, for training and for validation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gangline import pytorch
from gangline.core import DistributedContext
from gangline.errors import GanglineError
from gangline.pytorch.metrics.reducer import FunctionReducer, Reducers
from tests.support.small_trial import SmallTrial, fit
from tests.support.world import in_ranks


class _Spread(pytorch.MetricReducer):
    """The largest value minus the smallest, of all ranks."""

    def reset(self) -> None:
        self.values: list[float] = []

    def per_slot_reduce(self) -> tuple[float, float]:
        return min(self.values), max(self.values)

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> dict[str, float]:
        return {
            "spread": max(high for _, high in per_slot_metrics) - min(low for low, _ in per_slot_metrics),
            "ranks": len(per_slot_metrics),
        }


def test_all_ranks_have_the_metric_of_all_values() -> None:
    def work(distributed: DistributedContext) -> list[dict[str, float]]:
        reducers = Reducers(distributed)
        total = reducers.wrap(sum, "total", True, True)
        spread = reducers.wrap(_Spread(), None, True, False)
        assert isinstance(total, FunctionReducer)
        assert isinstance(spread, _Spread)
        for value in range(distributed.rank + 1):
            total.update(torch.tensor(float(value)))
            spread.values.append(10.0 * distributed.rank + value)
        first = reducers.reduce(is_training=True)
        total.update(1)
        return [first, reducers.reduce(is_training=False)]

    expected = [{"total": 4.0, "spread": 22.0, "ranks": 3.0}, {"total": 3.0}]
    assert in_ranks(3, work) == [expected, expected, expected]


class _Reduced(SmallTrial):
    """Counts records in training and validation with one reducer, and each with one of its own."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.both: Any = context.wrap_reducer(sum, name="records")
        self.training: Any = context.wrap_reducer(lambda values: {"batches": len(values)}, for_validation=False)
        self.validation: Any = context.wrap_reducer(max, name="largest", for_training=False)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.both.update(len(batch[0]))
        self.training.update(batch_idx)
        return super().train_batch(batch, epoch_idx, batch_idx)

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:  # type: ignore[override]  # without the index, as allowed
        self.both.update(len(batch[0]))
        self.validation.update(len(batch[0]))
        return {}


def _lines(output: str, group: str) -> list[dict[str, float]]:
    lines = [line.split() for line in output.splitlines() if line.startswith(group)]
    return [dict(zip(line[3::2], map(float, line[4::2]), strict=True)) for line in lines]


def test_reports_carry_the_reduced_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    fit(
        _Reduced,
        max_length=pytorch.Batch(6),
        reporting_period=pytorch.Batch(4),
        validation_period=pytorch.Batch(3),
        checkpoint_policy="none",
    )
    output = capsys.readouterr().out
    training = [{key: line[key] for key in ("batches", "records")} for line in _lines(output, "training")]
    # The validation after batch 3 would forget what training counted, so a report comes before it.
    assert training == [
        {"batches": 3.0, "records": 9.0},
        {"batches": 1.0, "records": 3.0},
        {"batches": 2.0, "records": 6.0},
    ]
    assert _lines(output, "validation") == [{"records": 12.0, "largest": 5.0}] * 2


class _SameName(SmallTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.wrap_reducer(lambda _: 1.0, name="loss", for_validation=False)


class _NoName(SmallTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.wrap_reducer(lambda _: 1.0)


class _NoNumber(SmallTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.wrap_reducer(lambda _: {"a": 1}, name="nested")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_SameName, "train_batch and a metric reducer both report 'loss'; rename one of the two"),
        (_NoName, "FunctionReducer was wrapped without a name, so it must return a dictionary of metrics, but it "),
        (_NoNumber, "FunctionReducer.cross_slot_reduce: the metric 'nested' is a dict, not one number"),
    ],
)
def test_refused_results(make: type[SmallTrial], words: str) -> None:
    with pytest.raises(GanglineError, match=words):
        fit(make, max_length=pytorch.Batch(1))


class _Meter(torch.nn.Module):
    """Counts as the metrics of common libraries do: in a buffer, in a list, and in a module of its own."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))
        self.seen: list[int] = []
        self.inner = torch.nn.Linear(1, 1)

    def add(self, count: int) -> None:
        self.total += count
        self.seen.append(count)
        self.inner.weight.count = len(self.seen)  # type: ignore[attr-defined]


class _Tally:
    def __init__(self) -> None:
        self.count = 0


class _Keeping(_Spread):
    def __init__(self) -> None:
        super().__init__()
        self.meter, self.tally = _Meter(), _Tally()


def test_data_that_a_reducer_keeps_in_objects_is_put_back() -> None:
    reducers = Reducers(DistributedContext())
    reducer = _Keeping()
    reducers.wrap(reducer, None, True, True)
    meter, tally, weight = reducer.meter, reducer.tally, reducer.meter.inner.weight
    meter.add(3)
    tally.count = 3
    total, seen = meter.total, meter.seen
    with reducers.unchanged([]):
        meter.add(5)
        tally.count += 5
        assert float(reducer.meter.total) == 8
    assert (float(meter.total), meter.seen, tally.count) == (3.0, [3], 3)
    assert (reducer.meter, reducer.tally, meter.inner.weight) == (meter, tally, weight)
    assert meter.total is total, "another object may hold the buffer"
    assert meter.seen is seen


def test_a_value_that_is_replaced_in_a_block_is_bound_again() -> None:
    reducers, reducer = Reducers(DistributedContext()), _Keeping()
    reducers.wrap(reducer, None, True, True)
    before = reducer.meter.total
    with reducers.unchanged([]):
        reducer.meter.total = before + 5
        before.resize_(3)
    assert reducer.meter.total is before
    assert (before.shape, float(before)) == ((), 0.0)


def test_hooks_that_a_block_registers_stay() -> None:
    reducers, reducer, calls = Reducers(DistributedContext()), _Keeping(), list[str]()
    reducers.wrap(reducer, None, True, True)
    with reducers.unchanged([]):
        reducer.meter.inner.register_forward_hook(lambda *_: calls.append("called"))
    reducer.meter.inner(torch.zeros(1))
    assert calls == ["called"]


class _Watching(_Spread):
    """Keeps the trial's model in a module of its own, and one of its buffers."""

    def __init__(self, model: torch.nn.BatchNorm1d) -> None:
        super().__init__()
        self.around = torch.nn.Sequential(model, _Meter())
        self.mean = model.running_mean
        self.seen = torch.zeros(1)


def test_a_model_that_a_reducer_keeps_is_left_as_the_batch_made_it() -> None:
    model = torch.nn.BatchNorm1d(1)
    reducers, reducer = Reducers(DistributedContext()), _Watching(model)
    reducers.wrap(reducer, None, True, True)
    mean, count = model.running_mean, model.num_batches_tracked
    assert mean is not None
    assert count is not None
    meter = reducer.around[1]
    assert isinstance(meter, _Meter)
    with reducers.unchanged([model]):
        model(torch.tensor([[1.0], [3.0]]))
        reducer.seen += 1
        meter.add(5)
    assert (model.running_mean is mean, model.num_batches_tracked is count, reducer.mean is mean) == (True, True, True)
    assert float(mean) == pytest.approx(0.2)
    assert int(count) == 1
    assert (float(reducer.seen), float(meter.total)) == (0.0, 0.0)


def test_refused_reducers() -> None:
    reducers = Reducers(DistributedContext())
    reducers.wrap(sum, "total", True, True)
    with pytest.raises(GanglineError, match="there is a reducer named 'total' already"):
        reducers.wrap(max, "total", True, True)
    with pytest.raises(GanglineError, match="wrap_reducer got a int; give it a MetricReducer or a function of a list"):
        reducers.wrap(3, None, True, True)  # type: ignore[arg-type]  # that is what is tested
