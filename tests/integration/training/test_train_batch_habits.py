"""What users of torch write into train_batch from habit: zero_grad, steps, clipping and counts of their own. It trains
as without the habit, or is refused in one line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.errors import GanglineError
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang

WIDTH = 6
_CLIPS = "train_batch measures or clips gradients itself, but "
PIPELINE = {"strategy": "pipeline", "microbatches": 4}


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class KeepingLayers(Layers):
    """Keeps a term of the loss where its forward computes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        if self.training:
            self.size = out.square().mean()
        return out


class NormLayers(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.blocks.append(nn.BatchNorm1d(WIDTH))


class HabitTrial(pytorch.PyTorchTrial):
    make: Callable[[], nn.Module] = Layers
    does: Callable[[Any, Any], None]

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        torch.manual_seed(7)
        self.count = 0
        self.model = context.wrap_model(type(self).make().to(self.kind))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9))
        self.scheduler = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5), pytorch.LRScheduler.StepMode.MANUAL_STEP
        )

    @property
    def kind(self) -> torch.dtype:
        return torch.float32 if self.context.setting.optimizations.autocast_type else torch.float64

    def build_training_data_loader(self) -> pytorch.DataLoader:
        inputs = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(3)).to(self.kind)
        data = TensorDataset(inputs, torch.tanh(inputs[:, :3] + inputs[:, 3:]))
        return pytorch.DataLoader(data, batch_size=self.context.get_per_slot_batch_size())

    build_validation_data_loader = build_training_data_loader

    def loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        return functional.mse_loss(self.model(inputs), targets)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        type(self).does(self, batch)
        return {}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": self.loss(batch)}


def _plain(trial: HabitTrial, batch: Any) -> None:
    trial.context.backward(trial.loss(batch))
    trial.context.step_optimizer(trial.optimizer)


def _clears_first(trial: HabitTrial, batch: Any) -> None:
    trial.optimizer.zero_grad()
    _plain(trial, batch)


def _clears_between(trial: HabitTrial, batch: Any) -> None:
    loss = trial.loss(batch)
    trial.optimizer.zero_grad()
    trial.context.backward(loss)
    trial.context.step_optimizer(trial.optimizer)


def _model_clears_between(trial: HabitTrial, batch: Any) -> None:
    loss = trial.loss(batch)
    trial.model.zero_grad()
    trial.context.backward(loss)
    trial.context.step_optimizer(trial.optimizer)


def _module_around_clears_between(trial: HabitTrial, batch: Any) -> None:
    loss = trial.loss(batch)
    nn.Sequential(trial.model).zero_grad()
    trial.context.backward(loss)
    trial.context.step_optimizer(trial.optimizer)


def _clears_last(trial: HabitTrial, batch: Any) -> None:
    _plain(trial, batch)
    trial.optimizer.zero_grad()
    trial.model.zero_grad()


def _clears_after_backward(trial: HabitTrial, batch: Any) -> None:
    trial.context.backward(trial.loss(batch))
    trial.optimizer.zero_grad()
    trial.context.step_optimizer(trial.optimizer)


def _clear_after_a_later_backward(trial: HabitTrial, batch: Any, cleared: Any) -> None:
    trial.count += 1
    trial.context.backward(trial.loss(batch))
    if trial.count > 1:
        cleared.zero_grad()
    trial.context.step_optimizer(trial.optimizer)


def _clears_after_a_later_backward(trial: HabitTrial, batch: Any) -> None:
    _clear_after_a_later_backward(trial, batch, trial.optimizer)


def _model_clears_after_a_later_backward(trial: HabitTrial, batch: Any) -> None:
    _clear_after_a_later_backward(trial, batch, trial.model)


def _step_only(trial: HabitTrial) -> None:
    trial.context.step_optimizer(trial.optimizer, auto_zero_grads=False)


def _clears_first_alone(trial: HabitTrial, batch: Any) -> None:
    trial.optimizer.zero_grad()
    trial.context.backward(trial.loss(batch))
    _step_only(trial)


def _clears_last_alone(trial: HabitTrial, batch: Any) -> None:
    trial.context.backward(trial.loss(batch))
    _step_only(trial)
    trial.model.zero_grad()


def _clears_between_alone(trial: HabitTrial, batch: Any) -> None:
    loss = trial.loss(batch)
    trial.optimizer.zero_grad()
    trial.context.backward(loss)
    _step_only(trial)


def _model_clears_between_alone(trial: HabitTrial, batch: Any) -> None:
    loss = trial.loss(batch)
    trial.model.zero_grad()
    trial.context.backward(loss)
    _step_only(trial)


