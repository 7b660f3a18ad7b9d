"""Traces that are ordered while a trial trains: which batches they hold, what stands in their way, and that training
goes on whatever happens to them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gangline import pytorch
from gangline.core.beat import NoBeat
from gangline.core.link import Link
from gangline.pytorch.training.fusion_opening import Untuned
from gangline.pytorch.training.schedule import Pace
from tests.support.small_trial import SmallTrial, fit

CPU = [torch.profiler.ProfilerActivity.CPU]


class _OrderingLink(Link):
    """orders: by the number of times that the loop has asked."""

    def __init__(self, orders: dict[int, int]) -> None:
        super().__init__()
        self.orders = orders
        self.num_asked = 0

    def take_trace(self) -> int:
        self.num_asked += 1
        return self.orders.pop(self.num_asked, 0)


class _RestedFusion(Untuned):
    """Records the rests that the loop requests for steps that say nothing about the buckets."""

    def __init__(self) -> None:
        self.rests: list[int] = []

    def rest(self, steps: int) -> None:
        self.rests.append(steps)


class _Ordered(SmallTrial):
    """A look is due after every batch, so the first order comes after the first batch."""

    def __init__(self, context: pytorch.PyTorchTrialContext, orders: dict[int, int]) -> None:
        super().__init__(context)
        self.link = context.core.link = _OrderingLink(orders)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        with torch.profiler.record_function(f"batch {batch_idx + 1}"):
            return super().train_batch(batch, epoch_idx, batch_idx)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline.pytorch.training.schedule._MOST_BATCHES", 1)


@pytest.fixture
def fusion(monkeypatch: pytest.MonkeyPatch) -> _RestedFusion:
    rested_fusion = _RestedFusion()
    monkeypatch.setattr("gangline.pytorch.training.loop.open_fusion", lambda *_: rested_fusion)
    return rested_fusion


def _traces() -> list[list[str]]:
    """Returns the batches of each trace, in the order of the times in their names."""
    traces = []
    for path in sorted(Path("tensorboard").glob("*.pt.trace.json"), key=lambda path: path.name.split(".")[-4]):
        events = json.loads(path.read_text())["traceEvents"]
        assert any(event.get("name", "").startswith("aten::") for event in events)
        traces.append(sorted({event["name"] for event in events if str(event.get("name")).startswith("batch ")}))
    return traces


def _fit(
    orders: dict[int, int], batches: int = 8, trial: Callable[..., _Ordered] = _Ordered, **arguments: Any
) -> _Ordered:
    return fit(lambda context: trial(context, orders), max_length=pytorch.Batch(batches), **arguments)


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "trace" in record.getMessage()]


def test_the_batches_after_the_one_that_warms_up_are_traced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trial = _fit({1: 2})
    assert _traces() == [["batch 3", "batch 4"]]
    (file,) = Path("tensorboard").absolute().glob("*.pt.trace.json")
    # As the plugin of TensorBoard wants it: worker, time, and what kind of file it is.
    assert re.fullmatch(r"batches_3_to_4\.\d+\.pt\.trace\.json", file.name)
    assert _lines(caplog) == [
        "batches 3 to 4 are traced, as ordered",
        f"the trace of batches 3 to 4 is written to {file}",
    ]
    assert not trial.context.trace.is_on
    assert not trial.link.takes_traces


def test_without_an_order_there_is_neither_a_trace_nor_a_folder() -> None:
    trial = _fit({}, 4, init={"enable_tensorboard_logging": False})
    assert trial.link.num_asked >= 4
    assert not Path("tensorboard").exists()


def test_a_second_order_is_refused_while_the_first_is_traced_and_a_later_one_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _fit({1: 2, 2: 5, 6: 1}, 12)
    assert _traces() == [["batch 3", "batch 4"], ["batch 8"]]
    assert _lines(caplog) == ["the ordered trace is refused: another one is under way"]


def test_a_trial_that_traces_itself_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Profiled(_Ordered):
        def __init__(self, context: pytorch.PyTorchTrialContext, orders: dict[int, int]) -> None:
            super().__init__(context, orders)
            context.set_profiler(activities=CPU, schedule=torch.profiler.schedule(wait=3, warmup=1, active=1, repeat=1))

    _fit({1: 2}, trial=Profiled)
    assert _traces() == [["batch 5"]]
    (line,) = _lines(caplog)
    assert line == (
        "the ordered trace is refused: the trial traces itself by set_profiler, and torch has one profiler at a time"
    )


def test_a_named_range_goes_first_and_is_over_once_it_is_written(caplog: pytest.LogCaptureFixture) -> None:
    profiling = {"enabled": True, "begin_on_batch": 2, "end_after_batch": 3}
    _fit({1: 2, 5: 2}, 10, init={"exp_conf": {"profiling": profiling}})
    assert _traces() == [["batch 3", "batch 4"], ["batch 7", "batch 8"]]
    (line,) = _lines(caplog)
    assert "begin_on_batch of the section profiling" in line


def test_a_profiler_in_the_trials_own_code_goes_first(caplog: pytest.LogCaptureFixture) -> None:
    own = torch.profiler.profile(activities=CPU)

    class Own(_Ordered):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 0:
                own.start()
            loss = super().train_batch(batch, epoch_idx, batch_idx)
            if batch_idx == 4:
                own.stop()
            return loss

    _fit({1: 2}, trial=Own)
    assert _traces() == []
    assert any(event.key == "batch 5" for event in own.key_averages())
    assert _lines(caplog) == [
        "the ordered trace is refused: the trial's own code runs torch's profiler, of which there is one at a time"
    ]


def test_a_profiler_of_the_trials_own_that_begins_meanwhile_ends_the_ordered_one_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = torch.profiler.profile(activities=CPU)

    class Own(_Ordered):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 3:
                own.start()
            loss = super().train_batch(batch, epoch_idx, batch_idx)
            if batch_idx == 5:
                own.stop()
            return loss

    caplog.set_level(logging.INFO)
    trial = _fit({1: 5, 6: 1}, 10, trial=Own)
    assert trial.context.position.batches == 10
    named = {event.key for event in own.key_averages() if event.key.startswith("batch ")}
    assert named == {"batch 4", "batch 5", "batch 6"}
    assert _traces() == [["batch 3"], ["batch 8"]]
    assert _lines(caplog)[1] == "the ordered trace ends after 1 batches: the trial's own code begins to profile"
    assert _lines(caplog)[2].startswith("the trace of batches 3 to 3 is written to ")


def test_a_batch_in_which_a_trace_gives_way_may_take_long() -> None:
    """The trace so far is written in the middle of the batch, and a rank that rests does not count as hung."""
    own = torch.profiler.profile(activities=CPU)
    seen: list[bool] = []

    class Beat(NoBeat):
        is_resting = False

        def enter(self, where: int) -> None:
            self.is_resting = False

        def rest(self, where: int) -> None:
            self.is_resting = True

        def resume(self) -> None:
            self.is_resting = False

    beat = Beat()

    class Own(_Ordered):
        def __init__(self, context: pytorch.PyTorchTrialContext, orders: dict[int, int]) -> None:
            super().__init__(context, orders)
            context.core.beat = beat

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 3:
                seen.append(beat.is_resting)
                with own:
                    seen.append(beat.is_resting)
            return super().train_batch(batch, epoch_idx, batch_idx)

    _fit({1: 5}, trial=Own)
    assert seen == [False, True]


def test_a_trial_that_ends_meanwhile_writes_what_there_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    _fit({1: 50}, 5)
    assert _traces() == [["batch 3", "batch 4", "batch 5"]]
    assert _lines(caplog)[1] == "the ordered trace ends after 3 batches: training stops"
    assert _lines(caplog)[2].startswith("the trace of batches 3 to 5 is written to ")


def test_a_trial_that_fails_meanwhile_fails_as_it_would_and_leaves_the_trace() -> None:
    class Failing(_Ordered):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 4:
                raise ValueError("no fifth batch")
            return super().train_batch(batch, epoch_idx, batch_idx)

    with pytest.raises(ValueError, match="no fifth batch"):
        _fit({1: 50}, trial=Failing)
    assert _traces() == [["batch 3", "batch 4"]]


def test_a_validation_is_no_part_of_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    _fit({1: 50}, 8, validation_period=pytorch.Batch(4))
    assert _traces() == [["batch 3", "batch 4"]]
    assert "the ordered trace ends after 2 batches: a validation begins" in _lines(caplog)


def test_a_trace_of_no_batch_is_not_written(caplog: pytest.LogCaptureFixture) -> None:
    _fit({1: 2}, 8, validation_period=pytorch.Batch(2))
    assert _traces() == []
    assert _lines(caplog) == ["the ordered trace is not written: a validation begins before its first batch was over"]


def test_an_order_that_comes_with_the_last_batch_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    _fit({5: 1}, 4)
    assert _traces() == []
    assert "the ordered trace is refused: training is over" in _lines(caplog)


def test_a_storage_that_takes_nothing_ends_no_training(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.profiler.profile.export_chrome_trace", refuse)
    trial = _fit({1: 2})
    assert trial.context.position.batches == 8
    assert _lines(caplog) == ["the ordered trace fails: OSError: [Errno 28] No space left on device"]


def test_aggregated_batches_are_traced_as_any_others() -> None:
    _fit({1: 3}, 9, init={"aggregation_frequency": 3})
    assert _traces() == [["batch 3", "batch 4", "batch 5"]]


@pytest.mark.parametrize(
    ("batches", "aggregation_frequency", "steps"),
    # One batch warms up, and the step after those in which it traces waits for the file.
    [(2, 1, 4), (1, 1, 3), (3, 3, 3), (5, 3, 3), (6, 3, 4)],
)
def test_tuning_rests_while_steps_are_traced_and_one_more(
    fusion: _RestedFusion, batches: int, aggregation_frequency: int, steps: int
) -> None:
    _fit({1: batches}, 12, init={"aggregation_frequency": aggregation_frequency})
    assert len(_traces()) == 1
    assert fusion.rests == [steps]


def test_without_an_order_tuning_does_not_rest(fusion: _RestedFusion) -> None:
    _fit({}, 4)
    assert fusion.rests == []


def test_an_order_that_comes_with_a_stop_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    class Stopping(_Ordered):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 2:
                self.context.set_stop_requested(True)
            return super().train_batch(batch, epoch_idx, batch_idx)

    caplog.set_level(logging.INFO)
    trial = _fit({3: 2}, trial=Stopping)
    assert trial.context.position.batches == 3
    assert _traces() == []
    assert _lines(caplog) == ["the ordered trace is refused: training stops"]


def test_an_order_in_a_question_that_nobody_answered_before_the_end_is_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks look after batches 1 and 3, and read the answer to the second look after batch 4; there are three."""
    monkeypatch.setattr(Pace, "suggest", lambda *_: 2)
    caplog.set_level(logging.INFO)
    trial = _fit({2: 1}, 3, trial=_Ordered)
    # At both looks, and at the end.
    assert trial.link.num_asked == 3
    assert _traces() == []
    assert _lines(caplog) == ["the ordered trace is refused: training is over"]
