"""The strategy `pipeline`: each rank of a replica has one or two parts of the model. Microbatches pass through them.

With more slots than stages there are several replicas, whose gradients are averaged before each step. Every rank keeps
the module with all names; the values of other ranks' parameters are freed.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from gangline.config.pipeline import DEFAULT_SCHEDULE, SCHEDULES, slot_of_part
from gangline.core.beat import VALIDATION, Beat, NoBeat
from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.shared.batch_norm import warn_of_microbatches
from gangline.pytorch.parallel.shared.broadcast import broadcast_tensors
from gangline.pytorch.parallel.shared.copies import Copies
from gangline.pytorch.parallel.shared.norm import to_clip
from gangline.pytorch.parallel.shared.ownership import WrappedModels, class_name, inner_of
from gangline.pytorch.parallel.shared.reach import check_reach
from gangline.pytorch.parallel.shared.strategy import Holder, Replica, Strategy, Train
from gangline.pytorch.parallel.staged.batch import BatchRun
from gangline.pytorch.parallel.staged.borrowed import Borrowed
from gangline.pytorch.parallel.staged.compiled import UnitCompiler
from gangline.pytorch.parallel.staged.division import ReplicaDivision
from gangline.pytorch.parallel.staged.fitness import check_model
from gangline.pytorch.parallel.staged.gradient import join_gradients
from gangline.pytorch.parallel.staged.group import Replicas
from gangline.pytorch.parallel.staged.holding import Holding, move_to
from gangline.pytorch.parallel.staged.microbatch import MicrobatchCount, cut_batch
from gangline.pytorch.parallel.staged.norm_agreement import NormAgreement
from gangline.pytorch.parallel.staged.own_step import OwnStep
from gangline.pytorch.parallel.staged.part import Layout, Parts
from gangline.pytorch.parallel.staged.partition import partition
from gangline.pytorch.parallel.staged.redivision import agree_on_times, move_values
from gangline.pytorch.parallel.staged.report import log_parts
from gangline.pytorch.parallel.staged.schedule import PartModule, PartSchedule, ScheduleThread
from gangline.pytorch.parallel.staged.stage_copies import list_buffers, list_copies
from gangline.pytorch.parallel.staged.stage_random import StageRandom
from gangline.pytorch.parallel.staged.unit import check_carried, divide_units, find_units

_log = logging.getLogger("gangline")

# Schedules that are kept, each with room for the activations of one shape of inputs.
_MOST_SCHEDULES = 4


class PipelineStrategy(Strategy):
    """Trains one model as a pipeline. size: ranks of the trial. stages: ranks of a replica; None for all. microbatches:
    of a replica's batch; None chooses. split: `parameters`, `time`, or the modules with which later parts begin. carry:
    modules whose outputs go along to all later parts."""

    name = "pipeline"
    runs_batch: ClassVar[bool] = True
    places_models: ClassVar[bool] = True
    divides_gradients: ClassVar[bool] = True
    overwrites_copies: ClassVar[bool] = True

    def __init__(
        self,
        device: torch.device,
        *,
        size: int,
        stages: int | None = None,
        microbatches: int | None = None,
        schedule: str | None = None,
        split: str | Sequence[str] | None = None,
        carry: Sequence[str] | None = None,
        replicas: str | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        self._device = device
        self._stages = stages or size
        self._schedule = schedule or DEFAULT_SCHEDULE
        self._microbatches = microbatches
        self._count = MicrobatchCount(microbatches, self._stages, self._schedule)
        self._split = None if split is None or isinstance(split, str) else list(split)
        self._carry = list(carry or ())
        # Whether units are to be measured in the next batch.
        self._is_untimed = split == "time"
        self._divides = replicas == "zero2"
        if self._divides and size == self._stages:
            _log.info("parallelism.replicas: zero2 has nothing to divide, because the pipeline has one replica")
        self._timeout = timeout
        self._optimizers: list[Optimizer] = []
        self._models = WrappedModels(self.name, replaces=False)
        self._thread = ScheduleThread(device)
        self._modules: dict[int, PartModule] = {}
        self._schedules: OrderedDict[Any, PartSchedule] = OrderedDict()
        self._batch: BatchRun | None = None
        self._is_whole = self._is_in_stream = False
        # The optimizer whose gradients are joined already.
        self._joined: Optimizer | None = None
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        self._model: nn.Module | None = None
        self._division: ReplicaDivision | None = None
        self._beat: Beat = NoBeat()

    def replica_of(self, rank: int, world_size: int) -> Replica:
        last = slot_of_part(self._stages * SCHEDULES[self._schedule].parts - 1, self._stages, self._schedule)
        return Replica(rank // self._stages, world_size // self._stages, is_counted=rank % self._stages == last)

    def prepare_model(self, model: nn.Module) -> nn.Module:
        check_model(model, self._model, self._schedule, self._device)
        wrapped, model = model, inner_of(model)
        # Ranks may have built different models where the trial draws its own random numbers.
        broadcast_tensors((*model.parameters(), *model.buffers()))
        self._units = units = find_units(model)
        counts = divide_units(model, units, self._stages, self._split, self._schedule)
        check_carried(units, self._carry)
        warn_of_microbatches(model, microbatches=self._microbatches, replicas=dist.get_world_size() // self._stages)
        self._replicas = Replicas(self._stages, self._device, self._timeout)
        self._random = StageRandom(self._replicas)
        self._borrowed = Borrowed(self._replicas, self._device)
        self._parts = Parts(
            model,
            units,
            counts,
            replicas=self._replicas,
            schedule=self._schedule,
            borrow=self._borrow,
            numbers=self._random.numbers,
            carry=self._carry,
        )
        self._compiler = UnitCompiler(wrapped, units, self._parts.cut, self._schedule)
        self._wrapped = wrapped
        self._holding = self._hold()
        if self._divides and self._replicas.across is not None:
            self._division = ReplicaDivision(self._holding, self._replicas, self._models.describe)
        self._holding.give_up(self._replicas.place)
        move_to(model, self._device)
        self._make_groups()
        self._modules = {part: self._module_of(part) for part in self._parts.division.own}
        log_parts(class_name(model), units, counts, self._schedule, [unit.numel for unit in units])
        model.forward = torch.compiler.disable(self._forward)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for each in {model, wrapped}:
            each.__dict__["__deepcopy__"] = _refuse_copy
        self._model = model
        self._models.add(wrapped)
        return wrapped

    def prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        self._models.check(optimizer)
        self._models.watch(optimizer)
        check_reach(self.name, optimizer)
        self._optimizers.append(optimizer)
        if self._division is not None:
            self._division.begin(self._trained_of(optimizer))
        optimizer.register_step_pre_hook(lambda stepped, *_: self._before_any_step(stepped))
        OwnStep(optimizer, self.stepped_parameters)
        optimizer.register_step_post_hook(lambda stepped, *_: self._after_any_step(stepped))
        return optimizer

    def begin_training(self, beat: Beat) -> None:
        self._beat = beat
        if self._model is not None:
            self._parts.beat = beat

    def accumulate(self) -> AbstractContextManager[None]:
        # Gradients are joined before a step only.
        return nullcontext()

    def run_batch(self, train: Train, batch: Any, count_records: Callable[[Any], int]) -> Any:
        if self._model is None:
            return train(batch, True)
        records = count_records(batch)
        run = BatchRun(
            self._parts,
            self._device,
            cut_batch(batch, self._count.of(records), records),
            train,
            thread=self._thread,
            begin=self._begin,
            prepare=self._divide_by_time,
            beat=self._beat,
        )
        self._batch, self._is_in_stream = run, False
        try:
            return run.run()
        finally:
            self._batch = None
            if self._is_in_stream:
                self._random.units.__exit__(None, None, None)

    def run_backward(self, loss: torch.Tensor, gradient: Any, retain_graph: bool, create_graph: bool) -> None:
        if gradient is not None or retain_graph:
            raise invalid(
                "parallelism.train_batch",
                "pipeline runs one backward pass for each microbatch; call context.backward(loss) without gradient and "
                "retain_graph, or use ddp",
            )
        if self._batch is None:
            raise self._outside("context.backward was called")
        self._batch.on_backward(loss)

    def is_clearing_right(self) -> bool:
        return self._batch is None or self._batch.is_clearing_right

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Gives the first rank of each replica the whole model. The other ranks keep their parts."""
        assert self._model is not None
        values: dict[int, torch.Tensor] = {}
        for parameter in self._holding.parameters():
            places = self._holding.holders(parameter)
            if 0 in places or id(parameter) in self._borrowed.ids:
                continue
            is_first = self._replicas.place == 0
            value = torch.empty_like(parameter, device=self._device) if parameter.is_meta else parameter.detach()
            self._replicas.share([value], places[0])
            if is_first:
                values[id(parameter)] = value
        for name, buffer in self._model.named_buffers():
            self._replicas.share([buffer], self._holding.holders_of_name(name)[0])
        with self._holding.lent(values):
            self._is_whole = True
            try:
                yield
            finally:
                self._is_whole = False

    def share_buffers(self, models: Iterable[nn.Module]) -> None:
        if self._replicas.across is None:
            return
        for model in models:
            own = set(self._holding.names_of(self._replicas.place))
            buffers = (buffer for name, buffer in model.named_buffers() if name in own)
            broadcast_tensors(buffers, source=self._replicas.place, group=self._replicas.across)

    def before_step(self, optimizer: Optimizer) -> None:
        self._join(optimizer)
        self._joined = optimizer

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter] | nn.Parameter, max_norm: float, norm_type: float = 2.0
    ) -> torch.Tensor:
        chosen = to_clip(parameters)
        own = [parameter for parameter in chosen if self._is_own(parameter)]
        norm = self._norm_agreement().norm_of(chosen, float(norm_type))
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for parameter in own:
            if parameter.grad is not None:
                parameter.grad.mul_(scale.to(parameter.grad.device))
        return norm

    def clipping(self) -> AbstractContextManager[None]:
        return self._norm_agreement().over_torch()

    def agree_on_overflow(self, found: dict[torch.device, torch.Tensor]) -> None:
        if not found:
            # This rank has no gradient of the optimizer. The scaler refuses a step without a number.
            found[self._device] = torch.zeros((), device=self._device)
        total = torch.stack([value.detach().float().to(self._device).reshape(()) for value in found.values()]).max()
        dist.all_reduce(total, op=dist.ReduceOp.MAX, group=self._norm_group)
        for value in found.values():
            value.copy_(total)

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        own = set(self._holding.names_of(self._replicas.place))
        return {name: value for name, value in model.state_dict().items() if name in own}

    def absent_names(self, model: nn.Module) -> set[str]:
        return set(model.state_dict()) - set(self._holding.names_of(self._replicas.place))

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        # Without strict, as a rank has a part of the names. The caller has compared the names.
        model.load_state_dict(dict(state), strict=False)

    def stepped_parameters(self, optimizer: Optimizer) -> list[nn.Parameter]:
        held = self._held_of(optimizer)
        return held if self._division is None else list(filter(self._division.is_own, held))

    def holder_of(self, tensor: torch.Tensor, optimizer: Optimizer | None = None) -> Holder:
        if optimizer is not None and self._division is not None:
            return Holder()
        return Holder(self._replicas.index, self._replicas.count)

    def replicated(self) -> Sequence[Copies]:
        if self._model is None:
            return ()
        named = self._models.named_parameters()
        return list_copies(named, self._holding, self._replicas, self._groups, self._borrowed.ids)

    def replicated_buffers(self, models: Iterable[nn.Module]) -> Sequence[Copies]:
        return list_buffers(models, self._holding, self._replicas) if self._model is not None else ()

    def describe_buffers(self) -> str:
        return "validations and checkpoints have those of the first replica"

    def full_model_state(self, model: nn.Module) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for name, value in model.state_dict().items():
            if not isinstance(value, torch.Tensor):
                state[name] = value
                continue
            here = torch.empty_like(value, device=self._device) if value.is_meta else value.detach().clone()
            self._replicas.share([here], self._holding.holders_of_name(name)[0])
            state[name] = here.cpu()
        return state

    def rank_state(self) -> dict[str, Any]:
        return {} if self._model is None else self._random.capture()

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        if state and self._model is not None:
            self._random.restore(state)

    def _begin(self, layout: Layout, key: Any) -> Callable[[], None]:
        assert self._batch is not None
        count = self._batch.count
        schedule = self._schedules.pop((key, count), None)
        if schedule is None:
            schedule = PartSchedule(
                self._schedule_for(count),
                self._modules,
                layout.crossing,
                microbatches=count,
                device=self._device,
                group=self._replicas.inside,
                loss_of=lambda number: self._running().loss_of(number),
                beat=self._beat,
                describe_place=self._parts.division.describe_place,
            )
        self._schedules[key, count] = schedule
        while len(self._schedules) > _MOST_SCHEDULES:
            self._schedules.popitem(last=False)
        self._random.units.__enter__()
        self._is_in_stream = True
        return schedule.run

    def _divide_by_time(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Measures the units in the first batch, and divides the model by their times."""
        if not self._is_untimed:
            return
        self._is_untimed = False
        assert self._model is not None
        model, replicas = self._model, self._replicas
        seconds = agree_on_times(self._parts.measure(args, kwargs), len(self._units), replicas)
        counts = partition(seconds, self._parts.division.count)
        log_parts(class_name(model), self._units, counts, self._schedule, seconds)
        if counts == self._parts.division.counts:
            return
        self._parts.redivide(counts)
        old = self._holding
        self._holding = self._hold()
        self._borrowed.give_back(old)
        move_values(model, old, self._holding, replicas, self._optimizers)
        self._make_groups()
        self._modules = {part: self._module_of(part) for part in self._parts.division.own}

    def _hold(self) -> Holding:
        places = self._parts.division.places_of_units()
        return Holding(self._wrapped, self._units, places, self._stages, self._device)

    def _make_groups(self) -> None:
        """Makes the groups of the ranks that share parameters."""
        for places in sorted({self._holding.holders(parameter) for parameter in self._holding.parameters()}):
            if len(places) > 1 and places not in self._groups:
                self._groups[places] = self._replicas.group_of(places)

    def _schedule_for(self, count: int) -> str:
        return "GPipe" if self._schedule == "1F1B" and count < self._stages else self._schedule

    def _running(self) -> BatchRun:
        assert self._batch is not None
        return self._batch

    def _module_of(self, part: int) -> PartModule:
        modules = self._parts.modules_of(part)
        # All that this rank has, because a part may use parameters outside of its modules. torch takes what it reaches.
        weights = self._holding.held_by(self._replicas.place)
        return PartModule(modules, weights, lambda number, received: self._running().run_part(part, number, received))

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        self._compiler.follow_caller()
        if self._is_whole:
            return self._parts.cut.run_whole(args, kwargs)
        if self._batch is not None:
            return self._batch.on_forward(args, kwargs)
        if torch.is_grad_enabled():
            raise self._outside("the model was called with gradients")
        with self._random.units:
            return self._parts.forward(args, kwargs, VALIDATION, number=self._random.numbers.draw())

    def _outside(self, what: str) -> GanglineError:
        return invalid(
            "parallelism.train_batch",
            f"{what} outside of train_batch, where no pipeline runs; use torch.no_grad() for outputs, on all ranks",
        )

    def _before_any_step(self, optimizer: Optimizer) -> None:
        """Joins gradients before a step. Also covers an optimizer that the trial steps by itself."""
        if self._joined is not optimizer:
            self._join(optimizer)
        self._joined = None

    def _join(self, optimizer: Optimizer) -> None:
        self._borrowed.join_gradients(super().stepped_parameters(optimizer), self._holding)
        trained = self._trained_of(optimizer)
        for places, group in self._groups.items():
            if group is not None:
                shared = [parameter for parameter in trained if self._holding.holders(parameter) == places]
                shared = [parameter for parameter in shared if id(parameter) not in self._borrowed.ids]
                join_gradients(shared, group, is_mean=False)
        if self._division is not None:
            self._division.join_gradients(trained)
        elif self._replicas.across is not None:
            join_gradients(trained, self._replicas.across, is_mean=True)

    def _held_of(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """Returns an optimizer's parameters whose values this rank has as one of their stages."""
        return [parameter for parameter in super().stepped_parameters(optimizer) if self._is_own(parameter)]

    def _trained_of(self, optimizer: Optimizer) -> list[nn.Parameter]:
        return [parameter for parameter in self._held_of(optimizer) if parameter.requires_grad]

    def _norm_agreement(self) -> NormAgreement:
        return NormAgreement(self._holding, self._replicas.place, self._norm_group, self._device, self._joined)

    @property
    def _norm_group(self) -> dist.ProcessGroup | None:
        """The ranks that have one whole set of gradients before a step; None for all ranks."""
        return self._replicas.inside if self._division is None else None

    def _after_any_step(self, optimizer: Optimizer) -> None:
        if self._division is not None:
            self._division.spread(self._trained_of(optimizer))
        self._borrowed.send(super().stepped_parameters(optimizer), self._holding)

    def _borrow(self, name: str) -> None:
        assert self._model is not None
        parameter = self._model.get_parameter(name)
        self._borrowed.take(parameter, self._holding)
        for module in self._modules.values():
            module.add_weight(parameter)

    def _is_own(self, parameter: nn.Parameter) -> bool:
        return self._replicas.place in self._holding.holders(parameter)


def _refuse_copy(memo: Any) -> NoReturn:
    raise invalid(
        "parallelism.copy",
        "a model that pipeline has cut cannot be copied, as each rank has a part of it; copy it before "
        "context.wrap_model, or average weights with zero3 or ddp",
    )
