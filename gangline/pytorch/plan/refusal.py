"""Finds out which strategies refuse a trial's code, as far as a plan sees it: the wrapped models, the optimizers, and
one run of train_batch. Called by gangline.pytorch.plan.measure.

A strategy refuses by the same checks that its ranks make. What shows itself in training only, as a second backward
pass that begins in a later batch, is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim import Optimizer

from gangline.config.parallelism import STRATEGIES, Parallelism
from gangline.config.pipeline import DEFAULT_SCHEDULE
from gangline.errors import GanglineError
from gangline.pytorch.data.torch_error import unused_parameters
from gangline.pytorch.parallel.divided.block import find_blocks
from gangline.pytorch.parallel.divided.number_type import single_type_parts
from gangline.pytorch.parallel.divided.sharded import check_shardable
from gangline.pytorch.parallel.shared.divided_step import closure_conflict
from gangline.pytorch.parallel.shared.ownership import class_name
from gangline.pytorch.parallel.shared.reach import Reach, reach_conflict, reach_of
from gangline.pytorch.parallel.staged.fitness import check_model
from gangline.pytorch.parallel.whole.ddp import sparse_conflict

# Why a pipeline does not run a trial's train_batch; after the word.
SEVERAL_CALLS = "trains a batch with one call of the model, and train_batch calls it again"
_SEVERAL_BACKWARDS = "trains a batch with one context.backward, and train_batch calls it again; add the losses up"
_ARGUMENTS = "calls context.backward for each microbatch, and cannot pass gradient or retain_graph"
_CLOSURE = "steps once all microbatches are trained, and step_optimizer has a closure, which would train them again"
_COPIED = "has a part of the model on each slot, and the trial copies the wrapped model; copy it before wrap_model"


@dataclass(slots=True)
class Observation:
    """Notes of one run of train_batch."""

    num_calls: int = 0  # calls of the first model
    num_backwards: int = 0  # calls of context.backward
    has_arguments: bool = False  # whether a call of context.backward had a gradient or retain_graph
    closed_over: list[Optimizer] = field(default_factory=list)  # optimizers whose step had a closure
    is_copied: bool = False  # whether a wrapped model was copied
    # how the first model's forward departs from the order of its units, as in CallOrder.note; empty for a chain
    no_chain: str = ""
    # modules with parameters that each slot of a pipeline runs, because they run twice or in another order
    copied: set[str] = field(default_factory=set)
    # result of left_out for each model; empty if the first backward pass did not end
    unused: list[list[str]] = field(default_factory=list)
    mistake: str = ""  # why every strategy of several slots refuses an optimizer or the loss; empty if none does


@dataclass(frozen=True, slots=True)
class Subject:
    """The trial that is judged."""

    models: Sequence[nn.Module]
    optimizers: Sequence[Optimizer]
    observed: Observation
    section: Parallelism
    is_gpu: bool  # whether the slots are GPUs


def left_out(model: nn.Module, unreached: Collection[int]) -> list[str]:
    """Returns the names of trained parameters that a backward pass has left without a gradient. Empty for a model that
    the pass has not reached at all: it waits for a pass of its own. unreached: ids of parameters. Called right after
    the pass, as a trial may freeze and unfreeze parameters later."""
    trained = {name: id(value) for name, value in model.named_parameters() if value.requires_grad}
    names = [name for name, value in trained.items() if value in unreached]
    return names if len(names) < len(trained) else []


def refusals_of(subject: Subject) -> dict[str, str]:
    """Returns the reason of each strategy that refuses the trial."""
    makers: Mapping[str, Callable[[str, Subject], Iterator[str]]] = {
        "replicated": _replicated,
        "sharded": _sharded,
        "staged": _staged,
    }
    # A trial step of an optimizer takes some milliseconds, so it is made once for all strategies.
    reaches = [_reach(optimizer) for optimizer in subject.optimizers]
    found: dict[str, str] = {}
    for name, row in STRATEGIES.items():
        if row.family not in makers:
            continue
        reasons = [subject.observed.mistake] if subject.observed.mistake else []
        reasons += makers[row.family](name, subject)
        if name != "ddp":
            reasons += _of_optimizers(name, subject, reaches)
        if reasons:
            found[name] = reasons[0]
    return found


def _replicated(name: str, subject: Subject) -> Iterator[str]:
    observed, section = subject.observed, subject.section
    for model in subject.models:
        conflict = sparse_conflict(name, model) if subject.is_gpu else None
        if conflict is not None:
            yield conflict
    if section.find_unused_parameters or section.static_graph:
        return
    for model, names in zip(subject.models, observed.unused, strict=False):
        if names:
            yield unused_parameters(class_name(model), names, name).message


def _sharded(name: str, subject: Subject) -> Iterator[str]:
    for model in subject.models:
        try:
            check_shardable(name, model)
            single_type_parts(name, model, find_blocks(model, subject.section.blocks))
        except GanglineError as error:
            yield error.message


def _staged(name: str, subject: Subject) -> Iterator[str]:
    observed = subject.observed
    try:
        check_model(subject.models[0], None, DEFAULT_SCHEDULE)
    except GanglineError as error:
        yield error.message
    if observed.is_copied:
        yield _COPIED
    if observed.num_calls > 1:
        yield SEVERAL_CALLS
    if observed.num_backwards > 1:
        yield _SEVERAL_BACKWARDS
    if observed.no_chain:
        yield f"cannot cut {class_name(subject.models[0])}, whose forward {observed.no_chain}"
    if observed.has_arguments:
        yield _ARGUMENTS
    if observed.closed_over:
        yield _CLOSURE


def _reach(optimizer: Optimizer) -> tuple[Reach, str]:
    found = Reach.FAILED, ""
    with suppress(Exception):
        found = reach_of(optimizer, torch.device("cpu"))
    return found


def _of_optimizers(name: str, subject: Subject, reaches: Sequence[tuple[Reach, str]]) -> Iterator[str]:
    for optimizer, (reach, reason) in zip(subject.optimizers, reaches, strict=True):
        # An optimizer whose trial step fails here may do it on the slots, as one that is made for GPUs.
        conflict = None if reach is Reach.FAILED else reach_conflict(name, optimizer, reach, reason)
        if conflict is not None:
            yield conflict
        divides = name == "zero1" or (STRATEGIES[name].family == "sharded" and reach is Reach.TENSOR)
        if divides and any(each is optimizer for each in subject.observed.closed_over):
            yield closure_conflict(name, optimizer)
