"""Trainer.fit: the call of a script that trains a trial. Makes a schedule from arguments and configuration, finds the
checkpoint to continue from, and runs the loop."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch.utils import data

from gangline.cluster_info import CheckpointInfo
from gangline.core.beat import BUILD
from gangline.core.checkpoint_location import location_of
from gangline.core.closing import ending
from gangline.domain.experiment import STEPS_COMPLETED
from gangline.errors import invalid
from gangline.pytorch.checkpoint import TRIAL_ID, Source, is_of_another_trial, is_plain_determined, open_source
from gangline.pytorch.checkpoint.determined import describe_folder
from gangline.pytorch.data.foreign_loader import ForeignLoader
from gangline.pytorch.data.loader import DataLoader
from gangline.pytorch.profile.profile import open_profile
from gangline.pytorch.profile.traffic import Traffic
from gangline.pytorch.training.evaluation import Evaluation
from gangline.pytorch.training.loop import TrainingLoop
from gangline.pytorch.training.schedule import NO_RUNGS, Rungs, Schedule
from gangline.pytorch.trial.callback import PyTorchCallback, trial_open
from gangline.pytorch.trial.context import PyTorchTrialContext
from gangline.pytorch.trial.setting import check_policy, check_unit
from gangline.pytorch.trial.trial import PyTorchTrial
from gangline.pytorch.trial.unit import Batch, TrainUnit

_log = logging.getLogger("gangline")


class Trainer:
    """Trains one trial. Every rank makes one with its own trial and context."""

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        self._trial = trial
        self._context = context

    def fit(  # noqa: PLR0917  the order of Determined's arguments
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit | None = None,
        checkpoint_policy: str | None = None,
        latest_checkpoint: str | CheckpointInfo | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
    ) -> None:
        """Trains until max_length, an early stop or a preemption. Returns after the last checkpoint. All ranks call it.

        Missing arguments come from the experiment's configuration. With neither, checkpoints and validations happen at
        the end only, and reports every 100 batches. checkpoint_policy: which states to save after a validation:
        "best", "all" or "none". latest_checkpoint: the checkpoint to continue from: an id, the URL of its folder,
        get_cluster_info().latest_checkpoint, or a folder that Determined wrote; None starts anew. From another trial's
        checkpoint training takes everything but the position, and begins at batch 0. step_zero_validation: validate
        before the first batch. test_mode: one batch of everything, to see whether the code works. profiling_enabled:
        as profiling.enabled.
        """
        setting = self._context.setting
        profiling = setting.settled.profiling
        self._context.profiling = profiling._replace(enabled=profiling.enabled or profiling_enabled)
        reporting = check_unit(reporting_period, "reporting_period")
        schedule = Schedule(
            max_length=_length(check_unit(max_length, "max_length") or setting.max_length, test_mode),
            reporting_period=Batch(1) if test_mode else reporting or setting.reporting_period,
            validation_period=check_unit(validation_period, "validation_period") or setting.validation_period,
            checkpoint_period=check_unit(checkpoint_period, "checkpoint_period") or setting.checkpoint_period,
            checkpoint_policy=check_policy(checkpoint_policy or setting.settled.checkpoint_policy),
            rungs=NO_RUNGS if test_mode else Rungs(setting.rungs),
            aggregation_frequency=setting.optimizations.aggregation_frequency,
        )
        validates_first = step_zero_validation or setting.settled.perform_initial_validation
        self._train(schedule, latest_checkpoint, validates_first, test_mode)

    def _train(
        self, schedule: Schedule, checkpoint: str | CheckpointInfo | None, validate_first: bool, test_mode: bool
    ) -> None:
        context = self._context
        context.core.beat.start(BUILD)
        _check_wrapped(context)
        _warn_of_strangers(context)
        context.initial_batch = self._batches_of(checkpoint)
        context.position.batches = context.initial_batch
        callbacks = self._trial.build_callbacks()
        with (
            ending(TensorBoard_files=context.flush_writer),
            trial_open(callbacks, context.initial_batch, _id_of(checkpoint)),
        ):
            is_preempted = self._run(callbacks, schedule, checkpoint, validate_first, test_mode)
        if is_preempted:
            context.core.link.send_stopping()
        context.core.link.batches_completed = context.position.batches

    def _run(
        self,
        callbacks: dict[str, PyTorchCallback],
        schedule: Schedule,
        checkpoint: str | CheckpointInfo | None,
        validate_first: bool,
        test_mode: bool,
    ) -> bool:
        """Runs the loop. Returns whether it ended because the slots are needed."""
        context = self._context
        evaluation = Evaluation(
            trial=self._trial,
            context=context,
            callbacks=callbacks,
            loader=self._loader_of(self._trial.build_validation_data_loader(), "build_validation_data_loader"),
            max_batches=1 if test_mode else None,
        )
        training = self._loader_of(self._trial.build_training_data_loader(), "build_training_data_loader")
        profile = open_profile(
            context.profiling,
            clock=context.clock,
            trace=context.trace,
            traffic=Traffic(context.strategy.traffic_meters(), context.clock),
            device=context.device,
            batches=context.initial_batch,
        )
        loop = TrainingLoop(
            trial=self._trial,
            context=context,
            callbacks=callbacks,
            schedule=schedule,
            loader=training,
            evaluation=evaluation,
            profile=profile,
        )
        with ending(heartbeat=context.core.beat.end, profile=profile.close, trace=context.trace.stop):
            try:
                source = self._restore(loop, checkpoint)
                context.trace.start(context.core.tensorboard)
                loop.run(source, validate_first)
            except BaseException:
                loop.settle()
                raise
        return loop.is_preempted

    def _batches_of(self, checkpoint: str | CheckpointInfo | None) -> int:
        """Returns the batches completed when a checkpoint was saved; 0 for one of another trial."""
        if checkpoint is None:
            return 0
        if isinstance(checkpoint, CheckpointInfo):
            return checkpoint.batches_completed
        if is_plain_determined(Path(checkpoint)):
            return 0 if self._context.get_trial_id() else describe_folder(Path(checkpoint)).batches
        storage_url, storage_id = location_of(checkpoint, self._context.core.checkpoint.storage_url)
        metadata = self._context.core.checkpoint.of_storage(storage_url).get_metadata(storage_id)
        if is_of_another_trial(metadata.get(TRIAL_ID, ""), self._context.get_trial_id()):
            return 0
        return int(metadata.get(STEPS_COMPLETED, 0))

    def _loader_of(self, loader: Any, method: str) -> DataLoader | ForeignLoader:
        if isinstance(loader, DataLoader):
            return loader
        if isinstance(loader, data.DataLoader):
            if self._context.experimental.takes_any_loader:
                return ForeignLoader(loader)
            raise invalid(
                "pytorch.loader",
                f"{method} returned a torch DataLoader, which knows nothing of the ranks; return a "
                "gangline.pytorch.DataLoader, or divide the data in the trial and call "
                "context.experimental.disable_dataset_reproducibility_checks()",
            )
        raise invalid(
            "pytorch.loader", f"{method} returned a {type(loader).__name__}; return a gangline.pytorch.DataLoader"
        )

    def _restore(self, loop: TrainingLoop, checkpoint: str | CheckpointInfo | None) -> Source | None:
        if checkpoint is None:
            return None
        if not isinstance(checkpoint, CheckpointInfo) and is_plain_determined(Path(checkpoint)):
            return self._load_source(loop, Path(checkpoint), checkpoint)
        storage_url, storage_id = location_of(checkpoint, self._context.core.checkpoint.storage_url)
        with self._context.core.checkpoint.of_storage(storage_url).restore_path(storage_id) as directory:
            return self._load_source(loop, directory, storage_id)

    def _load_source(self, loop: TrainingLoop, directory: Path, name: str) -> Source:
        source = open_source(directory)
        loop.restore(source)
        if self._context.position.batches:
            _log.info("training goes on after batch %d of checkpoint %s", self._context.position.batches, name)
        return source


def _length(length: TrainUnit | None, test_mode: bool) -> TrainUnit:
    if test_mode:
        return Batch(1)
    if length is None:
        raise invalid(
            "pytorch.no_length",
            "nothing says how long to train: pass max_length to Trainer.fit, as in max_length=pytorch.Epoch(5), or set "
            "searcher.max_length",
        )
    length.length  # noqa: B018  raises where the length is no number
    return length


def _check_wrapped(context: PyTorchTrialContext) -> None:
    for what, wrapped in (("model", context.models), ("optimizer", context.optimizers)):
        if not wrapped:
            raise invalid(
                "pytorch.not_wrapped",
                f"the trial wrapped no {what}; pass it to context.wrap_{what} in __init__ and use what that returns",
            )


def _warn_of_strangers(context: PyTorchTrialContext) -> None:
    """Warns of optimizers with parameters of no wrapped model. Several ranks refuse them, because the ranks would train
    them apart; on one rank they are only not saved."""
    wrapped_ids = {id(parameter) for model in context.models for parameter in model.parameters()}
    for optimizer in context.optimizers:
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        strange = sum(id(parameter) not in wrapped_ids for parameter in stepped)
        if strange:
            _log.warning(
                "%d of %d parameters of %s belong to no wrapped model, so checkpoints do not hold them, and several "
                "slots could not train them; pass the module that holds them to context.wrap_model",
                strange,
                len(stepped),
                type(optimizer).__name__,
            )


def _id_of(checkpoint: str | CheckpointInfo | None) -> str | None:
    return checkpoint.id if isinstance(checkpoint, CheckpointInfo) else checkpoint
