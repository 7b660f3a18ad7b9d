"""Measures a trial's model for a plan: parameters, optimizer's state, and what a forward pass keeps and computes.

The trial is built on the meta device, where tensors have shapes and no values, so that a model of any size can be
planned on a laptop. A trial that needs values while it is built, or in its forward pass, is built again on the CPU,
if its parameters take at most a quarter of the machine's memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gangline.errors import GanglineError, invalid
from gangline.pytorch.data import seed
from gangline.pytorch.data.batch_data import count_records, move
from gangline.pytorch.data.loader import DataLoader
from gangline.pytorch.parallel.divided.block import find_blocks
from gangline.pytorch.parallel.shared.ownership import check_initialised, class_name
from gangline.pytorch.parallel.staged.layout import tensors_of
from gangline.pytorch.parallel.staged.unit import Unit, check_carried, find_units
from gangline.pytorch.plan.connections import ConnectionWatch
from gangline.pytorch.plan.memory import Connection, ModelSize, Moment, UnitSize
from gangline.pytorch.plan.optimizer_probe import UpdateSize, probe
from gangline.pytorch.plan.planning_context import PlanningContext, Reached
from gangline.pytorch.plan.recurrent import LstmOfCpu
from gangline.pytorch.plan.refusal import Subject, left_out, refusals_of
from gangline.pytorch.plan.step_peak import FusedAttention, StepPeak, operation_counter

_ADAM_BYTES = 8.0


@dataclass(frozen=True, slots=True)
class Measured:
    """model: the wrapped model, on the meta device or the CPU. cut_refusal: why a pipeline cannot cut it; empty for a
    model that it can. notes: lines about what could not be measured. refused: the reason of each
    strategy that refuses the trial's code, as far as it was seen."""

    model: nn.Module
    name: str
    size: ModelSize
    units: tuple[Unit, ...]
    optimizer: str
    num_models: int
    cut_refusal: str
    notes: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)


def measure_kinds(
    make_trial: Callable[[PlanningContext], Any],
    hparams: Mapping[str, Any],
    config: Mapping[str, Any],
    slots: int,
    blocks: Sequence[str] | None,
    *,
    kinds: Sequence[str],
    is_gpu: bool = True,
) -> list[Measured]:
    """Measures the trial once for each kind of recomputation, otherwise as measure_trial. The first kind must be
    possible; a later one is left out for a model without the parts that it needs. The first one alone has all
    refusals."""
    measured: list[Measured] = []
    for kind in kinds:
        try:
            measured.append(
                measure_trial(
                    make_trial,
                    hparams,
                    config,
                    slots,
                    blocks,
                    is_gpu=is_gpu,
                    recomputation=kind,
                    is_observed=not measured,
                )
            )
        except GanglineError as error:
            if not measured or error.code != "parallelism.activation_checkpointing":
                raise
    return measured


def measure_trial(
    make_trial: Callable[[PlanningContext], Any],
    hparams: Mapping[str, Any],
    config: Mapping[str, Any],
    slots: int,
    blocks: Sequence[str] | None,
    *,
    is_gpu: bool = True,
    recomputation: str = "none",
    is_observed: bool = True,
) -> Measured:
    """Builds the trial and measures it. blocks: the option of that name. is_gpu: whether the slots are GPUs, where
    torch's optimizers step all parameters at once. recomputation: which parts of the model run
    again in the backward pass. is_observed: whether train_batch goes on after its first backward pass, to see what
    strategies refuse. Raises GanglineError `plan.build` for a trial that wraps no model, and
    `parallelism.activation_checkpointing` for a model without the parts that recomputation needs."""
    again = (recomputation, blocks)
    meta, cpu = torch.device("meta"), torch.device("cpu")
    first = _Attempt(
        make_trial, hparams, config, slots, device=meta, recomputation=again, is_gpu=is_gpu, is_observed=is_observed
    )
    if first.problem is None:
        return first.result(blocks)
    if first.context.models and _bytes_of(first.context.models) > _physical_bytes() / 4:
        return first.result(blocks)
    second = _Attempt(
        make_trial, hparams, config, slots, device=cpu, recomputation=again, is_gpu=is_gpu, is_observed=is_observed
    )
    return second.result(blocks)


