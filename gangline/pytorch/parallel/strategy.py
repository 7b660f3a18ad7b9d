"""What every way to spread one trial over its ranks answers to. The context and the trainer know nothing else of it.

A strategy owns whatever wraps the user's modules (DDP, shards, pipeline stages) and may own several process groups.
User code holds bare modules, so that names in checkpoints are the same in every strategy.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from gangline.config.optimization import Compression, compression_conflict
from gangline.errors import invalid
from gangline.pytorch.fusion.bucketed import BucketedModel
from gangline.pytorch.parallel.norm import clip_to_norm
from gangline.pytorch.profile.traffic import TrafficMeter

_log = logging.getLogger("gangline")


@dataclass(frozen=True, slots=True)
class Holder:
    """Which of the ranks that hold the same content a rank is: the index-th of count."""

    index: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Replica:
    """The data replica that a rank belongs to: the index-th of count.

    All ranks of a replica train on the same records; different replicas train on different ones. is_counted: whether
    this rank's metrics count for the replica. One rank of each replica has it, so that no record counts twice.
    """

    index: int = 0
    count: int = 1
    is_counted: bool = True


class Strategy(ABC):
    """All methods are called by all ranks in step, those with models and optimizers in the order of wrapping.

    name: as the configuration's `parallelism` says it. needs_all_ranks: whether a forward pass happens on all ranks at
    the same time or not at all, also where no gradients are recorded. has_peers: whether the trial has several ranks.
    """

    name: ClassVar[str]
    needs_all_ranks: ClassVar[bool] = False
    has_peers: ClassVar[bool] = True

    @abstractmethod
    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Takes a model on its device; returns the module that user code holds and calls."""

    def prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Takes an optimizer over parameters of prepared models; returns the one that user code steps."""
        return optimizer

    def compress_gradients(self, optimizer: Optimizer, is_wanted: bool) -> None:
        """Whether the gradients of an optimizer, just prepared, go to the other ranks in fp16; called for each of them
        where the experiment names no compression. Raises GanglineError `parallelism.compression` where they cannot."""
        conflict = compression_conflict(Compression(hook="fp16"), self.name) if is_wanted else None
        if conflict is not None:
            raise invalid("parallelism.compression", f"wrap_optimizer(fp16_compression=True): {conflict}")

    def replica_of(self, rank: int, world_size: int) -> Replica:
        """Returns the data replica of a rank. Data, batches, metrics and seeds are divided by it, never by the rank. A
        strategy in which several ranks train on the same records overrides it, as its row in
        gangline.config.strategy_table says."""
        return Replica(rank, world_size)

    @abstractmethod
    def accumulate(self) -> AbstractContextManager[None]:
        """Around a forward and backward pass whose gradients are not exchanged yet."""

    def gather(self) -> AbstractContextManager[None]:
        """Around forward passes that a rank makes by itself, without gradients, though needs_all_ranks. Whole models
        lie on every rank meanwhile."""
        return nullcontext()

    def validating(self) -> AbstractContextManager[None]:
        """Around the forward passes of a validation. Afterwards a change of a parameter reaches all of its parts."""
        return nullcontext()

    def share_buffers(self, models: Iterable[nn.Module]) -> None:  # noqa: B027  one rank has nobody to share with
        """Gives all ranks the chief's buffers, as running statistics, before they are validated with or saved."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Called before gradients are clipped and stepped with: averages those that no backward pass has exchanged."""
        return

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], max_norm: float, norm_type: float = 2.0
    ) -> torch.Tensor:
        """Scales the gradients down to max_norm, whatever part of them this rank holds. Returns the norm that they had,
        over all parts."""
        return clip_to_norm(list(parameters), max_norm, norm_type)

    # What is in a checkpoint. Tensors may be DTensors, of which this rank holds a part.

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """What this rank holds of the model, under the names of the model given to prepare_model."""
        return model.state_dict()

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        """state: as model_state returned it."""
        model.load_state_dict(state)

    def stepped_parameters(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """The parameters that this rank's step updates, whose optimizer state it holds."""
        return [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def holder_of(self, tensor: torch.Tensor, optimizer: Optimizer | None = None) -> Holder:
        """This rank among those that hold the same content as this tensor of model_state, or of this optimizer's
        state."""
        return Holder()

    def keeps_whole_state(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer's state of a parameter is whole where the parameter is divided."""
        return False

    def replicated(self) -> Mapping[str, torch.Tensor]:
        """Parameters that every rank holds whole and updates by itself, by name, so that they could drift apart; none
        where each value lies on one rank."""
        return {}

    def full_model_state(self, model: nn.Module) -> dict[str, Any]:
        """The whole model's state on every rank, as plain tensors on the CPU."""
        return {name: _whole(value) for name, value in self.model_state(model).items()}

    def bucketed(self) -> BucketedModel | None:
        """The model whose gradients go out in buckets that tuning may change; None where there is no one such model, or
        the user fixed its buckets."""
        return None

    def begin_training(self) -> None:
        """Called before the first batch. Raises GanglineError where ranks have prepared their models differently."""
        return

    def before_backward(self, is_first: bool) -> None:
        """Called before a backward pass whose gradients the ranks exchange; is_first: of its batch. Where they would
        not get to the other ranks it or the backward pass raises GanglineError `parallelism.backward`."""
        return

    def after_backward(self) -> None:
        """Called when such a backward pass has ended well."""
        return

    def traffic_meters(self) -> Sequence[TrafficMeter]:
        """What measures the collectives for gradients and parameters; none where there are none, or they cannot be
        measured. Called once all models are wrapped."""
        return ()

    def rank_state(self) -> dict[str, Any]:
        """What belongs to this rank alone and goes into a checkpoint; empty for most strategies."""
        return {}

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        """state: what this rank saved; None where no rank of its number did, as in a world of another size."""
        if state:
            _log.info("%s has no use for what the checkpoint holds of %s", self.name, ", ".join(sorted(state)))


def _whole(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().cpu().clone()
