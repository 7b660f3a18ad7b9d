"""PyTorchTrialContext: the trial's interface to the trainer. The trial passes models, optimizers, schedulers and
reducers to it.

Knows the position of training, but only the loop changes it. gangline.pytorch.trial.update turns gradients into a step.

Owns PyTorchExperimentalContext, the switches of `context.experimental` that Determined has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gangline.config.batch import BatchSplit, split_batch
from gangline.config.strategy_choice import StrategyChoice
from gangline.core import Context, DistributedContext
from gangline.core.beat import BACKWARD, OPTIMIZER, TRAIN_BATCH
from gangline.domain.settled.record import SettledProfiling
from gangline.errors import invalid
from gangline.lacking import Lacking
from gangline.pytorch.data import batch_data as batches
from gangline.pytorch.metrics.reducer import MetricReducer, Reducers
from gangline.pytorch.parallel import Replica, Strategy, log_left_out, recomputation_of, recompute
from gangline.pytorch.parallel.shared.ownership import plain_names
from gangline.pytorch.profile.clock import StepClock
from gangline.pytorch.profile.trace import Trace
from gangline.pytorch.trial.autocast import autocast_forward
from gangline.pytorch.trial.backward import OwnBackward
from gangline.pytorch.trial.lr_scheduler import LRScheduler
from gangline.pytorch.trial.setting import TrialSetting
from gangline.pytorch.trial.tensorboard_writer import TrialWriter
from gangline.pytorch.trial.unit import Position
from gangline.pytorch.trial.update import ParameterUpdate, Precision, check_one_scaler


class PyTorchExperimentalContext(Lacking):
    """Keeps the experimental switches. takes_any_loader, moves_batches: their state, for the trainer."""

    lacks = ("reduce_metrics", "wrap_reducer")

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context
        self.takes_any_loader = False
        self.moves_batches = True

    def disable_dataset_reproducibility_checks(self) -> None:
        """Lets the build_ methods return a torch DataLoader. The trial then divides the data over the ranks, shuffles
        by its seed and skips context.get_initial_batch() batches by itself."""
        self.takes_any_loader = True

    def disable_auto_to_device(self) -> None:
        """Leaves batches on the loader's device; the trial calls context.to_device."""
        self.moves_batches = False

    def use_amp(self) -> None:
        """Turns on mixed precision as optimizations.mixed_precision fp16 does. Called in __init__."""
        self._context.use_amp()

    def reset_reducers(self) -> None:
        """Resets all reducers, as context.reset_reducers does."""
        self._context.reset_reducers()


_log = logging.getLogger("gangline")