class _Attempt:
    """One attempt to build a trial on a device and to run its forward pass. problem: the exception that ended it."""

    def __init__(
        self,
        make_trial: Callable[[PlanningContext], Any],
        hparams: Mapping[str, Any],
        config: Mapping[str, Any],
        slots: int,
        *,
        device: torch.device,
        recomputation: tuple[str, Sequence[str] | None],
        is_gpu: bool,
        is_observed: bool,
    ) -> None:
        self._is_gpu = is_gpu
        self.problem: BaseException | None = None
        self.is_built = False
        self._forward: _Forward | None = None
        self._parallelism = config.get("parallelism")
        self.context = PlanningContext(hparams, config, slots, device, is_observed=is_observed)
        self.context.recomputation = recomputation
        seed.seed_build(self.context.get_trial_seed())
        try:
            torch.set_default_device(device)
            try:
                trial = make_trial(self.context)
            finally:
                torch.set_default_device(None)
            self.is_built = True
            if self.context.models:
                units = self._units()[0]
                self._forward = _run_forward(trial, self.context, units, is_gpu=is_gpu, carry=self._carry)
        except (Exception, Reached) as error:  # noqa: BLE001 - a user's code may raise anything; the plan says what is missing
            self.problem = error

    def result(self, blocks: Sequence[str] | None) -> Measured:
        models = self.context.models
        if not models:
            if isinstance(self.problem, GanglineError):
                raise self.problem
            why = f": {_line(self.problem)}" if self.problem is not None else ""
            advice = (
                "call context.wrap_model before loading data, or plan where the data is"
                if self.problem is not None
                else "a plan needs a model that is passed to context.wrap_model in __init__"
            )
            raise invalid("plan.build", f"the trial wraps no model when it is built{why}; {advice}") from self.problem
        check_initialised(models[0])
        notes = []
        if self.problem is not None:
            what = "the forward pass" if self.is_built else "__init__ after wrap_model"
            notes.append(
                f"activations and operations are not counted, because {what} failed here: {_line(self.problem)}"
            )
        units, refusal = self._units()
        if units:
            check_carried(units, self._carry)
        size = _size_of(models, self.context.optimizers, units, self._forward, blocks, is_gpu=self._is_gpu)
        size = replace(size, recomputation=self.context.recomputation[0])
        if not self.context.optimizers:
            notes.append("no optimizer was wrapped; counted 8 bytes for each parameter, as for AdamW")
        names = [type(optimizer).__name__ for optimizer in self.context.optimizers]
        return Measured(
            models[0],
            class_name(models[0]),
            size,
            tuple(units),
            ", ".join(dict.fromkeys(names)) or "unknown",
            len(models),
            refusal,
            tuple(notes),
            refusals_of(
                Subject(models, self.context.optimizers, self.context.observed, self._parallelism, blocks, self._is_gpu)
            ),
        )

    @property
    def _carry(self) -> Sequence[str]:
        section = self._parallelism if isinstance(self._parallelism, Mapping) else {}
        return section.get("carry") or ()

    def _units(self) -> tuple[list[Unit], str]:
        try:
            return find_units(self.context.models[0]), ""
        except GanglineError as error:
            return [], error.message


@dataclass(slots=True)
class _Forward:
    """What one forward pass keeps and computes, for each unit; without units in one entry. records: of its batch.
    moments: those of the passes that need most memory; empty where the backward pass failed. peak_bytes: of a unit's
    own passes, 0 where they are not known. kernels: operations that were issued. connections: outputs of units that
    later units need besides."""

    records: int
    activation_bytes: list[float]
    output_bytes: list[float]
    flops: list[float]
    moments: tuple[Moment, ...] = ()
    peak_bytes: list[float] = field(default_factory=list)
    kernels: int = 0
    connections: tuple[Connection, ...] = ()


