"""Trains a random program under Gangline, on each rank of a gang."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.utils.data import TensorDataset

from benchmarks.random_program import build
from benchmarks.random_program.outcome import Outcome
from benchmarks.random_program.program import GLOBAL_BATCH, Program
from gangline import pytorch


class ProgramTrial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, program: Program) -> None:
        self.context = context
        self.program = program
        self.recorder = _Recorder(self)
        mode = pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH
        self.world = build.build(
            program,
            context.wrap_model,
            context.wrap_optimizer,
            lambda scheduler: context.wrap_lr_scheduler(scheduler, mode),
        )

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"recorder": self.recorder}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        data = TensorDataset(*build.training_data(self.program))
        return pytorch.DataLoader(data, batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(
            TensorDataset(*build.validation_data(self.program)), batch_size=build.VALIDATION_BATCH
        )

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = build.loss_of(self.world.model, *batch)
        self.context.backward(loss)
        for optimizer in self.world.optimizers:
            self.context.step_optimizer(optimizer, lambda parameters: build.clip(self.program, parameters))
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": build.loss_of(self.world.model, *batch)}


class _Recorder(pytorch.PyTorchCallback):
    def __init__(self, trial: ProgramTrial) -> None:
        self._trial = trial
        self.outcome = Outcome()
        self.checkpoint = ""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        steps = (step for epoch, step in self._trial.program.events if epoch == epoch_idx)
        build.make_steps(self._trial.world, steps)

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.outcome.losses.append(float(avg_metrics["loss"]))

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.outcome.validations.append(float(metrics["error"]))

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.checkpoint = uuid


def train_in_rank(program: Program) -> Outcome:
    """Returns the outcome of this rank. Checkpoints go to the current folder."""
    if not program.saved:
        return _fit(program, program.batches, None)[0]
    first, checkpoint = _fit(program, program.saved, None)
    rest, _ = _fit(program, program.batches, checkpoint)
    validations = first.validations if program.saved % program.period == 0 else first.validations[:-1]
    return dataclasses.replace(
        rest, losses=[*first.losses, *rest.losses], validations=[*validations, *rest.validations]
    )


def _fit(program: Program, batches: int, latest: str | None) -> tuple[Outcome, str]:
    config = {
        "parallelism": program.section,
        "scheduling_unit": 1,
        "optimizations": {"aggregation_frequency": program.aggregation},
    }
    with pytorch.init(hparams={"global_batch_size": GLOBAL_BATCH}, exp_conf=config) as context:
        trial = ProgramTrial(context, program)
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(batches),
            reporting_period=pytorch.Batch(1),
            validation_period=pytorch.Batch(program.period),
            checkpoint_policy="none",
            latest_checkpoint=latest,
        )
        outcome = trial.recorder.outcome
        outcome.state = context.get_full_model_state(trial.world.model)
        groups = (group for optimizer in trial.world.optimizers for group in optimizer.param_groups)
        outcome.rates = [float(group["lr"]) for group in groups]
        return outcome, str(context.distributed.broadcast(trial.recorder.checkpoint))