def _closes_over(does: Callable[[HabitTrial, torch.Tensor], Any]) -> Callable[[Any, Any], None]:
    def train(trial: HabitTrial, batch: Any) -> None:
        trial.context.backward(trial.loss(batch), retain_graph=True)
        loss = trial.loss(batch)
        trial.context.step_optimizer(trial.optimizer, closure=lambda: does(trial, loss))

    return train


def _steps(trial: HabitTrial, batch: Any) -> None:
    trial.context.backward(trial.loss(batch))
    trial.optimizer.step()
    trial.optimizer.zero_grad()


def _clips_norm(trial: HabitTrial, batch: Any) -> None:
    trial.context.backward(trial.loss(batch))
    nn.utils.clip_grad_norm_(trial.model.parameters(), 0.1)
    trial.context.step_optimizer(trial.optimizer)


def _clips_values(trial: HabitTrial, batch: Any) -> None:
    trial.context.backward(trial.loss(batch))
    nn.utils.clip_grad_value_(trial.model.parameters(), 0.1)
    trial.context.step_optimizer(trial.optimizer)


def _clips_with_context(trial: HabitTrial, batch: Any) -> None:
    trial.context.backward(trial.loss(batch))
    trial.context.clip_grad_norm(trial.model.parameters(), 0.1)
    trial.context.step_optimizer(trial.optimizer)


def _measures(trial: HabitTrial, batch: Any) -> None:
    trial.context.backward(trial.loss(batch))
    nn.utils.get_total_norm([parameter.grad for parameter in trial.model.parameters() if parameter.grad is not None])
    trial.context.step_optimizer(trial.optimizer)


def _steps_scheduler(trial: HabitTrial, batch: Any) -> None:
    _plain(trial, batch)
    trial.scheduler.step()


def _counts(trial: HabitTrial, batch: Any) -> None:
    trial.count += 1
    _plain(trial, batch)


def _uses_what_the_model_keeps(trial: HabitTrial, batch: Any) -> None:
    loss = trial.loss(batch)
    trial.context.backward(loss + trial.model.size)  # type: ignore[operator]  # torch types attributes loosely
    trial.context.step_optimizer(trial.optimizer)


def train(does: Callable[[Any, Any], None], config: dict[str, Any], make: Any = Layers) -> dict[str, torch.Tensor]:
    kind = type("Habit", (HabitTrial,), {"does": does, "make": make})
    full = {"scheduling_unit": 100, **config}
    with pytorch.init(hparams={"global_batch_size": 16}, exp_conf=full) as context:
        trial: HabitTrial = kind(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(4), checkpoint_policy="none")
        return context.get_full_model_state(trial.model)


def _config(parallelism: Any, **optimizations: Any) -> dict[str, Any]:
    return {"parallelism": parallelism, "optimizations": optimizations}


def _steps_with_closure(trial: HabitTrial, batch: Any) -> None:
    trial.context.backward(trial.loss(batch))
    trial.context.step_optimizer(trial.optimizer, closure=lambda: None)


def _clips_by(measure: Callable[..., torch.Tensor]) -> Callable[[Any, Any], None]:
    def clip(parameters: Any) -> None:
        chosen = [parameter for parameter in parameters if parameter.grad is not None]
        norm = measure([parameter.grad for parameter in chosen])
        for parameter in chosen:
            parameter.grad.mul_(torch.clamp(0.1 / norm, max=1.0))

    def train(trial: HabitTrial, batch: Any) -> None:
        trial.context.backward(trial.loss(batch))
        trial.context.step_optimizer(trial.optimizer, clip)

    return train


_IMPORTED_BEFORE = nn.utils.get_total_norm


def _clips_by_norm(trial: HabitTrial, batch: Any) -> None:
    def measure(gradients: list[torch.Tensor]) -> torch.Tensor:
        return nn.utils.get_total_norm(gradients)

    _clips_by(measure)(trial, batch)


def _clips_by_imported_norm(trial: HabitTrial, batch: Any) -> None:
    _clips_by(_IMPORTED_BEFORE)(trial, batch)


HARMLESS = [_clears_first, _clears_between, _model_clears_between, _module_around_clears_between, _clears_last]
SETTINGS = {
    "ddp": _config("ddp"),
    "ddp, two batches": _config("ddp", aggregation_frequency=2),
    "zero2, two batches": _config("zero2", aggregation_frequency=2),
    "zero3, two batches": _config("zero3", aggregation_frequency=2),
    "zero3, one batch": _config("zero3"),
    "1F1B": _config(PIPELINE),
    "GPipe": _config({**PIPELINE, "schedule": "GPipe"}),
    "zero bubble": _config({**PIPELINE, "schedule": "ZBVZeroBubble"}),
    "pipeline, two batches": _config(PIPELINE, aggregation_frequency=2),
}