def _run_forward(
    trial: Any, context: PlanningContext, units: Sequence[Unit], *, is_gpu: bool, carry: Sequence[str]
) -> _Forward:
    model = context.models[0]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    batch = _first_batch(trial.build_training_data_loader(), context.get_trial_seed())
    places = max(1, len(units))
    found = _Forward(max(1, count_records(batch)), [0.0] * places, [0.0] * places, [0.0] * places)
    known = {
        tensor.untyped_storage()._cdata for each in context.models for tensor in (*each.parameters(), *each.buffers())
    }
    # Each storage with the unit that keeps it. They stay alive, so that no later one gets the address of one of these.
    seen: dict[int, tuple[torch.UntypedStorage, int]] = {}
    connections = ConnectionWatch(model, units, carry)
    counter = operation_counter()
    current, counted, is_measured = 0, 0, False

    def enter(place: int, inputs: Any = ()) -> None:
        nonlocal current, counted
        if is_measured:
            return
        total = counter.get_total_flops()
        found.flops[current] += total - counted
        current, counted = place, total
        if context.recomputation[0] != "none":
            # A recomputed module keeps its inputs, which no hook of saved tensors sees.
            for tensor in tensors_of(inputs):
                keep(tensor)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if not is_measured and storage._cdata not in known and storage._cdata not in seen:
            seen[storage._cdata] = storage, current
            found.activation_bytes[current] += min(storage.nbytes(), tensor.numel() * tensor.element_size())
        return tensor

    def leave(place: int, output: Any) -> None:
        if not is_measured:
            found.output_bytes[place] = float(sum(value.nbytes for value in tensors_of(output)))

    def go_back(loss: torch.Tensor) -> None:
        nonlocal is_measured
        enter(current)
        found.kernels = counting.num_kernels
        found.connections = connections.found(found.records, {key: place for key, (_, place) in seen.items()})
        seen.clear()
        try:
            if not loss.requires_grad:
                return
            peak.backward(loss)
        except Exception:  # noqa: BLE001 - an operation without a backward pass here; the forward pass is counted
            return
        finally:
            is_measured = True
        found.moments = peak.moments(found.records)
        found.peak_bytes = _peaks_of_units(model, units, peak, found.activation_bytes)
        context.observed.unused = [left_out(each, peak.unreached) for each in context.models]

    for each in context.models:
        each.train()
    saved = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    batch = move(batch, device)
    peak = StepPeak(context.models, batch, device)
    context.on_backward = go_back
    called = model.register_forward_pre_hook(lambda *_: context.note_call())
    with (
        called,
        _watch(model, units, enter, leave),
        connections.watching(),
        saved,
        FusedAttention(),
        nullcontext() if is_gpu else LstmOfCpu(),
        peak.counting() as counting,
        counter,
    ):
        _train(trial, batch, context)
    return found


def _train(trial: Any, batch: Any, context: PlanningContext) -> None:
    """Runs train_batch. An exception after its first backward pass, as for reading a value on the meta device, ends the
    run and is no problem."""
    try:
        trial.train_batch(batch, 0, 0)
    except (Exception, SystemExit, Reached) as error:
        if not isinstance(error, Reached) and not context.observed.num_backwards:
            raise


def _peaks_of_units(
    model: nn.Module, units: Sequence[Unit], peak: StepPeak, activation_bytes: Sequence[float]
) -> list[float]:
    """Returns the most bytes at each unit's backward pass, without what the units before it keep."""
    parts = [{id(value) for path in unit.paths for value in model.get_submodule(path).parameters()} for unit in units]
    found, before = [], 0.0
    for count, kept in zip(peak.peaks_of(parts), activation_bytes, strict=False):
        found.append(max(0.0, count - before))
        before += kept
    return found


