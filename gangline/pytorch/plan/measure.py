"""Measures a trial's model for a plan: parameters, optimizer's state, and what a forward pass keeps and computes.

The trial is built on the meta device, where tensors have shapes and no values, so that a model of any size can be
planned on a laptop. A trial that needs values while it is built, or in its forward pass, is built again on the CPU,
if its parameters take at most a quarter of the machine's memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gangline.config.parallelism import Parallelism, parse_parallelism
from gangline.errors import GanglineError, invalid
from gangline.pytorch.data import seed
from gangline.pytorch.parallel.divided.block import find_blocks
from gangline.pytorch.parallel.shared.ownership import check_initialised, class_name
from gangline.pytorch.parallel.staged.unit import Unit, check_carried, find_units
from gangline.pytorch.plan.device_rules import regions_for_meta
from gangline.pytorch.plan.model_size import ModelSize, UnitSize
from gangline.pytorch.plan.optimizer_probe import UpdateSize, probe
from gangline.pytorch.plan.passes import Passes, measure_passes
from gangline.pytorch.plan.planning_context import PlanningContext, Reached
from gangline.pytorch.plan.refusal import Subject, refusals_of

_ADAM_BYTES = 8.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Sizes of a trial and its wrapped model."""

    model: nn.Module  # the wrapped model, on the meta device or the CPU
    name: str
    size: ModelSize
    units: tuple[Unit, ...]
    optimizer: str
    num_models: int
    cut_refusal: str  # why a pipeline cannot cut the model; empty if it can
    notes: tuple[str, ...]  # lines about values that could not be measured
    # reason of each strategy that refuses the trial's code, as far as the run showed it
    refused: Mapping[str, str] = field(default_factory=dict)


def measure_kinds(
    make_trial: Callable[[PlanningContext], Any],
    hparams: Mapping[str, Any],
    config: Mapping[str, Any],
    slots: int,
    *,
    kinds: Sequence[str],
    is_gpu: bool = True,
) -> list[Measured]:
    """Measures the trial once for each kind of recomputation, otherwise as measure_trial. The first kind must be
    possible; a later one is left out for a model without the parts that it needs, and where its backward pass alone
    fails. The first one alone has all refusals."""
    measured: list[Measured] = []
    for kind in kinds:
        try:
            found = measure_trial(
                make_trial, hparams, config, slots, is_gpu=is_gpu, recomputation=kind, is_observed=not measured
            )
        except GanglineError as error:
            if not measured or error.code != "parallelism.activation_checkpointing":
                raise
            continue
        if not measured or found.size.moments or not measured[0].size.moments:
            measured.append(found)
    return measured


def measure_trial(
    make_trial: Callable[[PlanningContext], Any],
    hparams: Mapping[str, Any],
    config: Mapping[str, Any],
    slots: int,
    *,
    is_gpu: bool = True,
    recomputation: str = "none",
    is_observed: bool = True,
) -> Measured:
    """Builds the trial and measures it. config: with the section `parallelism`. is_gpu: whether the slots are GPUs,
    where torch's optimizers step all parameters at once. recomputation: which parts of the model run again in the
    backward pass. is_observed: whether train_batch goes on after its first backward pass, to see what strategies
    refuse. Raises GanglineError `plan.build` for a trial that wraps no model, and
    `parallelism.activation_checkpointing` for a model without the parts that recomputation needs."""
    section = parse_parallelism(config.get("parallelism") or {})

    def attempt(device: str) -> _Attempt:
        context = PlanningContext(hparams, config, slots, torch.device(device), is_observed=is_observed)
        context.recomputation = recomputation, section.blocks
        return _Attempt(make_trial, context, section, is_gpu=is_gpu)

    first = attempt("meta")
    if first.problem is None:
        return first.result()
    if first.context.models and _bytes_of(first.context.models) > _physical_bytes() / 4:
        return first.result()
    return attempt("cpu").result()


