"""The trainer on one rank without a cluster: hooks, schedulers, modes, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.domain.settled.reading import settle_values
from gangline.errors import GanglineError
from gangline.pytorch.training.loop import _place_here
from tests.support.small_trial import DATA, SmallTrial, fit


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _fit(make: type[SmallTrial] = SmallTrial, **arguments: Any) -> SmallTrial:
    return fit(make, **arguments)


def _checkpoints() -> list[int]:
    folders = Path("checkpoints").iterdir() if Path("checkpoints").exists() else iter(())
    return sorted(pytorch.load_checkpoint(folder)["progress"]["batches"] for folder in folders)


def test_a_metric_that_no_validation_reports_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    for wanted in ("accuracy", "error"):
        configuration = {"searcher": {"metric": wanted}}
        _fit(init={"exp_conf": configuration}, max_length=pytorch.Batch(4), validation_period=pytorch.Batch(2))
    [warning] = [record.getMessage() for record in caplog.records if "searcher.metric" in record.getMessage()]
    assert warning.startswith("searcher.metric is accuracy, but the validation reports error;")


def test_batches_know_their_place() -> None:
    trial = _fit(max_length=pytorch.Batch(5))
    assert trial.seen == [
        (0, 0, True, False),
        (0, 1, False, False),
        (0, 2, False, False),
        (0, 3, False, True),
        (1, 4, True, False),
    ]


class _Recorder(pytorch.PyTorchCallback):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *arguments: self.calls.append(name)
        return super().__getattribute__(name)


def test_hooks_run_in_order() -> None:
    recorder = _Recorder()

    class Hooked(SmallTrial):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"recorder": recorder}

    _fit(Hooked, max_length=pytorch.Epoch(1), reporting_period=pytorch.Batch(2))
    assert recorder.calls == [
        "on_trial_startup",
        "on_training_start",
        "on_training_epoch_start",
        "on_training_workload_end",
        "on_training_epoch_end",
        "on_training_workload_end",
        "on_validation_start",
        "on_validation_epoch_start",
        "on_validation_epoch_end",
        "on_validation_end",
        "on_checkpoint_save_start",
        "on_checkpoint_write_end",
        "on_checkpoint_upload_end",
        "on_trial_shutdown",
    ]


@pytest.mark.parametrize(
    ("mode", "frequency", "aggregation", "steps"),
    [
        ("STEP_EVERY_BATCH", 1, 1, 8),
        ("STEP_EVERY_BATCH", 3, 1, 2),
        ("STEP_EVERY_OPTIMIZER_STEP", 1, 2, 4),
        ("STEP_EVERY_EPOCH", 1, 1, 2),
        ("STEP_EVERY_EPOCH", 2, 1, 1),
        ("MANUAL_STEP", 1, 1, 0),
    ],
)
def test_scheduler_steps(mode: str, frequency: int, aggregation: int, steps: int) -> None:
    class Scheduled(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
            context.wrap_lr_scheduler(self.schedule, pytorch.LRScheduler.StepMode[mode], frequency)

    trial = _fit(Scheduled, max_length=pytorch.Epoch(2), init={"aggregation_frequency": aggregation})
    assert trial.optimizer.param_groups[0]["lr"] == pytest.approx(0.5**steps)


def test_clipping_may_look_at_the_parameters_twice() -> None:
    class Clipped(SmallTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.backward((self.model(batch[0]) ** 2).mean())
            before = [parameter.detach().clone() for parameter in self.model.parameters()]
            self.context.step_optimizer(self.optimizer, self.clip)
            assert all(map(torch.equal, before, self.model.parameters()))
            return {}

        def clip(self, parameters: Iterable[nn.Parameter]) -> None:
            assert sum(1 for _ in parameters) == 2
            for parameter in parameters:
                nn.init.zeros_(parameter.grad)  # type: ignore[arg-type]  # there is one after a backward pass

    _fit(Clipped, max_length=pytorch.Batch(1))


class _Rates(SmallTrial):
    """rates: of each step of the optimizer. losses: of each batch."""

    mode = pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH
    frequency = 1

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        for parameter in self.model.parameters():
            nn.init.ones_(parameter)
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.optimizer.register_step_pre_hook(lambda *_: self.rates.append(self.optimizer.param_groups[0]["lr"]))
        schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda count: 1 / (1 + count))
        context.wrap_lr_scheduler(schedule, self.mode, self.frequency)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = super().train_batch(batch, epoch_idx, batch_idx)
        self.losses.append(loss.item())
        return loss


class _RatesByThree(_Rates):
    frequency = 3


class _RatesBySteps(_Rates):
    mode = pytorch.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP


@pytest.mark.parametrize(
    ("make", "rates"),
    [(_Rates, [1, 1 / 5, 1 / 9]), (_RatesByThree, [1, 1 / 2, 1 / 3]), (_RatesBySteps, [1, 1 / 2, 1 / 3])],
)
def test_the_rate_stays_until_the_optimizer_steps(make: type[_Rates], rates: list[float]) -> None:
    trial = fit(make, max_length=pytorch.Batch(12), init={"aggregation_frequency": 4})
    assert trial.rates == pytest.approx(rates)


def test_a_run_goes_on_from_between_two_steps_as_the_whole_one() -> None:
    """Nothing is saved there, as the gathered gradients would be missing."""
    arguments: dict[str, Any] = {"checkpoint_period": pytorch.Batch(6), "init": {"aggregation_frequency": 4}}
    uninterrupted = fit(_Rates, max_length=pytorch.Batch(20), **arguments)
    assert _checkpoints() == [8, 12, 20]
    for folder in Path("checkpoints").iterdir():
        done = pytorch.load_checkpoint(folder)["progress"]["batches"]
        resumed = fit(_Rates, max_length=pytorch.Batch(20), latest_checkpoint=folder.name, init=arguments["init"])
        assert resumed.losses == pytest.approx(uninterrupted.losses[done:])


def test_a_validation_is_of_what_is_saved_with_it() -> None:
    arguments: dict[str, Any] = {"validation_period": pytorch.Batch(6), "init": {"aggregation_frequency": 4}}
    _fit(max_length=pytorch.Batch(14), **arguments)
    assert _checkpoints() == [8, 12, 14]
    for path in Path("checkpoints").glob("*/metadata.json"):
        assert "error" in json.loads(path.read_text())["validation_metrics"]


def test_a_stop_waits_for_the_step() -> None:
    class Stopping(_Rates):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.set_stop_requested(batch_idx >= 8)
            return super().train_batch(batch, epoch_idx, batch_idx)

    trial = fit(Stopping, max_length=pytorch.Batch(100_000), init={"aggregation_frequency": 7})
    assert 9 <= len(trial.losses) < 1000
    assert len(trial.losses) % 7 == 0
    assert _checkpoints() == [len(trial.losses)]


@pytest.mark.parametrize(
    ("arguments", "saved"),
    [
        ({}, [8]),
        ({"checkpoint_period": pytorch.Batch(3)}, [3, 6, 8]),
        ({"validation_period": pytorch.Epoch(1), "checkpoint_policy": "none"}, [8]),
        ({"validation_period": pytorch.Epoch(1), "checkpoint_policy": "all"}, [4, 8]),
        ({"step_zero_validation": True}, [8]),
        ({"test_mode": True}, [1]),
    ],
)
def test_checkpoints_are_where_they_were_asked_for(arguments: dict[str, Any], saved: list[int]) -> None:
    _fit(max_length=pytorch.Epoch(2), **arguments)
    assert _checkpoints() == saved


def test_only_the_best_validation_is_saved() -> None:
    class Worsening(SmallTrial):
        def evaluate_batch(self, batch: Any) -> dict[str, Any]:  # type: ignore[override]  # without the index, as allowed
            return {"error": {2: 3.0, 4: 2.0, 6: 5.0, 8: 2.5}[self.context.current_train_batch()]}

    config = {"searcher": {"metric": "error"}}
    _fit(Worsening, max_length=pytorch.Epoch(2), validation_period=pytorch.Batch(2), init={"exp_conf": config})
    assert _checkpoints() == [2, 4, 8]


@pytest.mark.parametrize(
    ("searcher", "validated"),
    [
        ({"max_length": {"batches": 8}}, [2, 4, 8]),
        ({"max_length": {"epochs": 2}}, [4, 8]),
        # Batches have 3 records, and rungs are 4, 8 and 16.
        ({"max_length": {"records": 16}, "mode": "aggressive"}, [2, 3, 6]),
        # A rung in the unit of a metric is known only after a validation, so the periods decide.
        ({"max_length": {"batches": 8}, "time_metric": "tokens", "max_time": 16}, [8]),
        ({"time_metric": "batches", "max_time": 8}, [2, 4, 8]),
        ({"name": "random", "max_length": {"batches": 8}}, [8]),
    ],
)
def test_a_trial_is_validated_at_the_rungs_of_its_search(
    searcher: dict[str, Any], validated: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    section = {"name": "adaptive_asha", "metric": "error", "max_trials": 4, "divisor": 2, **searcher}
    if section["name"] == "random":
        del section["divisor"]
    _fit(init={"exp_conf": {"searcher": section}})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(words[2]) for words in lines if words[0] == "validation"] == validated


@pytest.mark.parametrize(
    ("searcher", "unit"),
    [
        ({"name": "random", "max_length": {"batches": None, "records": None, "epochs": 2}}, "epochs"),
        ({"name": "random", "max_length": {"records": 9}}, "records"),
        ({"name": "single", "max_length": 9}, "batches"),
        ({"max_length": {"epochs": 2}, "time_metric": "tokens", "max_time": 5}, "tokens"),
        ({}, "batches"),
    ],
)
def test_the_unit_of_any_searcher(searcher: dict[str, Any], unit: str) -> None:
    assert settle_values({"searcher": searcher}).searcher.unit_name == unit


def test_trial_may_end_early() -> None:
    class Stopping(SmallTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 2:
                self.context.set_stop_requested(True)
            return super().train_batch(batch, epoch_idx, batch_idx)

    trial = _fit(Stopping, max_length=pytorch.Batch(100_000))
    assert 3 <= len(trial.seen) < 100
    assert _checkpoints() == [len(trial.seen)]


def test_the_checkpoint_of_an_early_end_has_its_validation() -> None:
    """Also where one of the same batch was saved before anybody knew that it is the end."""

    class Stopping(SmallTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.set_stop_requested(batch_idx >= 2)
            return super().train_batch(batch, epoch_idx, batch_idx)

    _fit(Stopping, max_length=pytorch.Batch(500), checkpoint_period=pytorch.Batch(1))
    saved = [json.loads(path.read_text()) for path in Path("checkpoints").glob("*/metadata.json")]
    last = max(metadata["steps_completed"] for metadata in saved)
    assert 3 <= last < 500
    assert [
        metadata
        for metadata in saved
        if metadata["steps_completed"] == last and "error" in metadata["validation_metrics"]
    ]


def test_full_dataset_is_evaluated_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    class Whole(pytorch.PyTorchTrial):
        __init__ = SmallTrial.__init__
        build_training_data_loader = SmallTrial.build_training_data_loader
        build_validation_data_loader = SmallTrial.build_validation_data_loader
        train_batch = SmallTrial.train_batch

        def evaluate_full_dataset(self, data_loader: TorchLoader[Any]) -> dict[str, Any]:
            return {"records": sum(len(batch[0]) for batch in data_loader)}

    with pytorch.init() as context:
        pytorch.Trainer(Whole(context), context).fit(max_length=pytorch.Batch(1))
    assert "records 12" in capsys.readouterr().out


def test_state_of_callbacks_is_kept() -> None:
    class Counting(pytorch.PyTorchCallback):
        count = 0

        def on_training_epoch_end(self, epoch_idx: int) -> None:
            self.count += 1

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.count = state_dict["count"]

    callback = Counting()

    class Hooked(SmallTrial):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"counting": callback}

    _fit(Hooked, max_length=pytorch.Epoch(2))
    (folder,) = Path("checkpoints").iterdir()
    callback = Counting()
    trial = _fit(Hooked, max_length=pytorch.Epoch(3), latest_checkpoint=folder.name)
    assert callback.count == 3
    assert trial.seen[0] == (2, 8, True, False)


def _without(what: str) -> type[SmallTrial]:
    class Unwrapped(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            getattr(context, what).clear()

    return Unwrapped


class _Both(SmallTrial):
    def evaluate_full_dataset(self, data_loader: TorchLoader[Any]) -> dict[str, Any]:
        return {}


class _TorchLoader(SmallTrial):
    def build_training_data_loader(self) -> Any:
        return TorchLoader(DATA)


class _UnplainState(SmallTrial):
    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        callback = pytorch.PyTorchCallback()
        callback.state_dict = lambda: {"where": object()}  # type: ignore[method-assign]  # the shortest bad callback
        return {"bad": callback}


class _Unzeroed(SmallTrial):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.context.step_optimizer(self.optimizer, auto_zero_grads=False)


class _Plateau(SmallTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer)
        context.wrap_lr_scheduler(scheduler, pytorch.LRScheduler.StepMode.MANUAL_STEP)
        context.wrap_lr_scheduler(scheduler, pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH)


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (_without("models"), {}, "the trial wrapped no model; pass it to context.wrap_model"),
        (_without("optimizers"), {}, "the trial wrapped no optimizer"),
        (_Both, {}, "_Both defines both of evaluate_batch and evaluate_full_dataset"),
        (_TorchLoader, {}, "build_training_data_loader returned a torch DataLoader, which knows nothing of the ranks"),
        (_UnplainState, {}, "is a object, which a checkpoint cannot give back; keep tensors, arrays, numbers"),
        (SmallTrial, {"max_length": None}, "nothing says how long to train"),
        (SmallTrial, {"max_length": pytorch.Batch([1, 2])}, "a length is one number"),
        (SmallTrial, {"max_length": 7}, "max_length is 7, which has no unit; pass pytorch.Batch(7"),
        (SmallTrial, {"max_length": 0}, "max_length is 0, which has no unit"),
        (SmallTrial, {"checkpoint_period": "1 epoch"}, "checkpoint_period is '1 epoch', which has no unit"),
        (SmallTrial, {"validation_period": 1}, "validation_period is 1, which has no unit"),
        (SmallTrial, {"reporting_period": 1}, "reporting_period is 1, which has no unit"),
        (SmallTrial, {"init": {"exp_conf": {"scheduling_unit": "x"}}}, "scheduling_unit: expected a whole number of 0"),
        (
            SmallTrial,
            {"init": {"exp_conf": {"reproducibility": {"experiment_seed": "x"}}}},
            "reproducibility.experiment_seed: expected a whole number of 0 or more, found 'x'",
        ),
        (SmallTrial, {"init": {"exp_conf": {"parallelism": 7}}}, "parallelism: expected a strategy or a mapping with"),
        (_Unzeroed, {"init": {"aggregation_frequency": 2}}, "with an aggregation_frequency of 2: only the trainer"),
        (_Plateau, {}, "ReduceLROnPlateau steps by a metric, which the trainer does not pass on; use LRScheduler.Step"),
        (SmallTrial, {"checkpoint_policy": "worst"}, "'worst' is none of best, all and none"),
        (SmallTrial, {"latest_checkpoint": "absent"}, "no checkpoint absent at"),
    ],
)
def test_refused(make: type[SmallTrial], arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(GanglineError, match=re.escape(words)):
        _fit(make, **{"max_length": pytorch.Batch(1), **arguments})
    assert _checkpoints() == []


def test_parameters_of_no_wrapped_model_are_told(caplog: pytest.LogCaptureFixture) -> None:
    class HalfWrapped(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            self.optimizer.add_param_group({"params": nn.Linear(1, 1).parameters()})

    _fit(HalfWrapped, max_length=pytorch.Batch(1))
    assert "2 of 4 parameters of SGD belong to no wrapped model" in caplog.text


def test_checkpoint_of_another_trial() -> None:
    _fit(max_length=pytorch.Batch(1))
    (folder,) = Path("checkpoints").iterdir()

    class TwoModels(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            context.wrap_model(nn.Linear(1, 1))

    with pytest.raises(GanglineError, match="holds 1 models, this trial has 2"):
        _fit(TwoModels, max_length=pytorch.Batch(2), latest_checkpoint=str(folder.resolve()))


def test_checkpoint_of_another_model() -> None:
    _fit(max_length=pytorch.Batch(1))
    (folder,) = Path("checkpoints").iterdir()

    class Wider(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            context.models[0] = nn.Linear(1, 2)

    with pytest.raises(
        GanglineError, match=r"another model than Linear: its weight has the shape \(1, 1\), not \(2, 1\)"
    ):
        _fit(Wider, max_length=pytorch.Batch(2), latest_checkpoint=folder.name)


def test_average_of_aggregated_gradients_may_be_an_optimizers_own() -> None:
    """Four batches of one step: their gradients as a sum move as far as a mean does at four times the rate."""

    class Wrapping(SmallTrial):
        rate, options = 0.1, {"average_aggregated_gradients": False}

        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            for parameter in self.model.parameters():
                nn.init.ones_(parameter)
            optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate)
            self.optimizer = context.wrap_optimizer(optimizer, 1, **self.options)

    class Fast(Wrapping):
        rate, options = 0.4, {}

    init = {"aggregation_frequency": 4}
    summed, mean = (_fit(trial_class, max_length=pytorch.Batch(4), init=init) for trial_class in (Wrapping, Fast))
    assert summed.model.state_dict()["weight"] == pytest.approx(mean.model.state_dict()["weight"])


def test_reducers_can_be_asked_by_the_trial() -> None:
    with pytorch.init() as context:
        reducer: Any = context.wrap_reducer(sum, name="total", for_validation=False)
        reducer.update(1)
        context.reset_reducers()
        reducer.update(2)
        reducer.update(3)
        assert context.reduce_metrics(for_training=False) == {}
        assert context.reduce_metrics(for_training=True) == {"total": 5}
        assert context.reduce_metrics(for_training=True) == {"total": 0}
        assert context.n_gpus == (1 if context.device.type == "cuda" else 0)
        context.distributed.close()


def test_a_position_is_refused_before_training() -> None:
    calls = ("is_epoch_start", "is_epoch_end", "current_train_epoch", "current_train_batch")
    with pytorch.init() as context:
        for call in calls:
            with pytest.raises(GanglineError, match=rf"context\.{call}\(\) is called before training begins"):
                getattr(context, call)()
        trial = SmallTrial(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(5))
        assert [getattr(context, call)() for call in calls] == [False, False, 1, 5]


class _Numbers(SmallTrial):
    """records: that were trained on."""

    batch_size = 3
    has_sampler = False

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.records: list[int] = []

    def build_training_data_loader(self) -> pytorch.DataLoader:
        sampler = range(12) if self.has_sampler else None
        return pytorch.DataLoader(TensorDataset(torch.arange(12.0)[:, None]), self.batch_size, sampler=sampler)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.records += [int(number) for number in batch[0]]
        return super().train_batch(batch, epoch_idx, batch_idx)


class _NumbersByFour(_Numbers):
    batch_size = 4


class _NumbersByFive(_Numbers):
    batch_size = 5


class _Sampled(_Numbers):
    has_sampler = True


class _SampledByFour(_NumbersByFour):
    has_sampler = True


def _newest() -> str:
    metadata = {path.parent.name: json.loads(path.read_text()) for path in Path("checkpoints").glob("*/metadata.json")}
    return max(metadata, key=lambda name: int(metadata[name]["steps_completed"]))


def test_an_epoch_goes_on_at_its_next_record_with_another_batch_size() -> None:
    first = fit(_Numbers, max_length=pytorch.Batch(1))
    second = fit(_NumbersByFour, max_length=pytorch.Batch(2), latest_checkpoint=_newest())
    third = fit(_NumbersByFive, max_length=pytorch.Epoch(2), latest_checkpoint=_newest())
    assert [first.records, second.records] == [[0, 1, 2], [3, 4, 5, 6]]
    assert third.records == [*range(7, 12), *range(12)]


def test_a_sampler_goes_on_at_its_next_record_with_another_batch_size() -> None:
    fit(_Sampled, max_length=pytorch.Batch(2))
    trial = fit(_SampledByFour, max_length=pytorch.Epoch(1), latest_checkpoint=_newest())
    assert trial.records == [*range(6, 12)]


def test_a_checkpoint_of_an_earlier_version_knows_no_shift() -> None:
    loader = pytorch.DataLoader(TensorDataset(torch.arange(12.0)), 4)
    assert _place_here({"offset": 1, "world_size": 1, "batch_size": 3}, loader, 1) == (0, 3)
