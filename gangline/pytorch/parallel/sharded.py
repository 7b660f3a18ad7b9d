"""What zero2, zero3 and hsdp have in common: a model whose parameters are divided over ranks by torch's fully_shard.

The model keeps its identity and its names; its parameters become DTensors. Each block's parameters are gathered before
its forward and backward pass, so every pass is one of all ranks together.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from gangline.errors import invalid
from gangline.pytorch.parallel import whole_random
from gangline.pytorch.parallel.announcement import Announcements
from gangline.pytorch.parallel.batch_norm import prepare_batch_norm
from gangline.pytorch.parallel.block import find_blocks
from gangline.pytorch.parallel.broadcast import broadcast_tensors
from gangline.pytorch.parallel.gradient_pass import GradientPasses, has_gradient
from gangline.pytorch.parallel.loading import Loads
from gangline.pytorch.parallel.ownership import Shards, WrappedModels, check_initialised, class_name
from gangline.pytorch.parallel.shard_meter import ShardMeter, can_be_measured, parameter_groups
from gangline.pytorch.parallel.strategy import Holder, Strategy
from gangline.pytorch.profile.traffic import TrafficMeter

_log = logging.getLogger("gangline")


class ShardedStrategy(Strategy):
    """blocks: names of the classes to gather one at a time; None finds them.

    timeout: of collectives in process groups that the strategy makes; None for torch's own. reshards: whether a block's
    whole parameters are given up after its forward pass and gathered again for backward.
    """

    needs_all_ranks = True
    reshards: ClassVar[bool]

    def __init__(
        self, device: torch.device, blocks: Sequence[str] | None = None, timeout: timedelta | None = None
    ) -> None:
        self._device = device
        self._blocks = blocks
        self._timeout = timeout
        self._roots: list[FSDPModule] = []
        self._models = WrappedModels(self.name, replaces=True)
        self._shards = Shards(self.name)
        self._loads = Loads(self.name)
        self._passes = GradientPasses()
        self._known_mesh: DeviceMesh | None = None
        self._announcements: Announcements | None = None

    @abstractmethod
    def make_mesh(self) -> DeviceMesh:
        """Of all ranks: one dimension to divide over, or two, of which the first one holds copies."""

    @property
    def mesh(self) -> DeviceMesh:
        if self._known_mesh is None:
            self._known_mesh = self.make_mesh()
        return self._known_mesh

    def prepare_model(self, model: nn.Module) -> nn.Module:
        check_initialised(model)
        _check_shardable(self.name, model)
        prepare_batch_norm(model)
        # Ranks may have built different models where the trial draws random numbers of its own; DDP does the same.
        broadcast_tensors((*model.parameters(), *model.buffers()))
        blocks = find_blocks(model, self._blocks)
        if dist.get_rank() == 0:
            _log.info("%s: %s is gathered %s", self.name, type(model).__name__, _words_for(blocks))
        root = self._shard(model, blocks)
        self._roots.append(root)
        self._models.add(model)
        self._announce(model, root)
        self._shards.add(model)
        self._watch_use(model, root)
        whole_random.install(self.mesh)
        model.register_forward_pre_hook(lambda *_: _take_over_flags(root), prepend=True)
        return model

    def prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        self._models.check(optimizer)
        self._models.watch(optimizer)
        optimizer.register_step_pre_hook(lambda *_: self._give_up_whole())
        if isinstance(optimizer, torch.optim.LBFGS):
            raise invalid(
                "parallelism.optimizer",
                f"LBFGS joins all parameters in one row, which {self.name} has divided over ranks; use ddp",
            )
        return optimizer

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        # Between two exchanges whole gradients stay on every rank: traffic is saved for memory.
        self._set_exchange(False)
        try:
            yield
        finally:
            self._set_exchange(True)

    def gather(self) -> AbstractContextManager[None]:
        return self._gathered()

    def share_buffers(self, models: Iterable[nn.Module]) -> None:
        broadcast_tensors(buffer for model in models for buffer in model.buffers())

    def holder_of(self, tensor: torch.Tensor, is_optimizer_state: bool) -> Holder:
        if not isinstance(tensor, DTensor):
            return Holder(dist.get_rank(), dist.get_world_size())
        mesh = tensor.device_mesh
        copies = [dim for dim, placed in enumerate(tensor.placements) if placed.is_replicate()]
        index, count = 0, 1
        for dim in copies:
            index = index * mesh.size(dim) + mesh.get_local_rank(dim)
            count *= mesh.size(dim)
        return Holder(index, count)

    def begin_training(self) -> None:
        self._loads.check(self._device)

    def before_backward(self, is_first: bool) -> None:
        self._shards.check()
        self._passes.is_exchanging = True

    def after_backward(self) -> None:
        self._passes.is_exchanging = False
        self._check_reduced()
        if self._announcements is not None:
            self._announcements.end_pass()

    def traffic_meters(self) -> Sequence[TrafficMeter]:
        if not all(map(can_be_measured, self._all_modules())):
            return ()
        return [ShardMeter(self._device, self._all_modules, has_copies=self.mesh.ndim > 1)]

    def _shard(self, model: nn.Module, blocks: Sequence[nn.Module]) -> FSDPModule:
        try:
            for block in blocks:
                fully_shard(block, mesh=self.mesh, reshard_after_forward=self.reshards)
            # What belongs to no block is needed again as soon as backward begins, so it would be given up for nothing.
            root = fully_shard(model, mesh=self.mesh, reshard_after_forward=None if self.reshards else False)
        except (ValueError, NotImplementedError) as error:
            raise invalid(
                "parallelism.model",
                f"{self.name} cannot divide {type(model).__name__}: {str(error).splitlines()[0]}; change it, or use "
                "ddp or zero1",
            ) from error
        if self._device.type != "cuda":
            # gloo has no averaging reduction; some releases of torch summed where they meant to average.
            for module in _sharded_modules(root):
                module.set_force_sum_reduction_for_comms(True)
        return root

    def _watch_use(self, model: nn.Module, root: FSDPModule) -> None:
        """Lets a trial load weights, call blocks by themselves and differentiate gradients."""
        self._loads.watch(model)
        _begin_with_root(root)
        for module in _sharded_modules(root):
            for group in parameter_groups(module):
                self._passes.watch(group)

    def _announce(self, model: nn.Module, root: FSDPModule) -> None:
        modules = _sharded_modules(root)
        if not all(map(can_be_measured, modules)):
            return
        if self._announcements is None:
            self._announcements = Announcements(self._device, self._timeout)
        path_by_id = {id(module): path for path, module in model.named_modules()}
        for module in modules:
            path = path_by_id[id(module)]
            name = f"{class_name(model)}.{path}" if path else class_name(model)
            for group in parameter_groups(module):
                self._announcements.watch(group, name)

    def _check_reduced(self) -> None:
        """torch reduces the gradients of a block at the end of a pass that went through its forward. Those of a layer
        that was called by itself, while whole parameters were here, would be dropped without a word."""
        for root in self._roots:
            for module in _sharded_modules(root):
                for group in parameter_groups(module):
                    if group.is_unsharded and has_gradient(group):
                        assert isinstance(module, nn.Module)
                        raise invalid(
                            "parallelism.backward",
                            f"context.backward reached parameters of {class_name(module)} through a part that was "
                            "called by itself, so their gradients would be lost; call the wrapped model itself and not "
                            "a part of it, or name the part's class in parallelism.blocks",
                        )

    def _give_up_whole(self) -> None:
        """Before a step changes the parts. Whole parameters that are still here would be used as they were."""
        for module in self._all_modules():
            if any(group.is_unsharded for group in parameter_groups(module)):
                module.reshard()

    def _set_exchange(self, is_on: bool) -> None:
        for root in self._roots:
            root.set_requires_gradient_sync(is_on)

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        for module in self._all_modules():
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
        try:
            yield
        finally:
            for module in self._all_modules():
                module.reshard()
                module.set_reshard_after_forward(self.reshards and module not in self._roots, recurse=False)
                _forget_passes(module)

    def _all_modules(self) -> list[FSDPModule]:
        return [module for root in self._roots for module in _sharded_modules(root)]


def _sharded_modules(root: FSDPModule) -> list[FSDPModule]:
    assert isinstance(root, nn.Module)
    return [module for module in root.modules() if isinstance(module, FSDPModule)]


def _begin_with_root(root: FSDPModule) -> None:
    """Has torch take the wrapped model for the root, also where a trial calls a block of it first. torch takes the
    first module that is called, and refuses the model afterwards."""
    state: Any = root._get_fsdp_state()
    handles: list[Any] = []

    def initialise(*_: Any) -> None:
        state._lazy_init()
        while handles:
            handles.pop().remove()

    handles.extend(
        module.register_forward_pre_hook(initialise, prepend=True)  # type: ignore[attr-defined]  # each is a module
        for module in _sharded_modules(root)
        if module is not root
    )


def _take_over_flags(root: FSDPModule) -> None:
    """Where the user has frozen or unfrozen whole parameters, which are here after a pass without a backward pass, the
    parts follow. torch would put the flags of the parts on the whole parameters again."""
    for module in _sharded_modules(root):
        for group in parameter_groups(module):
            if group.is_unsharded:
                for held in group.fsdp_params:
                    if held.sharded_param.requires_grad != held.unsharded_param.requires_grad:
                        held.sharded_param.requires_grad_(held.unsharded_param.requires_grad)


def _forget_passes(module: FSDPModule) -> None:
    """What torch has noted of passes that no backward followed. It gathers blocks ahead by these notes, and ranks with
    other ones would wait for one another in the next backward. torch's own reset would also drop gradients."""
    state: Any = module._get_fsdp_state()
    # Absent until a first pass.
    getattr(state._comm_ctx, "post_forward_order", []).clear()
    for group in parameter_groups(module):
        group._post_forward_indices.clear()


def _check_shardable(name: str, model: nn.Module) -> None:
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise invalid(
                "parallelism.model",
                f"{name} cannot divide {type(model).__name__}.{parameter_name}, which has no dimension; give it the "
                "shape (1,), or use ddp or zero1",
            )


def _words_for(blocks: Sequence[nn.Module]) -> str:
    if not blocks:
        return "whole, as it has no repeated blocks; name some in parallelism.blocks to need less memory"
    kinds = ", ".join(sorted({type(block).__name__ for block in blocks}))
    return f"block by block, {len(blocks)} of class {kinds}"
