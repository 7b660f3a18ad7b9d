"""The context in which a trial is built for a plan: it keeps what the trial wraps, and trains nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from gangline.config.batch import BatchSplit, split_batch
from gangline.core.context import alone
from gangline.errors import invalid
from gangline.pytorch.parallel import choose_strategy, recompute
from gangline.pytorch.setup import make_setting
from gangline.pytorch.trial.context import PyTorchTrialContext


class Reached(Exception):
    """A trial has come to its first backward pass or step, where a measurement ends."""


class PlanningContext(PyTorchTrialContext):
    """Context of one process that stands for one of several slots. slots: of the trial; each of them has its part of
    the global batch. device: where the model is built, the meta device or the CPU; the meta device is left as soon as
    a model is wrapped. recomputation: as recompute takes
    it. on_backward: called with the loss of the first backward pass. num_calls: of the first model, so far."""

    def __init__(self, hparams: Mapping[str, Any], config: Mapping[str, Any], slots: int, device: torch.device) -> None:
        setting = make_setting(None, hparams, {**config, "parallelism": "none"}, aggregation_frequency=1)
        strategy = choose_strategy("none", 1, torch.device("cpu"), setting.optimizations)
        super().__init__(alone(), setting, strategy, torch.device("cpu"), writes_tensorboard=False)
        self.slots = slots
        self.build_device = device
        self.recomputation: tuple[str, Sequence[str] | None] = ("none", None)
        self.on_backward: Callable[[torch.Tensor], None] = lambda loss: None
        self.num_calls = 0

    def note_call(self) -> None:
        """Called before each call of the first model in train_batch."""
        self.num_calls += 1

    def wrap_model(self, model: nn.Module) -> nn.Module:
        torch.set_default_device(None)
        recompute(model, *self.recomputation)
        self.models.append(model)
        return model

    def wrap_optimizer(self, optimizer: Optimizer, *_arguments: Any, **_options: Any) -> Optimizer:
        self.optimizers.append(optimizer)
        return optimizer

    def backward(self, loss: torch.Tensor, *_arguments: Any, **_options: Any) -> NoReturn:
        self.on_backward(loss)
        raise Reached

    def step_optimizer(self, optimizer: Optimizer, *_arguments: Any, **_options: Any) -> NoReturn:
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