@in_folder
def train_harmless(directory: Path) -> list[list[float]]:
    """Returns the largest difference from training without each habit, for each setting."""
    differences = []
    for config in SETTINGS.values():
        plain = train(_plain, config)
        states = [train(habit, config) for habit in HARMLESS]
        differences.append([max(float((state[key] - plain[key]).abs().max()) for key in plain) for state in states])
    return differences


def test_a_zero_grad_of_a_call_s_own_drops_nothing(tmp_path: Path) -> None:
    for differences in run_gang(2, tmp_path / "gang", train_harmless, tmp_path / "work"):
        assert dict(zip(SETTINGS, differences, strict=True)) == dict.fromkeys(SETTINGS, [0.0] * len(HARMLESS))


@in_folder
def refuse(directory: Path, does: Callable[[Any, Any], None], make: Any = Layers) -> str:
    try:
        train(does, _config(PIPELINE), make)
    except GanglineError as error:
        return error.message
    except RuntimeError as error:
        return f"other rank: {error}"
    return ""


@pytest.mark.parametrize(
    ("does", "message"),
    [
        (_steps, "train_batch calls SGD.step() itself, but pipeline calls it once for each microbatch; call context."),
        (_clips_norm, _CLIPS + "pipeline calls it once for each microbatch; pass the"),
        (_clips_values, _CLIPS + "pipeline calls it once for each microbatch; pass the"),
        (_clips_with_context, _CLIPS + "pipeline calls it once for each microbatch; pass the"),
        (_measures, _CLIPS + "pipeline calls it once for each microbatch; pass the"),
        (_steps_with_closure, "pipeline steps once all microbatches are trained, and step_optimizer has a closure"),
        (
            _clips_by_imported_norm,
            "clip_grads measures the norm of one stage's gradients; call torch.nn.utils.get_",
        ),
        (
            _clears_between_alone,
            "step_optimizer(auto_zero_grads=False) with pipeline, and a zero_grad between the model and context.back",
        ),
        (_model_clears_between_alone, "step_optimizer(auto_zero_grads=False) with pipeline, and a zero_grad between"),
        (_steps_scheduler, "train_batch steps a learning rate scheduler, which a pipeline would step once for each"),
    ],
)
def test_what_a_pipeline_would_repeat_is_refused(
    does: Callable[[Any, Any], None], message: str, tmp_path: Path
) -> None:
    told = run_gang(2, tmp_path / "gang", refuse, tmp_path / "work", does)
    real = [text for text in told if not text.startswith("other rank: ")]
    assert real, told
    assert all(text.startswith(message) for text in real), told


@in_folder
def train_alike(directory: Path, does: Callable[[Any, Any], None]) -> float:
    """Returns the largest difference between a pipeline and ddp, of whose batches each slot has a half."""
    state, other = train(does, _config(PIPELINE)), train(does, _config("ddp"))
    return max(float((state[key] - other[key]).abs().max()) for key in other)


def test_a_norm_in_clip_grads_is_that_of_all_stages(tmp_path: Path) -> None:
    assert max(run_gang(2, tmp_path / "gang", train_alike, tmp_path / "work", _clips_by_norm)) < 1e-12


def test_what_the_model_keeps_on_another_slot_is_named(tmp_path: Path) -> None:
    told = run_gang(2, tmp_path / "gang", refuse, tmp_path / "work", _uses_what_the_model_keeps, KeepingLayers)
    (text,) = (text for text in told if not text.startswith("other rank: "))
    assert text.startswith(
        "pipeline cannot run this trial: its train_batch reads size of KeepingLayers behind the model"
    )
    assert "return it from forward beside the output, or give KeepingLayers a default for it" in text


@in_folder
def train_and_listen(directory: Path, does: Callable[[Any, Any], None], make: Any = Layers) -> list[str]:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gangline").addHandler(handler)
    train(does, _config(PIPELINE), make)
    return messages


def test_a_count_of_a_pipeline_s_calls_is_warned_of_once(tmp_path: Path) -> None:
    # On the first slot no call but the last one returns.
    told = run_gang(2, tmp_path / "gang", train_and_listen, tmp_path / "work", _counts)
    start = "train_batch changes self.count, and a pipeline calls it once for each microbatch; "
    assert [sum(text.startswith(start) for text in messages) for messages in told] == [0, 1]


def test_batch_norm_over_microbatches_is_warned_of(tmp_path: Path) -> None:
    told = run_gang(2, tmp_path / "gang", train_and_listen, tmp_path / "work", _plain, NormLayers)
    assert [text for text in told[0] if "BatchNorm1d" in text] == [
        "NormLayers has 1 BatchNorm1d layers, which normalise over one microbatch, so its losses differ from those of "
        "one slot; use GroupNorm"
    ]


