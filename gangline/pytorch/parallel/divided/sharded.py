"""Base of zero2, zero3 and hsdp, which divide a model's parameters over ranks with torch's fully_shard.

The model keeps its identity and its names; its parameters become DTensors. Each block's parameters are gathered before
its forward and backward pass, so all ranks make every pass together.
"""

from __future__ import annotations

import gc
import logging
import weakref
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from gangline.core.beat import Beat
from gangline.errors import invalid
from gangline.pytorch.parallel.divided import part_operator, whole_random
from gangline.pytorch.parallel.divided.announcement import Announcements
from gangline.pytorch.parallel.divided.block import find_blocks
from gangline.pytorch.parallel.divided.divided_copy import OwnHook, allow_copies
from gangline.pytorch.parallel.divided.gradient_clearing import clear_with_modules, clear_with_optimizer, find_places
from gangline.pytorch.parallel.divided.gradient_pass import GradientPasses
from gangline.pytorch.parallel.divided.half_gathering import HalfGathering
from gangline.pytorch.parallel.divided.loading import Loads
from gangline.pytorch.parallel.divided.number_type import single_type_parts
from gangline.pytorch.parallel.divided.origin import GradientOrigins
from gangline.pytorch.parallel.divided.original import Originals
from gangline.pytorch.parallel.divided.shard_meter import ShardMeter, can_be_measured, parameter_groups
from gangline.pytorch.parallel.divided.sharded_module import (
    begin_with_root,
    forget_passes,
    forms_of,
    groups_of,
    reduce_left_over,
    sharded_modules,
    take_over_flags,
)
from gangline.pytorch.parallel.divided.whole_parameter import WholeParameters, needs_whole
from gangline.pytorch.parallel.divided.whole_step import WholeStep
from gangline.pytorch.parallel.divided.whole_use import WholeUse, check_transforms
from gangline.pytorch.parallel.shared.batch_norm import prepare_batch_norm
from gangline.pytorch.parallel.shared.broadcast import broadcast_tensors
from gangline.pytorch.parallel.shared.copies import Copies
from gangline.pytorch.parallel.shared.ownership import Shards, WrappedModels, check_initialised, class_name
from gangline.pytorch.parallel.shared.reach import Reach, check_reach
from gangline.pytorch.parallel.shared.strategy import Holder, Places, Strategy, sparse_module
from gangline.pytorch.profile.traffic import TrafficMeter

_log = logging.getLogger("gangline")


