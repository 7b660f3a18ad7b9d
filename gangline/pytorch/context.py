"""What a trial may ask of the trainer, and what it hands over to it: models, optimizers, schedulers.

Owns the optimizer step and its rules (aggregation, clipping, scaling). It knows where training stands, but never moves
it: that is the loop's business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gangline.config.batch import BatchSplit, split_batch
from gangline.core import Context, DistributedContext
from gangline.errors import invalid
from gangline.pytorch import batch as batches
from gangline.pytorch.parallel import Strategy
from gangline.pytorch.setting import TrialSetting
from gangline.pytorch.unit import Position

_log = logging.getLogger("gangline")


class LRScheduler:
    """A learning-rate scheduler with the moment at which the trainer steps it, every `frequency` of them."""

    class StepMode(Enum):
        STEP_EVERY_BATCH = 1
        STEP_EVERY_OPTIMIZER_STEP = 2
        STEP_EVERY_EPOCH = 3
        MANUAL_STEP = 4

    def __init__(self, scheduler: Any, step_mode: StepMode, frequency: int = 1) -> None:
        if frequency < 1:
            raise invalid("pytorch.lr_scheduler", f"wrap_lr_scheduler: frequency is {frequency}; it must be at least 1")
        self.scheduler = scheduler
        self.step_mode = step_mode
        self.frequency = frequency


class PyTorchTrialContext:
    """Made by gangline.pytorch.init or by the cluster; one for each rank.

    models, optimizers, lr_schedulers, scalers: what was wrapped, in that order.
    """

    def __init__(self, core: Context, setting: TrialSetting, strategy: Strategy, device: torch.device) -> None:
        self.core = core
        self.device = device
        self.setting = setting
        self.strategy = strategy
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.scalers: list[Any] = []
        self.position = Position(epoch_length=1, records_per_batch=0)
        self._stop_requested = False
        self._has_warned_of_batch_size = False

    @property
    def distributed(self) -> DistributedContext:
        return self.core.distributed

    # What the experiment says.

    def get_hparams(self) -> dict[str, Any]:
        return dict(self.setting.hparams)

    def get_hparam(self, name: str) -> Any:
        if name not in self.setting.hparams:
            known = ", ".join(sorted(self.setting.hparams)) or "none"
            raise invalid("pytorch.hparam", f"there is no hyperparameter {name!r}; known are {known}")
        return self.setting.hparams[name]

    def get_experiment_config(self) -> dict[str, Any]:
        return dict(self.setting.config)

    def get_data_config(self) -> dict[str, Any]:
        """The configuration's section `data`."""
        return dict(self.setting.config.get("data") or {})

    def get_trial_seed(self) -> int:
        return self.setting.trial_seed

    def get_experiment_id(self) -> int:
        """0 off the cluster."""
        return self.core.info.trial.experiment_id if self.core.info else 0

    def get_trial_id(self) -> str:
        """Empty off the cluster."""
        return self.core.info.trial.trial_id if self.core.info else ""

    def get_global_batch_size(self) -> int:
        """Records of one batch over all ranks: global_batch_size without what the slots do not divide."""
        return self._split_batch().effective

    def get_per_slot_batch_size(self) -> int:
        """Records of one batch of one rank: what a DataLoader's batch_size should be."""
        return self._split_batch().per_slot

    # What the trial hands over.

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Moves the model to the device and spreads it over the ranks. Returns the module to train; its state_dict
        has the names of the model given."""
        wrapped = self.strategy.prepare_model(model.to(self.device))
        self.models.append(wrapped)
        return wrapped

    def wrap_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """After the models whose parameters it holds."""
        wrapped = self.strategy.prepare_optimizer(optimizer)
        self.optimizers.append(wrapped)
        return wrapped

    def wrap_lr_scheduler(self, lr_scheduler: Any, step_mode: LRScheduler.StepMode, frequency: int = 1) -> Any:
        """The trainer steps it from then on, unless step_mode is MANUAL_STEP."""
        self.lr_schedulers.append(LRScheduler(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    def wrap_scaler(self, scaler: Any) -> Any:
        """A torch.amp.GradScaler, whose state is kept in checkpoints; pass it to step_optimizer."""
        self.scalers.append(scaler)
        return scaler

    # What train_batch calls.

    def backward(
        self, loss: torch.Tensor, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """As loss.backward. Where gradients are aggregated over several batches they become a mean, unless
        optimizations.average_aggregated_gradients is off."""
        if (
            self.setting.optimizations.aggregation_frequency > 1
            and self.setting.optimizations.average_aggregated_gradients
        ):
            loss = loss / self.setting.optimizations.aggregation_frequency
        loss.backward(gradient=gradient, retain_graph=retain_graph, create_graph=create_graph)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def step_optimizer(
        self,
        optimizer: Optimizer,
        clip_grads: Callable[[Iterable[nn.Parameter]], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: Any = None,
        closure: Callable[[], Any] | None = None,
    ) -> None:
        """Updates the parameters and clears their gradients, once in aggregation_frequency batches.

        clip_grads: called with the optimizer's parameters before the update. auto_zero_grads: False leaves clearing
        the gradients to the caller. scaler: a wrapped GradScaler.
        """
        if not self.is_step_batch:
            return
        if clip_grads is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            clip_grads(parameter for group in optimizer.param_groups for parameter in group["params"])
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step(closure) if closure is not None else optimizer.step()
        if auto_zero_grads:
            optimizer.zero_grad()

    @property
    def is_step_batch(self) -> bool:
        """Whether the running batch ends with an optimizer step."""
        return (self.position.batches + 1) % self.setting.optimizations.aggregation_frequency == 0

    def to_device(self, data: Any) -> Any:
        """The same data with its tensors on this rank's device. Batches that the trainer passes are there already."""
        return batches.move(data, self.device)

    # Where training stands.

    def is_epoch_start(self) -> bool:
        """Whether the running batch is the first of its epoch."""
        return self.position.is_epoch_start

    def is_epoch_end(self) -> bool:
        """Whether the running batch is the last of its epoch."""
        return self.position.is_epoch_end

    def current_train_epoch(self) -> int:
        return self.position.epoch

    def current_train_batch(self) -> int:
        """Counts all batches of the trial."""
        return self.position.batches

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Ends training early and in order, with a checkpoint, as soon as all ranks have noticed. Any rank may ask."""
        self._stop_requested = stop_requested

    def get_stop_requested(self) -> bool:
        return self._stop_requested

    def _split_batch(self) -> BatchSplit:
        size = self.get_hparam("global_batch_size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise invalid(
                "config.batch_size", f"hyperparameters.global_batch_size: expected a number above 0, found {size!r}"
            )
        split = split_batch(size, self.distributed.size)
        if split.warning and self.distributed.is_chief and not self._has_warned_of_batch_size:
            self._has_warned_of_batch_size = True
            _log.warning("%s", split.warning)
        return split