@contextmanager
def _watch(
    model: nn.Module, units: Sequence[Unit], enter: Callable[[int, Any], None], leave: Callable[[int, Any], None]
) -> Iterator[None]:
    """Calls `enter` before each module of a unit, with the unit's place and the inputs, and `leave` once with its
    output."""
    handles = []
    for place, unit in enumerate(units):
        for path in unit.paths:
            before = model.get_submodule(path).register_forward_pre_hook(
                lambda _module, inputs, place=place: enter(place, inputs)
            )
            handles.append(before)
        if unit.end is None and place + 1 < len(units):
            # The input of the next unit is the output of the modules before the first list.
            following = model.get_submodule(units[place + 1].paths[0])
            handles.append(
                following.register_forward_pre_hook(lambda *values, place=place: leave(place, values[1][:1]))
            )
            continue
        last = model.get_submodule(unit.end or unit.paths[-1])
        handles.append(last.register_forward_hook(lambda *values, place=place: leave(place, values[-1])))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first_batch(loader: Any, trial_seed: int) -> Any:
    if isinstance(loader, DataLoader):
        return next(iter(loader.get_data_loader(repeat=True, seed=trial_seed)))
    return next(iter(loader))


def _size_of(
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    units: Sequence[Unit],
    forward: _Forward | None,
    blocks: Sequence[str] | None,
    *,
    is_gpu: bool,
) -> ModelSize:
    parameters = _unique(models)
    total = sum(parameter.numel() for parameter in parameters)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    stored = sum(parameter.nbytes for parameter in parameters) / max(1, total)
    gradient = sum(parameter.nbytes for parameter in trained) / max(1, total)
    update = probe(optimizers, is_gpu)
    if not optimizers:
        update = UpdateSize(_ADAM_BYTES * sum(parameter.numel() for parameter in trained))
    records = forward.records if forward else 1
    sizes = tuple(
        UnitSize(
            unit.name,
            unit.numel,
            forward.activation_bytes[place] / records if forward else 0.0,
            forward.output_bytes[place] / records if forward else 0.0,
            forward.flops[place] / records if forward else 0.0,
            forward.peak_bytes[place] / records if forward and forward.peak_bytes else 0.0,
            tuple(value.numel() for value in _unique([models[0].get_submodule(path) for path in unit.paths])),
        )
        for place, unit in enumerate(units)
    )
    return ModelSize(
        total,
        max((_largest_group(model, blocks) for model in models), default=0),
        stored,
        gradient,
        update.state_bytes / max(1, total),
        stored,
        sum(forward.activation_bytes) / records if forward else 0.0,
        sizes,
        sum(forward.flops) / records if forward else 0.0,
        forward.moments if forward else (),
        update.temporary_bytes / max(1, total),
        update.largest_temporary_bytes,
        tensors=tuple(parameter.numel() for parameter in trained),
        forward_kernels=float(forward.kernels) if forward else 0.0,
        num_groups=sum(len(_groups(model, blocks)) for model in models),
        connections=forward.connections if forward else (),
    )


def _largest_group(model: nn.Module, blocks: Sequence[str] | None) -> int:
    """Returns the parameters of the largest group that zero3 gathers."""
    return max(_groups(model, blocks), default=0)


def _groups(model: nn.Module, blocks: Sequence[str] | None) -> list[int]:
    """Returns the parameters of each group that is gathered at once: a block, or all that is outside of blocks."""
    found = [sum(parameter.numel() for parameter in _unique([block])) for block in find_blocks(model, blocks)]
    rest = sum(parameter.numel() for parameter in _unique([model])) - sum(found)
    return [*found, rest] if rest else found


def _unique(models: Sequence[nn.Module]) -> list[nn.Parameter]:
    return list({id(parameter): parameter for model in models for parameter in model.parameters()}.values())


def _bytes_of(models: Sequence[nn.Module]) -> int:
    return sum(parameter.nbytes for parameter in _unique(models))


def _physical_bytes() -> int:
    # Not what is free at the moment, so that a plan does not depend on the machine's other work.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
