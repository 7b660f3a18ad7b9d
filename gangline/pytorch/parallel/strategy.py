"""What every way to spread one trial over its ranks answers to. The context and the trainer know nothing else of it.

A strategy owns whatever wraps the user's modules (DDP, shards, pipeline stages) and may own several process groups.
User code holds bare modules, so that names in checkpoints are the same in every strategy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer


class Strategy(ABC):
    """All methods are called by all ranks in step, those with models and optimizers in the order of wrapping.

    name: as the configuration's `parallelism` says it.
    """

    name: ClassVar[str]

    @abstractmethod
    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Takes a model on its device; returns the module that user code holds and calls."""

    def prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Takes an optimizer over parameters of prepared models; returns the one that user code steps."""
        return optimizer

    @abstractmethod
    def accumulate(self) -> AbstractContextManager[None]:
        """Around a forward and backward pass whose gradients are not exchanged yet."""

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """The whole model's state, whatever part of it this rank holds."""
        return model.state_dict()

    def load_model_state(self, model: nn.Module, state: dict[str, Any]) -> None:
        model.load_state_dict(state)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The whole optimizer's state, as model_state."""
        return optimizer.state_dict()

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        optimizer.load_state_dict(state)

    def rank_state(self) -> dict[str, Any]:
        """What belongs to this rank alone and goes into a checkpoint; empty for most strategies."""
        return {}

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        """state: what this rank saved; None where no rank of its number did, as in a world of another size."""
        assert not state, f"{self.name} has nothing of a rank's own to restore"