@pytest.mark.parametrize(
    ("does", "options", "message"),
    [
        (
            _steps,
            {"aggregation_frequency": 2},
            "train_batch calls SGD.step() itself, but aggregation_frequency makes one step of 2 batches; call "
            "context.step_optimizer(optimizer) in its place",
        ),
        (
            _steps,
            {"mixed_precision": "fp16"},
            "train_batch calls SGD.step() itself, but mixed_precision fp16 scales gradients until "
            "context.step_optimizer; call context.step_optimizer(optimizer) in its place",
        ),
        (
            _clips_norm,
            {"mixed_precision": "fp16"},
            _CLIPS + "mixed_precision fp16 scales",
        ),
        (_clips_values, {"aggregation_frequency": 2}, _CLIPS + "aggregation_frequency"),
        (_clips_with_context, {"aggregation_frequency": 2}, _CLIPS + "aggregation_"),
        (
            _clears_after_a_later_backward,
            {"aggregation_frequency": 2},
            "train_batch clears gradients of Layers that a backward pass after step_optimizer has added to those of "
            "earlier calls, but aggregation_frequency makes one step of 2 batches; call zero_grad before the backward",
        ),
        (
            _model_clears_after_a_later_backward,
            {"aggregation_frequency": 2},
            "train_batch clears gradients of Layers that a backward pass after step_optimizer has added to those of ",
        ),
        (
            _closes_over(lambda trial, loss: trial.optimizer.zero_grad()),
            {"aggregation_frequency": 2},
            "the closure of step_optimizer calls zero_grad, but aggregation_frequency makes one step of 2 batches, and "
            "a closure runs in the last of them alone; call context.backward before step_optimizer, or set "
            "optimizations.aggregation_frequency to 1",
        ),
        (
            _closes_over(lambda trial, loss: trial.model.zero_grad()),
            {"aggregation_frequency": 2},
            "the closure of step_optimizer calls zero_grad, but aggregation_frequency makes one step of 2 batches, and",
        ),
        (
            _closes_over(lambda trial, loss: trial.context.backward(loss)),
            {"aggregation_frequency": 2},
            "the closure of step_optimizer calls context.backward, but aggregation_frequency makes one step of 2 ",
        ),
    ],
)
def test_what_is_wrong_before_a_whole_step_is_refused(
    does: Callable[[Any, Any], None], options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GanglineError) as caught:
        train(does, _config("none", **options))
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("does", [_steps, _clips_norm, _clips_with_context, _clears_after_backward, _measures])
def test_a_step_of_one_call_leaves_torch_to_the_trial(
    does: Callable[[Any, Any], None], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    train(does, _config("none"))


@pytest.mark.parametrize("config", [_config("none"), _config("none", aggregation_frequency=2)])
def test_gradients_that_are_cleared_before_each_step_train_nothing(
    config: dict[str, Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(7)
    untrained = Layers().double().state_dict()
    state = train(_clears_after_backward, config)
    assert all(torch.equal(state[name], untrained[name]) for name in untrained)


@in_folder
def train_nothing(directory: Path) -> float:
    """Returns the largest change of a parameter, where the gradients of all microbatches are cleared before a step."""
    torch.manual_seed(7)
    untrained = Layers().double().state_dict()
    state = train(_clears_after_backward, _config(PIPELINE))
    return max(float((state[name] - untrained[name]).abs().max()) for name in untrained)


def test_gradients_of_a_pipeline_that_are_cleared_before_each_step_train_nothing(tmp_path: Path) -> None:
    assert run_gang(2, tmp_path / "gang", train_nothing, tmp_path / "work") == [0.0, 0.0]


def test_a_closure_that_makes_no_gradients_may_step_after_several_batches(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    config = _config("none", aggregation_frequency=2)
    state, plain = train(_closes_over(lambda trial, loss: loss), config), train(_plain, config)
    assert all(torch.equal(state[name], plain[name]) for name in plain)


@in_folder
def train_alone(directory: Path) -> list[float]:
    """Returns the largest difference from training whose gradients the trainer clears."""
    plain = train(_plain, _config(PIPELINE))
    states = [train(habit, _config(PIPELINE)) for habit in (_clears_first_alone, _clears_last_alone)]
    return [max(float((state[key] - plain[key]).abs().max()) for key in plain) for state in states]


def test_a_pipeline_s_gradients_may_be_cleared_by_the_trial(tmp_path: Path) -> None:
    assert run_gang(2, tmp_path / "gang", train_alone, tmp_path / "work") == [[0.0, 0.0]] * 2


def test_a_norm_of_aggregated_gradients_may_be_measured(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    train(_measures, _config("none", aggregation_frequency=2))
