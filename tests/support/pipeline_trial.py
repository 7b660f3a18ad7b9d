"""Trainings of pipelines, whose losses one process can make too: a run by its settings, the trial that others derive
from, and the reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.pytorch.parallel.shared.ownership import inner_of
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang
from tests.support.pipeline_models import Chain, Late
from tests.support.points_trial import Recorder, make_optimizer

# Calls of compiled code in this process.
_calls = Counter[str]()


def counted(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """Backend of torch.compile that counts calls of what it compiles."""

    def call(*args: Any) -> Any:
        _calls["compiled"] += 1
        return graph.forward(*args)

    return call


@dataclass(frozen=True)
class Run:
    """One training."""

    kind: type[ChainTrial]
    parallelism: Any
    batches: int = 4
    hparams: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)  # configuration of the experiment beside parallelism
    latest: int | None = None  # number of the run from whose last checkpoint it continues; None for none
    saves: bool = False


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    losses: list[float]  # loss of each batch
    validations: list[dict[str, float]]
    model: dict[str, torch.Tensor]  # the whole state at the end
    held: int  # number of parameters with values on this rank
    states: int  # number of values in this rank's optimizer, without its counts of steps
    checkpoint: str | None
    compiled: int  # calls of compiled code, see `counted`


class ChainTrial(pytorch.PyTorchTrial):
    """hyperparameters: optimizer, records, validation_records, rate. compiled: when the whole model is compiled, one of
    `before`, `in place`, `after` and `in place, after`. options: of torch.compile; without a backend, calls are
    counted."""

    make: Callable[[], nn.Module] = Chain

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        torch.manual_seed(7)
        model = type(self).make().to(self.kind)
        when = context.get_hparams().get("compiled")
        options = {"backend": counted, **context.get_hparams().get("options", {})}
        if when == "in place":
            model.compile(**options)
        elif when == "before":
            model = torch.compile(model, **options)  # type: ignore[assignment]  # torch types it as a function
        self.model = context.wrap_model(model)
        optimizer = make_optimizer(self.model, context.get_hparams().get("optimizer", "adamw"))
        self.optimizer = context.wrap_optimizer(optimizer)
        self.recorder = Recorder()
        if when == "after":
            self.model = torch.compile(self.model, **options)  # type: ignore[assignment]  # torch types it as a function
        elif when == "in place, after":
            self.model.compile(**options)

    @property
    def kind(self) -> torch.dtype:
        return torch.float32 if self.context.setting.optimizations.autocast_type else torch.float64

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"recorder": self.recorder}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        records = self.context.get_hparams().get("records", 64)
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(self.data(records), batch_size=size, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        # Two batches of one shape. With 21 records the last batch is smaller, which takes one more layout.
        records = self.context.get_hparams().get("validation_records", 16)
        return pytorch.DataLoader(self.data(records), batch_size=8)

    def data(self, records: int) -> TensorDataset:
        inputs = torch.randn(records, 6, generator=torch.Generator().manual_seed(3)).to(self.kind)
        return TensorDataset(inputs, torch.tanh(inputs[:, :3] + inputs[:, 3:]))

    def loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        return functional.mse_loss(self.model(inputs), targets)

    def clip(self, parameters: Any) -> None:
        self.context.clip_grad_norm(parameters, 0.5)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, self.clip)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": self.loss(batch)}


class LateTrial(ChainTrial):
    """Whose model has a connection from the second batch on."""

    make = Late

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        inner_of(self.model).is_late = batch_idx >= 1  # type: ignore[assignment]  # an attribute of the model
        return super().train_batch(batch, epoch_idx, batch_idx)


def penalty_of(model: nn.Module) -> torch.Tensor:
    """Of all weights, which lie on several stages."""
    return torch.stack([parameter.abs().sum() for parameter in model.parameters()]).sum() * 0.01


@in_folder
def train_all(directory: Path, runs: Sequence[Run]) -> list[Result]:
    """Trains one run after another in a folder, whose checkpoints they share."""
    results: list[Result] = []
    for run in runs:
        latest = None if run.latest is None else results[run.latest].checkpoint
        results.append(train(run, latest))
    return results


def train(run: Run, latest: str | None = None) -> Result:
    config = {"parallelism": run.parallelism, "scheduling_unit": 1, **run.config}
    _calls.clear()
    with pytorch.init(hparams={"global_batch_size": 16, **run.hparams}, exp_conf=config) as context:
        trial = run.kind(context)
        policy = "all" if run.saves else "none"
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(run.batches), latest_checkpoint=latest, checkpoint_policy=policy
        )
        state = context.get_full_model_state(trial.model)
        held = sum(parameter.numel() for parameter in trial.model.parameters() if not parameter.is_meta)
        entries = [value for entry in trial.optimizer.state.values() for value in entry.values()]
        states = sum(value.numel() for value in entries if isinstance(value, torch.Tensor) and value.dim())
        saved = context.distributed.broadcast(trial.recorder.checkpoints[-1] if trial.recorder.checkpoints else None)
    losses, validations = trial.recorder.losses, trial.recorder.validations
    return Result(losses, validations, state, held, states, saved, _calls["compiled"])


def train_by_name(size: int, directory: Path, runs: Mapping[str, Run]) -> dict[str, list[Result]]:
    """Trains in a gang of that size. Returns the results of all ranks by the name of the run."""
    by_rank = run_gang(size, directory / "gang", train_all, directory / "work", list(runs.values()))
    return {name: list(results) for name, results in zip(runs, zip(*by_rank, strict=True), strict=True)}


class Alone:
    """Trains runs in one process, for reference; each one once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._results: dict[str, Result] = {}

    def __call__(self, run: Run) -> Result:
        # Without torch.compile, whose names differ.
        hparams = {name: value for name, value in run.hparams.items() if name not in ("compiled", "options")}
        alone = replace(run, parallelism="none", hparams=hparams, latest=None, saves=False)
        key = repr(alone)
        if key not in self._results:
            # What a trial compiles by itself runs as it is written.
            with torch.compiler.set_stance("force_eager"):
                (self._results[key],) = train_all(self._directory, [alone])
        return self._results[key]


def check_same(results: list[Result], reference: Result, tolerance: float = 1e-12) -> None:
    """results: of all ranks. Those that continue a checkpoint have the last losses of the reference."""
    for result in results:
        assert result.losses == pytest.approx(reference.losses[-len(result.losses) :], abs=tolerance)
        assert result.validations[-1]["error"] == pytest.approx(reference.validations[-1]["error"], abs=tolerance * 1e3)
        assert result.model.keys() == reference.model.keys()
        for name, value in result.model.items():
            assert (value.double() - reference.model[name].double()).abs().max() <= tolerance * 1e3, name


def pipeline(**options: Any) -> dict[str, Any]:
    return {"strategy": "pipeline", **options}
