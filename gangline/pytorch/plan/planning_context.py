"""The context in which a trial is built for a plan: it keeps what the trial wraps, and trains nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gangline.config.batch import BatchSplit, split_batch
from gangline.core.context import alone
from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel import choose_strategy, recompute
from gangline.pytorch.parallel.shared.ownership import WrappedModels
from gangline.pytorch.plan.refusal import Observation
from gangline.pytorch.trial.backward import check_loss
from gangline.pytorch.trial.context import PyTorchTrialContext
from gangline.pytorch.trial.setting import make_setting

# Calls of the model, of backward and of step_optimizer after the first backward pass. A loop that waits for a change of
# the parameters would never end here, where no step changes them.
_MOST_CALLS = 6


class Reached(BaseException):
    """Ends the run of train_batch. No Exception, so that handlers of the trial let it pass."""


class PlanningContext(PyTorchTrialContext):
    """Context of one process that stands for one of several slots. slots: of the trial; each of them has its part of
    the global batch. device: of the model and the batch, the meta device or the CPU. What the trial builds before it
    wraps a model is there by default. recomputation: as recompute takes it. on_backward: called with the loss of the
    first backward pass. is_observed: whether train_batch goes on after that pass, for `observed`, which notes what
    strategies may refuse. Later backward passes and steps do no work."""

    def __init__(
        self,
        hparams: Mapping[str, Any],
        config: Mapping[str, Any],
        slots: int,
        device: torch.device,
        *,
        is_observed: bool = False,
    ) -> None:
        setting = make_setting(None, hparams, {**config, "parallelism": "none"}, aggregation_frequency=1)
        strategy = choose_strategy("none", 1, torch.device("cpu"), setting.optimizations)
        super().__init__(alone(), setting, strategy, device, writes_tensorboard=False)
        self.slots = slots
        self.recomputation: tuple[str, Sequence[str] | None] = ("none", None)
        self.on_backward: Callable[[torch.Tensor], None] = lambda loss: None
        self.is_observed = is_observed
        self.observed = Observation()
        self._num_later = 0
        self._wrapped = WrappedModels("parallelism", replaces=False)

    def note_call(self) -> None:
        """Called before each call of the first model in train_batch."""
        self._note_later()
        self.observed.num_calls += 1

    def wrap_model(self, model: nn.Module) -> nn.Module:
        torch.set_default_device(None)
        if not self.models:
            # A trial may build its model on the CPU whatever the default is.
            self.device = next((parameter.device for parameter in model.parameters()), self.device)
        recompute(model, *self.recomputation, is_logged=False)
        model.__dict__["__deepcopy__"] = partial(_copy_noted, model, self.observed)
        self.models.append(model)
        self._wrapped.add(model)
        return model

    def wrap_optimizer(self, optimizer: Optimizer, *_arguments: Any, **_options: Any) -> Optimizer:
        self.optimizers.append(optimizer)
        try:
            self._wrapped.check(optimizer)
        except GanglineError as error:
            self._note_mistake(error)
        return optimizer

    def backward(
        self, loss: torch.Tensor, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        self._note_later()
        self.observed.num_backwards += 1
        self.observed.has_arguments |= gradient is not None or retain_graph
        if self.observed.num_backwards == 1:
            try:
                check_loss(loss, gradient)
            except GanglineError as error:
                self._note_mistake(error)
            if isinstance(loss, torch.Tensor):
                with self.precision.outside():
                    self.on_backward(loss)
            if not self.is_observed:
                raise Reached

    def step_optimizer(
        self,
        optimizer: Optimizer,
        clip_grads: Any = None,
        auto_zero_grads: bool = True,
        scaler: Any = None,
        closure: Callable[[], Any] | None = None,
    ) -> None:
        """Steps nothing. A closure that makes the first backward pass is called once for it."""
        self._note_later()
        if closure is not None:
            self.observed.closed_over.append(optimizer)
        if not self.observed.num_backwards:
            if closure is None:
                raise Reached
            closure()

    def get_tensorboard_writer(self) -> Any:
        """Returns the writer while the trial is built, and writes no scalars of a batch that is not trained."""
        if self.observed.num_backwards:
            raise Reached
        return super().get_tensorboard_writer()

    def _note_mistake(self, error: GanglineError) -> None:
        self.observed.mistake = self.observed.mistake or error.message

    def _note_later(self) -> None:
        if not self.observed.num_backwards:
            return
        self._num_later += 1
        if self._num_later > _MOST_CALLS:
            raise Reached

    def to_device(self, data: Any, warned_types: Any = None) -> Any:
        return data

    def _split_batch(self) -> BatchSplit:
        size = self.get_hparam("global_batch_size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise invalid(
                "config.batch_size", f"hyperparameters.global_batch_size: expected a number above 0, found {size!r}"
            )
        # Fewer records than slots still have a plan, which refuses the strategies that need a record for each slot.
        return split_batch(size, min(self.slots, size))


def _copy_noted(model: nn.Module, observed: Observation, memo: Any) -> nn.Module:
    """Copies a wrapped model as without this hook, which the copy does not have."""
    observed.is_copied = True
    hook = model.__dict__.pop("__deepcopy__")
    try:
        return copy.deepcopy(model, memo)
    finally:
        model.__dict__["__deepcopy__"] = hook