class ShardedStrategy(Strategy):
    """Divides models over ranks. blocks: names of the classes to gather one at a time; None finds them.

    timeout: of collectives in process groups that the strategy makes; None for torch's own. reshards: whether a block's
    whole parameters are freed after its forward pass and gathered again for backward.
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
        self._groups: list[Any] = []
        self._copies: list[weakref.ref[FSDPModule]] = []
        self._whole_steps: dict[int, WholeStep] = {}
        self._models = WrappedModels(self.name, replaces=True)
        self._shards = Shards(self.name)
        self._originals = Originals(self.name)
        self._whole_use = WholeUse(self.name, self._models.describe)
        self._loads = Loads(self.name)
        self._passes = GradientPasses()
        self._known_mesh: DeviceMesh | None = None
        self._announcements: Announcements | None = None
        self._wholes = WholeParameters(lambda parameter: self._origins.note([parameter]))
        self._half_gathering: HalfGathering | None = None
        self._origins = GradientOrigins(self.name, self._all_groups, self._models, self._wholes)
        self._hooked: weakref.WeakSet[FSDPModule] = weakref.WeakSet()
        self._keeps_whole = False

    @abstractmethod
    def make_mesh(self) -> DeviceMesh:
        """Returns a mesh of all ranks: one dimension to divide over, or two, of which the first one has copies."""

    @property
    def mesh(self) -> DeviceMesh:
        if self._known_mesh is None:
            self._known_mesh = self.make_mesh()
        return self._known_mesh

    def prepare_model(self, model: nn.Module) -> nn.Module:
        check_initialised(model)
        if isinstance(model, FSDPModule):
            # A copy of a wrapped model is divided already.
            self._drop_copies(model)
            return self._take_over(model, model)
        check_shardable(self.name, model)
        self._originals.check(model)
        prepare_batch_norm(model)
        # Ranks may have built different models where the trial draws its own random numbers. DDP broadcasts as well.
        broadcast_tensors(
            tensor for tensor in (*model.parameters(), *model.buffers()) if not isinstance(tensor, DTensor)
        )
        blocks = [block for block in find_blocks(model, self._blocks) if not _is_divided(block)]
        if dist.get_rank() == 0:
            _log.info("%s: %s is gathered %s", self.name, type(model).__name__, _words_for(blocks))
        self._drop_copies(model)
        originals = self._originals.follow(model)
        root = self._divide(model, single_type_parts(self.name, model, blocks))
        self._place_whole(model, root)
        self._originals.replace(model, originals)
        whole_random.install(self.mesh)
        part_operator.install()
        return self._take_over(model, root)

    def prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        self._models.check(optimizer)
        self._models.watch(optimizer)
        optimizer.register_step_pre_hook(lambda *_: self._give_up_whole())
        clear_with_optimizer(optimizer, self._all_groups)
        if self._announcements is not None:
            optimizer.register_step_pre_hook(lambda stepped, *_: self._origins.check(stepped))
        if check_reach(self.name, optimizer) is Reach.TENSOR:
            self._whole_steps[id(optimizer)] = WholeStep(optimizer, self.name)
            if dist.get_rank() == 0:
                text = "%s: %s needs whole tensors, so each is gathered on one rank for its step"
                _log.info(text, self.name, type(optimizer).__name__)
        return optimizer

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        # Between two exchanges every rank keeps whole gradients, which saves traffic and costs memory.
        self._set_exchange(False)
        try:
            yield
        finally:
            self._set_exchange(True)
            self._wholes.close()

    def gradient_places(self, parameters: Iterable[torch.Tensor]) -> list[Places]:
        return find_places(parameters, self._all_groups())

    def gather(self) -> AbstractContextManager[None]:
        return self._gathered()

    @contextmanager
    def validating(self) -> Iterator[None]:
        # Keeping a block whole from batch to batch gathers it once.
        self._keeps_whole = True
        try:
            yield
        finally:
            self._keeps_whole = False
            for module in self._all_modules():
                module.reshard()
            self._wholes.close()

    def share_buffers(self, models: Iterable[nn.Module]) -> None:
        broadcast_tensors(buffer for model in models for buffer in model.buffers())

    def stepped_parameters(self, optimizer: Optimizer) -> list[nn.Parameter]:
        whole_step = self._whole_steps.get(id(optimizer))
        return super().stepped_parameters(optimizer) if whole_step is None else whole_step.own

    def keeps_whole_state(self, optimizer: Optimizer) -> bool:
        return id(optimizer) in self._whole_steps

    def holder_of(self, tensor: torch.Tensor, optimizer: Optimizer | None = None) -> Holder:
        if id(optimizer) in self._whole_steps:
            return Holder()
        if not isinstance(tensor, DTensor):
            return Holder(dist.get_rank(), dist.get_world_size())
        mesh = tensor.device_mesh
        copies = [dim for dim, placed in enumerate(tensor.placements) if placed.is_replicate()]
        index, count = 0, 1
        for dim in copies:
            index = index * mesh.size(dim) + mesh.get_local_rank(dim)
            count *= mesh.size(dim)
        return Holder(index, count)

    @torch.no_grad()
    def replicated(self) -> Sequence[Copies]:
        part_by_id = {id(whole): part for group in self._groups for whole, part in forms_of(group)}
        parts: dict[str, torch.Tensor] = {}
        whole = dict(self._wholes.by_name(self._models.named_parameters))
        for name, parameter in self._models.named_parameters().items():
            part = part_by_id.get(id(parameter))
            if isinstance(part, DTensor):
                parts[name] = part.to_local()
            elif not isinstance(parameter, DTensor):
                whole[name] = parameter
        copies = [Copies("rank", whole)]
        if self._roots and self.mesh.ndim > 1:
            place, count = self.mesh.get_local_rank(1), self.mesh.size(1)
            copies.append(Copies("replica", parts, place, count, self.mesh.get_group(0)))
        return copies

    def begin_training(self, beat: Beat) -> None:
        self._loads.check(self._device)

    def before_backward(self, is_first: bool) -> None:
        self._shards.check()
        self._wholes.open()
        self._passes.begin()

    def after_backward(self) -> None:
        for group in self._all_groups():
            reduce_left_over(group)
        self._passes.end()
        if self._announcements is not None:
            self._announcements.end_pass()
        self._wholes.exchange()
        self._wholes.close()

    def traffic_meters(self) -> Sequence[TrafficMeter]:
        if not all(map(can_be_measured, self._all_modules())):
            return ()
        return [ShardMeter(self._device, self._all_modules, has_copies=self.mesh.ndim > 1)]

    def _divide(self, model: nn.Module, blocks: Sequence[nn.Module]) -> FSDPModule:
        """Divides a model with fully_shard and returns it. blocks: modules that are gathered by themselves, inner ones
        first. Raises GanglineError `parallelism.model` where torch cannot divide it."""
        whole = {parameter for parameter in model.parameters() if needs_whole(parameter)}
        try:
            for block in blocks:
                fully_shard(block, mesh=self.mesh, reshard_after_forward=self.reshards, ignored_params=whole)
            # Parameters outside of the blocks are needed again as soon as backward begins, so freeing them gains
            # nothing.
            reshards = None if self.reshards else False
            root = fully_shard(model, mesh=self.mesh, reshard_after_forward=reshards, ignored_params=whole)
        except (ValueError, NotImplementedError) as error:
            raise invalid(
                "parallelism.model",
                f"{self.name} cannot divide {type(model).__name__}: {str(error).splitlines()[0]}; change it, or use "
                "ddp or zero1",
            ) from error
        if self._device.type != "cuda":
            # gloo has no averaging reduction. Some releases of torch summed where they meant to average.
            for module in sharded_modules(root):
                module.set_force_sum_reduction_for_comms(True)
        return root

    def _watch_use(self, model: nn.Module, root: FSDPModule) -> None:
        """Lets a trial load weights, call blocks by themselves and differentiate gradients."""
        self._loads.watch(model)
        begin_with_root(root)
        for group in groups_of(root):
            self._passes.watch(group)
            if self._half_gathering is not None and root in self._roots:
                # It keeps what it watches, so copies are left out. They are gathered in their own types.
                self._half_gathering.watch(group)
            self._whole_use.watch(group)

    def _place_whole(self, model: nn.Module, root: FSDPModule) -> None:
        for module, open_own in self._wholes.place(model, self.mesh, sharded_modules(root)):  # type: ignore[arg-type]  # each is a module
            module.register_forward_pre_hook(OwnHook(lambda *_, open_own=open_own: open_own()), prepend=True)

    def _divide_copy(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        root = self._divide(model, blocks)
        self._place_whole(model, root)
        self._prepare(model, root)
        self._copies.append(weakref.ref(root))

    def _take_over(self, model: nn.Module, root: FSDPModule) -> nn.Module:
        """Registers a divided model that the trial wraps. Returns the model."""
        self._roots.append(root)
        self._groups += groups_of(root)
        self._models.add(model)
        self._shards.add(model)
        self._wholes.take_over(model)
        self._prepare(model, root)
        return model

    def _prepare(self, model: nn.Module, root: FSDPModule) -> None:
        """Adds hooks to a divided model or copy. May be called again."""
        allow_copies(sharded_modules(root), self._divide_copy)
        clear_with_modules(sharded_modules(root))
        self._announce(model, root)
        if root in self._hooked:
            return
        self._hooked.add(root)
        self._watch_use(model, root)
        model.register_forward_pre_hook(OwnHook(lambda module, _: self._before_forward(module)), prepend=True)
        model.register_forward_hook(OwnHook(lambda module, _, output: self._after_forward(module, output)))

    def _before_forward(self, root: FSDPModule) -> None:
        check_transforms(self.name)
        take_over_flags(root)
        if torch.is_grad_enabled():
            self._origins.forget_cleared()

    def _after_forward(self, root: FSDPModule, output: Any) -> None:
        """Divides the parameters again after a forward pass without gradients, which no backward pass follows. Until
        then a change of a parameter would change its whole tensor only, and be lost."""
        records = torch.is_grad_enabled() and _records_gradients(output)
        if records:
            self._wholes.keep_open()
        if self._keeps_whole or records:
            return
        self._wholes.close_unneeded()
        for module in sharded_modules(root):
            module.reshard()

    def _drop_copies(self, model: nn.Module) -> None:
        """Removes the copies that have become a model, or a part of one."""
        inside = {id(module) for module in model.modules()}
        self._copies = [copied for copied in self._copies if id(copied()) not in inside]

    def _announce(self, model: nn.Module, root: FSDPModule) -> None:
        modules = sharded_modules(root)
        if not all(map(can_be_measured, modules)):
            return
        if self._announcements is None:
            self._announcements = Announcements(self._device, self._timeout)
            self._half_gathering = HalfGathering(self._device, self._announcements.gather_alone)
        path_by_id = {id(module): path for path, module in model.named_modules()}
        for module in modules:
            path = path_by_id[id(module)]
            name = f"{class_name(model)}.{path}" if path else class_name(model)
            for group in parameter_groups(module):
                self._announcements.watch(group, name, partial(self._note_reduced, group))

    def _note_reduced(self, group: Any) -> None:
        self._origins.note(fsdp_parameter.sharded_param for fsdp_parameter in group.fsdp_params)

    def _give_up_whole(self) -> None:
        """Frees whole parameters before a step changes the parts. Later passes would otherwise use the old whole
        ones."""
        self._passes.forget()
        self._wholes.close()
        for module in self._all_modules():
            if any(group.is_unsharded for group in parameter_groups(module)):
                module.reshard()
        if self._half_gathering is not None:
            self._half_gathering.agree()

    def _set_exchange(self, is_on: bool) -> None:
        for root in self._all_roots():
            root.set_requires_gradient_sync(is_on)

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        if self._copies:
            # Ranks must agree on the remaining copies. A copy that nothing refers to keeps itself alive by a reference
            # cycle.
            gc.collect()
        modules, roots = self._all_modules(), self._all_roots()
        for module in modules:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
        self._keeps_whole = True
        try:
            yield
        finally:
            self._wholes.close()
            self._keeps_whole = False
            for module in modules:
                module.reshard()
                module.set_reshard_after_forward(self.reshards and module not in roots, recurse=False)
                forget_passes(module)

    def _all_roots(self) -> list[FSDPModule]:
        """Returns the divided models, and the copies that are still in use."""
        copies = [root for root in (copied() for copied in self._copies) if root is not None]
        self._copies = [weakref.ref(root) for root in copies]
        return [*self._roots, *copies]

    def _all_modules(self) -> list[FSDPModule]:
        return [module for root in self._all_roots() for module in sharded_modules(root)]

    def _all_groups(self) -> list[Any]:
        # Each backward pass and step calls this, so the groups of models that stay are listed once.
        copies = self._all_roots()[len(self._roots) :]
        return [*self._groups, *(group for root in copies for group in groups_of(root))]


def _is_divided(module: nn.Module) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())


def _records_gradients(output: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(output))


def check_shardable(name: str, model: nn.Module) -> None:
    """Raises GanglineError `parallelism.model` for parameters that cannot be divided."""
    sparse = sparse_module(model)
    if sparse is not None:
        raise invalid(
            "parallelism.model",
            f"{name} cannot divide the sparse gradients of {sparse}; make it with sparse=False, or use ddp or zero1",
        )


def _words_for(blocks: Sequence[nn.Module]) -> str:
    if not blocks:
        return "whole, as it has no repeated blocks; name some in parallelism.blocks to need less memory"
    kinds = ", ".join(sorted({type(block).__name__ for block in blocks}))
    return f"block by block, {len(blocks)} of class {kinds}"