class _Attempt:
    """One attempt to build a trial on the context's device and to run its first batch. problem: the exception that
    ended it."""

    def __init__(
        self,
        make_trial: Callable[[PlanningContext], Any],
        context: PlanningContext,
        section: Parallelism,
        *,
        is_gpu: bool,
    ) -> None:
        self.context = context
        self.problem: BaseException | None = None
        self._section = section
        self._is_gpu = is_gpu
        self._is_built = False
        self._passes: Passes | None = None
        seed.seed_build(context.get_trial_seed())
        try:
            with regions_for_meta():
                torch.set_default_device(context.device)
                try:
                    trial = make_trial(context)
                finally:
                    torch.set_default_device(None)
                self._is_built = True
                if context.models:
                    units = self._units()[0]
                    self._passes = measure_passes(trial, context, units, section.carry or (), is_gpu=is_gpu)
        except (Exception, Reached) as error:  # noqa: BLE001 - a user's code may raise anything; the plan says what is missing
            self.problem = error

    def result(self) -> Measured:
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
            what = "the forward pass" if self._is_built else "__init__ after wrap_model"
            notes.append(
                f"activations and operations are not counted, because {what} failed here: {_line(self.problem)}"
            )
        if self._passes is not None and self._passes.problem is not None:
            notes.append(
                "only what the forward pass keeps and computes is counted, because the backward pass failed here: "
                f"{_line(self._passes.problem)}"
            )
        units, refusal = self._units()
        if units:
            check_carried(units, self._section.carry or ())
        optimizers = self.context.optimizers
        if not optimizers:
            notes.append("no optimizer was wrapped; counted 8 bytes for each parameter, as for AdamW")
        copied = self.context.observed.copied
        if copied and units:
            notes.append(
                f"each slot of a pipeline has a copy of {', '.join(sorted(copied))}, which runs twice or in another "
                "order than that of its definition; the copies are not counted"
            )
        names = [type(optimizer).__name__ for optimizer in optimizers]
        return Measured(
            models[0],
            class_name(models[0]),
            self._size(units),
            tuple(units),
            ", ".join(dict.fromkeys(names)) or "unknown",
            len(models),
            refusal,
            tuple(notes),
            refusals_of(Subject(models, optimizers, self.context.observed, self._section, self._is_gpu)),
        )

    def _size(self, units: Sequence[Unit]) -> ModelSize:
        models, blocks = self.context.models, self._section.blocks
        parameters = _unique(models)
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        numel = sum(parameter.numel() for parameter in parameters)
        total = max(1, numel)
        stored = sum(parameter.nbytes for parameter in parameters) / total
        passes = self._passes or Passes.of_none(len(units))
        flops = sum(passes.flops)
        update = probe(self.context.optimizers, self._is_gpu)
        if not self.context.optimizers:
            update = UpdateSize(_ADAM_BYTES * sum(parameter.numel() for parameter in trained))
        groups = [numel for model in models for numel in _groups(model, blocks)]
        return ModelSize(
            numel,
            max(groups, default=0),
            stored,
            gradient=sum(parameter.nbytes for parameter in trained) / total,
            optimizer=update.state_bytes / total,
            computed=stored,
            activation_bytes=sum(passes.activation_bytes) / passes.records,
            units=tuple(_unit_sizes(models[0], units, passes)),
            forward_flops=flops / passes.records,
            moments=passes.moments,
            step_bytes=update.temporary_bytes / total,
            step_tensor_bytes=update.largest_temporary_bytes,
            recomputation=self.context.recomputation[0],
            tensors=tuple(parameter.numel() for parameter in trained),
            forward_kernels=float(passes.kernels),
            num_groups=len(groups),
            connections=passes.connections,
            convolved=passes.convolved,
            flop_passes=passes.all_flops / flops if flops else 0.0,
            kernel_passes=passes.all_kernels / passes.kernels if passes.kernels else 0.0,
            update_kernels=update.kernels,
            update_bytes=update.moved_bytes / total,
            batch_bytes=passes.batch_bytes / passes.records,
            copied_bytes=sum(passes.copied_bytes),
            streamed_bytes=passes.streamed_bytes / passes.records,
        )

    def _units(self) -> tuple[list[Unit], str]:
        try:
            return find_units(self.context.models[0]), ""
        except GanglineError as error:
            return [], error.message


def _unit_sizes(model: nn.Module, units: Sequence[Unit], passes: Passes) -> Iterator[UnitSize]:
    has_backward = False
    for place, unit in enumerate(units):
        parameters = _unique([model.get_submodule(path) for path in unit.paths])
        has_backward = has_backward or any(parameter.requires_grad for parameter in parameters)
        yield UnitSize(
            unit.name,
            unit.numel,
            passes.activation_bytes[place] / passes.records,
            passes.output_bytes[place] / passes.records,
            passes.flops[place] / passes.records,
            passes.peak_bytes[place] / passes.records,
            tuple(parameter.numel() for parameter in parameters),
            has_backward,
            passes.passed_bytes[place] / passes.records,
            passes.taken_bytes[place] / passes.records,
            passes.copied_bytes[place],
        )


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
