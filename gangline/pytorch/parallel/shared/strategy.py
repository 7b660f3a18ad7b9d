"""Strategy: the interface of every way to spread one trial over its ranks. The context and the trainer use nothing else
of a strategy.

A strategy owns the wrappers of the user's modules (DDP, shards, pipeline stages) and may own several process groups.
User code has bare modules, so that names in checkpoints are the same in every strategy.

Finds modules with sparse gradients for the strategies that treat them apart.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from gangline.config.optimization import Compression, compression_conflict
from gangline.core.beat import Beat
from gangline.errors import invalid
from gangline.pytorch.fusion.bucketed import BucketedModel
from gangline.pytorch.parallel.shared.copies import Copies, buffers_to_compare
from gangline.pytorch.parallel.shared.norm import clip_to_norm, to_clip
from gangline.pytorch.profile.traffic import TrafficMeter

_log = logging.getLogger("gangline")


@dataclass(frozen=True, slots=True)
class Holder:
    """Position of a rank among the ranks that have the same content: the index-th of count. With a count of 1 and an
    index above 0 it is content of this rank alone, in the place of which a checkpoint has that of index 0."""

    index: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Replica:
    """The data replica that a rank belongs to: the index-th of count.

    All ranks of a replica train on the same records; different replicas train on different ones.
    """

    index: int = 0
    count: int = 1
    # Whether this rank's metrics count for the replica. One rank of each replica has it, so that no record counts
    # twice.
    is_counted: bool = True


Train = Callable[[Any, bool], Any]
"""Calls train_batch with a batch or a part of one. The second argument tells whether this is the last call for the
batch, which steps optimizers."""

Places = Sequence[tuple[Any, str]]
"""The attributes that may hold the gradient of one parameter, each as its object and its name. The first object is a
form of the parameter that stays the same object."""


class Strategy(ABC):
    """Spreads one trial over its ranks. All ranks call all methods in step, those with models and optimizers in the
    order of wrapping."""

    name: ClassVar[str]  # as in the configuration's `parallelism`
    # whether a forward pass happens on all ranks at once or on none, also where no gradients are recorded
    needs_all_ranks: ClassVar[bool] = False
    has_peers: ClassVar[bool] = True  # whether the trial has several ranks
    # whether the strategy makes the backward passes of a batch itself, and notices a trial that makes its own
    runs_batch: ClassVar[bool] = False
    places_models: ClassVar[bool] = False  # whether prepare_model moves the model to the device
    # whether ranks with parts of the model have to agree on gradients that overflow
    divides_gradients: ClassVar[bool] = False
    # whether a step overwrites copies of some parameters with one rank's values, which hides differences
    overwrites_copies: ClassVar[bool] = False

    @abstractmethod
    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Takes a model, on its device unless places_models is set; returns the module that user code keeps and
        calls."""

    def prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Takes an optimizer over parameters of prepared models; returns the one that user code steps."""
        return optimizer

    def compress_gradients(self, optimizer: Optimizer, is_wanted: bool) -> None:
        """Sets whether the gradients of an optimizer, just prepared, go to the other ranks in fp16. Called for each
        optimizer where the experiment names no compression. Raises GanglineError `parallelism.compression` where the
        strategy cannot compress."""
        conflict = compression_conflict(Compression(hook="fp16"), self.name) if is_wanted else None
        if conflict is not None:
            raise invalid("parallelism.compression", f"wrap_optimizer(fp16_compression=True): {conflict}")

    def replica_of(self, rank: int, world_size: int) -> Replica:
        """Returns the data replica of a rank. Data, batches, metrics and seeds are divided by it, never by the rank. A
        strategy in which several ranks train on the same records overrides it, as its row in
        gangline.config.parallelism says."""
        return Replica(rank, world_size)

    def run_batch(self, train: Train, batch: Any, count_records: Callable[[Any], int]) -> Any:
        """Trains one batch and returns the result of train_batch. A strategy may call `train` with parts of the batch,
        and joins the results then. count_records: the trial's get_batch_length."""
        return train(batch, True)

    def run_backward(self, loss: torch.Tensor, gradient: Any, retain_graph: bool, create_graph: bool) -> None:
        """Makes the backward pass of context.backward."""
        loss.backward(gradient=gradient, retain_graph=retain_graph, create_graph=create_graph)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def is_clearing_right(self) -> bool:
        """Returns whether a zero_grad in train_batch drops now what it would drop if one call made the whole batch."""
        return True

    def gradient_places(self, parameters: Iterable[torch.Tensor]) -> list[Places]:
        """Returns the places of the gradient of each of these parameters, in whatever form the trial has it."""
        return [((parameter, "grad"),) for parameter in parameters]

    @abstractmethod
    def accumulate(self) -> AbstractContextManager[None]:
        """Returns a context for a forward and backward pass whose gradients are not exchanged yet."""

    def gather(self) -> AbstractContextManager[None]:
        """Returns a context for forward passes without gradients that a rank makes by itself, despite needs_all_ranks.
        Every rank keeps whole models meanwhile."""
        return nullcontext()

    def validating(self) -> AbstractContextManager[None]:
        """Returns a context for the forward passes of a validation. After it a change of a parameter reaches all of its
        parts."""
        return nullcontext()

    def share_buffers(self, models: Iterable[nn.Module]) -> None:  # noqa: B027  a single rank shares with no other
        """Gives all ranks the chief's buffers, as running statistics, before a validation or a save uses them."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Averages gradients that no backward pass has exchanged. Called before gradients are clipped and stepped
        with."""
        return

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter] | nn.Parameter, max_norm: float, norm_type: float = 2.0
    ) -> torch.Tensor:
        """Scales the gradients down to max_norm, whatever part of them this rank has. Returns the norm before the
        scaling, over all parts."""
        return clip_to_norm(to_clip(parameters), max_norm, norm_type)

    def clipping(self) -> AbstractContextManager[None]:
        """Returns a context for a trial's own clipping, in which torch's clip_grad_norm_ works on all parts."""
        return nullcontext()

    def agree_on_overflow(self, found: dict[torch.device, torch.Tensor]) -> None:  # noqa: B027  needed with parts only
        """Gives all ranks the same answer to whether a scaler has found infinite gradients. found: the scaler's numbers
        of this rank by device, which are changed in place. A rank without gradients has none, and gets one."""

    # Content of a checkpoint. Tensors may be DTensors, of which this rank has a part.

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """Returns this rank's part of the model's state, under the names of the model given to prepare_model."""
        return model.state_dict()

    def absent_names(self, model: nn.Module) -> set[str]:
        """Returns the names in the model's state that other ranks keep, and this rank does not."""
        return set()

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        """Loads a state as model_state returned it."""
        model.load_state_dict(state)

    def stepped_parameters(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """Returns the parameters that this rank's step updates, and whose optimizer state it keeps."""
        return [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def keep_own_state(self, optimizer: Optimizer) -> None:
        """Drops the state of parameters that other ranks step, which an optimizer may have made in its constructor, as
        Adagrad does. It would take memory, go stale, and replace the right one in a checkpoint."""
        own = {id(parameter) for parameter in self.stepped_parameters(optimizer)}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in own:
                    optimizer.state.pop(parameter, None)

    def holder_of(self, tensor: torch.Tensor, optimizer: Optimizer | None = None) -> Holder:
        """Returns this rank's position among the ranks with the same content of this tensor. The tensor is one of
        model_state, or of this optimizer's state."""
        return Holder()

    def keeps_whole_state(self, optimizer: Optimizer) -> bool:
        """Returns whether the optimizer's state of a divided parameter is whole."""
        return False

    def replicated(self) -> Sequence[Copies]:
        """Returns the parameters that several ranks keep and update by themselves, so that they could drift apart.
        Empty where each value is on one rank."""
        return ()

    def replicated_buffers(self, models: Iterable[nn.Module]) -> Sequence[Copies]:
        """Returns the buffers that ranks may fill from their own records, although one rank's are kept for several."""
        # Also without any: ranks must list equally many Copies, and a trial may add a buffer on one rank alone.
        return (Copies("rank", buffers_to_compare(models)),)

    def describe_buffers(self) -> str:
        """Returns whose buffers are used where they differ between ranks, as a clause of a message."""
        return "validations and checkpoints have those of rank 0"

    def full_model_state(self, model: nn.Module) -> dict[str, Any]:
        """Returns the whole model's state on every rank, as plain tensors on the CPU."""
        return {name: _whole(value) for name, value in self.model_state(model).items()}

    def bucketed(self) -> BucketedModel | None:
        """Returns the model whose gradient buckets tuning may change. None where there is no single such model, or the
        user fixed its buckets."""
        return None

    def begin_training(self, beat: Beat) -> None:
        """Called before the first batch. beat: tells the hang watchdog where this rank is. Raises GanglineError where
        ranks have prepared their models differently."""
        return

    def before_backward(self, is_first: bool) -> None:
        """Called before a backward pass whose gradients the ranks exchange. is_first: whether it is the first of its
        batch. Where the gradients would not reach the other ranks, this call or the backward pass raises GanglineError
        `parallelism.backward`."""
        return

    def after_backward(self) -> None:
        """Called when such a backward pass has ended without an error."""
        return

    def traffic_meters(self) -> Sequence[TrafficMeter]:
        """Returns meters of the collectives for gradients and parameters. Empty where there are no collectives, or they
        cannot be measured. Called once all models are wrapped."""
        return ()

    def rank_state(self) -> dict[str, Any]:
        """Returns the state of this rank alone for a checkpoint; empty for most strategies."""
        return {}

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        """Loads the state that this rank saved; None where no rank of its number saved one, as in a world of another
        size."""
        if state:
            _log.info("%s has no use for what the checkpoint holds of %s", self.name, ", ".join(sorted(state)))


def _whole(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().cpu().clone()


def sparse_module(model: nn.Module) -> str | None:
    """Returns the name of the first trained module with sparse gradients, as Net.table; None where there is none."""
    for path, module in model.named_modules():
        if getattr(module, "sparse", False) is not True:
            continue
        # Read of sparse modules alone: reading a parametrized weight computes it, which moves the vectors of a
        # spectral norm.
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.requires_grad:
            return f"{type(model).__name__}.{path}" if path else type(model).__name__
    return None