class PyTorchTrialContext(Lacking):
    """Context of a trial, one for each rank. Made by gangline.pytorch.init or by the cluster.

    models, optimizers, lr_schedulers, scalers: the wrapped ones, in the order of wrapping. experimental: the switches
    that Determined keeps there.
    """

    lacks = ("from_config", "profiler")

    def __init__(
        self,
        core: Context,
        setting: TrialSetting,
        strategy: Strategy,
        device: torch.device,
        writes_tensorboard: bool = True,
    ) -> None:
        self.core = core
        # Batches that this rank trains for one batch of each rank of the full gang. More than 1 on fewer slots.
        self.rounds = _rounds_of(core)
        self.device = device
        self.setting = setting
        self.strategy = strategy
        # The record of the choice under `parallelism: auto`, set by gangline.pytorch.init.
        self.strategy_choice: StrategyChoice | None = None
        self.experimental = PyTorchExperimentalContext(self)
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.reducers = Reducers(core.distributed, self.replica.is_counted)
        self.clock = StepClock()
        self.trace = Trace()
        self.profiling = SettledProfiling()
        self.position = Position(epoch_length=1, records_per_batch=0)
        # Whether the loop has set the position. Before that its length of an epoch is not known.
        self.is_positioned = False
        self.writes_tensorboard = writes_tensorboard
        self.initial_batch = 0
        self._writer = TrialWriter(self.get_tensorboard_path)
        self._stop_requested = False
        self._has_warned_of_batch_size = False
        # Not bound to the present update, because use_amp replaces it.
        self._own_backward = OwnBackward(lambda: self.update.refuses_own_backward)
        self._set_precision(setting.optimizations.autocast_type)

    @property
    def distributed(self) -> DistributedContext:
        return self.core.distributed

    @property
    def replica(self) -> Replica:
        """The data replica that this rank belongs to."""
        return self.strategy.replica_of(self.distributed.rank, self.distributed.size)

    @property
    def n_gpus(self) -> int:
        """Number of this machine's GPUs that the trial trains on."""
        return self.distributed.local_size if self.device.type == "cuda" else 0

    @property
    def scalers(self) -> list[Any]:
        return self.update.scalers

    # The experiment's configuration.

    def get_hparams(self) -> dict[str, Any]:
        return dict(self.setting.hparams)

    def get_hparam(self, name: str) -> Any:
        if name not in self.setting.hparams:
            names = ", ".join(sorted(self.setting.hparams)) or "none"
            raise invalid("pytorch.hparam", f"there is no hyperparameter {name!r}; known are {names}")
        return self.setting.hparams[name]

    def get_experiment_config(self) -> dict[str, Any]:
        return dict(self.setting.config)

    def get_data_config(self) -> dict[str, Any]:
        """Returns the configuration's section `data`."""
        return dict(self.setting.settled.data)

    def get_trial_seed(self) -> int:
        return self.setting.trial_seed

    def get_experiment_id(self) -> int:
        """Returns the experiment's id; 0 off the cluster."""
        return self.core.info.trial.experiment_id if self.core.info else 0

    def get_trial_id(self) -> str:
        """Returns the trial's id; empty off the cluster."""
        return self.core.info.trial.trial_id if self.core.info else ""

    def get_global_batch_size(self) -> int:
        """Returns the records of one batch over all ranks: global_batch_size without the remainder by slots_per_trial.
        The same in an attempt on fewer slots."""
        return self._split_batch().effective

    def get_per_slot_batch_size(self) -> int:
        """Returns the records of one batch of one rank, for a DataLoader's batch_size. On fewer slots than
        slots_per_trial it is the same, and train_batch is called several times for one batch."""
        return self._split_batch().per_replica

    # Wrapping of the trial's objects.

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Moves the model to the device and prepares it for all ranks. Returns the module to train; its state_dict has
        the names of the model given."""
        if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
            raise invalid(
                "pytorch.meta_model",
                f"wrap_model got a {type(model).__name__} on the meta device, whose parameters have no values; build "
                "it on the CPU",
            )
        log_left_out(recompute(model, *recomputation_of(self.setting.parallelism)))
        wrapped = self.strategy.prepare_model(model if self.strategy.places_models else model.to(self.device))
        if not self.strategy.runs_batch:
            self._own_backward.watch(wrapped)
        self.update.guard.watch_model(wrapped)
        self.models.append(wrapped)
        return wrapped

    def wrap_optimizer(
        self,
        optimizer: Optimizer,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> Optimizer:
        """Registers an optimizer. Called after wrap_model of the models whose parameters it has. Returns the optimizer
        to step.

        backward_passes_per_step: accepted, no effect. Several backward passes may come before a step. fp16_compression:
        whether the ranks exchange the gradients of its models in fp16, as with optimizations.gradient_compression:
        true. A compression that the experiment names takes precedence, and optimizers of one model may not pass True
        and False. average_aggregated_gradients: applies to all optimizers and replaces the value in optimizations; None
        keeps that value.
        """
        if average_aggregated_gradients is not None:
            self._average_gradients(average_aggregated_gradients)
        self.update.guard.watch_step(optimizer)
        wrapped = self.strategy.prepare_optimizer(optimizer)
        self.update.guard.watch_clearing(wrapped)
        self.strategy.keep_own_state(wrapped)
        self._compress_gradients(wrapped, fp16_compression)
        self.optimizers.append(wrapped)
        return wrapped

    def wrap_lr_scheduler(self, lr_scheduler: Any, step_mode: LRScheduler.StepMode, frequency: int = 1) -> Any:
        """Registers a scheduler. The trainer steps it from then on, unless step_mode is MANUAL_STEP."""
        is_by_metric = isinstance(lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if is_by_metric and step_mode is not LRScheduler.StepMode.MANUAL_STEP:
            raise invalid(
                "pytorch.lr_scheduler",
                f"wrap_lr_scheduler: {type(lr_scheduler).__name__} steps by a metric, which the trainer does not pass "
                "on; use LRScheduler.StepMode.MANUAL_STEP and step it in the trial, as in a callback's "
                "on_validation_end",
            )
        self.lr_schedulers.append(LRScheduler(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    def wrap_scaler(self, scaler: Any) -> Any:
        """Registers a torch.amp.GradScaler of the trial's own; checkpoints keep its state. The trial scales the loss
        with it before context.backward, and passes it to step_optimizer. mixed_precision fp16 does all this by itself.
        """
        check_one_scaler(self.update.own_scaler is not None, has_wrapped=True)
        self.scalers.append(scaler)
        return scaler

    def wrap_reducer(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """Adds metrics that are computed from the data of all ranks. Called in __init__, on all ranks alike.

        reducer: a MetricReducer, or a function. The function gets the list of all values that any rank passes to the
        returned reducer's update(value). name: of the one metric that it returns; without a name it returns a
        dictionary of metrics. for_training, for_validation: the reports that it takes part in.
        """
        return self.reducers.wrap(reducer, name, for_training, for_validation)

    def reset_reducers(self) -> None:
        """Resets all reducers."""
        for is_training in (True, False):
            self.reducers.reset(is_training)

    def reduce_metrics(self, for_training: bool) -> dict[str, float]:
        """Returns the metrics over all ranks of the reducers that take part in training reports, or in validations.
        Resets those reducers. All ranks call it in step. The trainer itself does so at each report."""
        return self.reducers.reduce(for_training)

    def configure_apex_amp(
        self, models: Any, optimizers: Any = None, enabled: bool = True, opt_level: str = "O1", **_options: Any
    ) -> Any:
        """Turns fp16 autocast on, unless opt_level is O0, for trials written for apex. Returns its arguments."""
        if enabled and opt_level != "O0":
            self.use_amp()
            _log.info("configure_apex_amp: apex is not used; %s becomes torch.autocast with fp16", opt_level)
        return models if optimizers is None else (models, optimizers)

    def use_amp(self) -> None:
        """Turns on mixed precision as optimizations.mixed_precision fp16 does. Called in __init__."""
        if self.precision.kind is None:
            check_one_scaler(True, has_wrapped=bool(self.scalers))
            self._set_precision("fp16")

    def set_profiler(self, *arguments: Any, **options: Any) -> None:
        """Configures torch's profiler with the arguments of torch.profiler.profile. The trainer steps it after every
        batch; its traces go to TensorBoard."""
        self.trace.configure(*arguments, **options)

    # Methods that train_batch calls.

    def backward(
        self, loss: torch.Tensor, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Runs the backward pass like loss.backward, for a loss of one number. Gradients that are aggregated over
        several batches become a mean, unless optimizations.average_aggregated_gradients is off. create_graph: on one
        slot only."""
        # Lets the hang watchdog distinguish a rank that waits for the others here from one that has not got here. Ranks
        # of a pipeline get here at different times, and not equally often.
        (self.core.beat.stay if self.strategy.runs_batch else self.core.beat.enter)(BACKWARD)
        self.update.backward(loss, gradient, retain_graph, create_graph)
        self.core.beat.stay(TRAIN_BATCH)

    def step_optimizer(
        self,
        optimizer: Optimizer,
        clip_grads: Callable[[Iterable[nn.Parameter]], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: Any = None,
        closure: Callable[[], Any] | None = None,
    ) -> None:
        """Updates the parameters and clears their gradients, once in aggregation_frequency batches.

        clip_grads: called with the optimizer's parameters before the update. auto_zero_grads: False leaves clearing the
        gradients to the caller. scaler: a wrapped GradScaler; it is updated at the end of the batch, unless the trial
        does so itself.
        """
        # A pipeline steps in the last of its calls alone.
        (self.core.beat.enter if self.update.is_step_batch else self.core.beat.stay)(OPTIMIZER)
        self.update.step(optimizer, clip_grads, auto_zero_grads, scaler, closure)
        self.core.beat.stay(TRAIN_BATCH)

    def clip_grad_norm(
        self, parameters: Iterable[nn.Parameter] | nn.Parameter, max_norm: float, norm_type: float = 2.0
    ) -> torch.Tensor:
        """Clips gradients like torch.nn.utils.clip_grad_norm_, for step_optimizer's clip_grads: clip_grads=lambda
        parameters: context.clip_grad_norm(parameters, 1.0). Returns the norm over all ranks' parts as a plain tensor
        with every strategy. All ranks call it in step."""
        parameters = self.update.guard.check_clipped(parameters)
        return self.strategy.clip_gradients(parameters, max_norm, norm_type)

    def get_full_model_state(self, model: nn.Module) -> dict[str, Any]:
        """Returns a wrapped model's whole state_dict on the CPU, also where ranks have parts of it. It fits the bare
        model, before torch.compile. All ranks call it in step; each gets all of it."""
        return plain_names(self.strategy.full_model_state(model))

    def autocast(self) -> AbstractContextManager[Any]:
        """Returns the context of mixed_precision, for forward passes outside of train_batch and evaluate_batch. Without
        mixed precision it does nothing."""
        return self.precision.autocast()

    def autocast_forward_pass(self, to_wrap: nn.Module) -> nn.Module:
        """Puts the forward pass of this module under torch.autocast, and returns the module. Its results in half
        precision become float32, so that a loss needs no autocast. Determined wraps the module in another one."""
        return autocast_forward(to_wrap, self.device)

    def to_device(self, data: Any, warned_types: Any = None) -> Any:
        """Returns the same data with its tensors and arrays on this rank's device. Batches that the trainer passes are
        there already. warned_types: accepted, no effect."""
        return batches.move(data, self.device)

    # Position of training.

    def is_epoch_start(self) -> bool:
        """Returns whether the running batch is the first of its epoch."""
        return self._running_position("is_epoch_start").is_epoch_start

    def is_epoch_end(self) -> bool:
        """Returns whether the running batch is the last of its epoch."""
        return self._running_position("is_epoch_end").is_epoch_end

    def current_train_epoch(self) -> int:
        return self._running_position("current_train_epoch").epoch

    def current_train_batch(self) -> int:
        """Returns the number of completed batches, counted over the whole trial."""
        return self._running_position("current_train_batch").batches

    def _running_position(self, call: str) -> Position:
        if not self.is_positioned:
            raise invalid(
                "pytorch.not_training",
                f"context.{call}() is called before training begins, where there is no position yet; call it in "
                "train_batch or later",
            )
        return self.position

    def get_initial_batch(self) -> int:
        """Returns the batches that this rank had completed when this process began, for loaders that skip by
        themselves. On fewer slots than slots_per_trial these are several for each batch of the trial."""
        return self.initial_batch * self.rounds

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Ends training early with a checkpoint, as soon as all ranks have noticed. Any rank may call it."""
        if not isinstance(stop_requested, bool):
            raise invalid("pytorch.stop_requested", f"set_stop_requested({stop_requested!r}): expected True or False")
        self._stop_requested = stop_requested

    def get_stop_requested(self) -> bool:
        return self._stop_requested

    # TensorBoard.

    def get_tensorboard_path(self) -> Path:
        """Returns a folder of this rank; its files are uploaded to the trial's storage."""
        return self.core.train.get_tensorboard_path()

    def get_tensorboard_writer(self) -> Any:
        """Returns a SummaryWriter on that folder, the same at each call. The chief's own metrics are written with it
        too."""
        return self._writer.writer()

    def get_enable_tensorboard_logging(self) -> bool:
        return self.writes_tensorboard

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Sets whether the trainer also writes the metrics that it reports to TensorBoard."""
        self.writes_tensorboard = enable_tensorboard_logging

    def log_to_tensorboard(self, group: str, steps_completed: int, metrics: dict[str, float]) -> None:
        """Writes metrics to TensorBoard. Chief only; the trainer calls it with each report."""
        if self.writes_tensorboard:
            self._writer.add({f"{group}/{name}": value for name, value in metrics.items()}, steps_completed)

    def flush_writer(self) -> None:
        """Writes what is pending. The trainer calls it at the end of training."""
        self._writer.flush()

    def close_writer(self) -> None:
        """Does the same and closes the writer. gangline.pytorch.init calls it at the end of its block."""
        self._writer.close()

    def _average_gradients(self, is_on: bool) -> None:
        # Changes the setting as well, because use_amp makes a new update from it.
        optimizations = self.setting.optimizations.model_copy(update={"average_aggregated_gradients": is_on})
        self.setting = replace(self.setting, optimizations=optimizations)
        self.update.averages(is_on)

    def _compress_gradients(self, optimizer: Optimizer, wants_fp16: bool | None) -> None:
        if wants_fp16 is None:
            return
        named = self.setting.optimizations.gradient_compression.hook
        if named is None:
            self.strategy.compress_gradients(optimizer, wants_fp16)
        elif wants_fp16 != (named == "fp16"):
            text = "wrap_optimizer(fp16_compression=%s) has no effect: optimizations.gradient_compression says %s"
            _log.warning(text, wants_fp16, named)

    def _set_precision(self, kind: str | None) -> None:
        self.precision = Precision(self.device, kind)
        self.update = ParameterUpdate(
            self.setting.optimizations,
            self.strategy,
            self.precision,
            self.clock,
            rounds=self.rounds,
            may_shrink=self.setting.may_shrink,
        )
        for model in self.models:
            self.update.guard.watch_model(model)
        for optimizer in self.optimizers:
            self.update.guard.watch_step(optimizer)
            self.update.guard.watch_clearing(optimizer)
        scaler = self.precision.make_scaler()
        if scaler is not None:
            self.update.own_scaler = scaler
            self.scalers.append(scaler)

    def _split_batch(self) -> BatchSplit:
        size = self.get_hparam("global_batch_size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise invalid(
                "config.batch_size", f"hyperparameters.global_batch_size: expected a number above 0, found {size!r}"
            )
        world_size = self.distributed.size
        split = split_batch(size, world_size * self.rounds, world_size // self.replica.count)
        if split.warning and self.distributed.is_chief and not self._has_warned_of_batch_size:
            self._has_warned_of_batch_size = True
            _log.warning("%s", split.warning)
        return split


def _rounds_of(core: Context) -> int:
    """Returns the rounds of this rank in one step. 1 where the script's own launcher runs another number of workers
    than the trial has slots."""
    info = core.info
    return info.rounds if info is not None and info.world_size == core.distributed.size else 1
