"""PURE: the bytes that a slot needs under each strategy, computed from sizes of the model.

The formulas count what torch really keeps: a stored parameter, its gradient, the optimizer's state, and what a step
adds for a moment. A test compares them with worked examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from gangline.config.parallelism import STRATEGIES
from gangline.config.pipeline import SCHEDULES, slot_of_part
from gangline.pytorch.parallel.shared.even_division import largest_share

# Tensors travel in messages of about this size, where a strategy joins them.
MESSAGE_BYTES = float(32 << 20)


@dataclass(frozen=True, slots=True)
class UnitSize:
    """A unit of a model's chain. parameters: their number. activation_bytes: kept from its forward to its backward
    pass, for one record. output_bytes: what the next unit gets, for one record. forward_flops: for one record.
    peak_bytes: the most in its forward and backward pass, kept ones included, for one record; 0 if not measured.
    tensors: numbers of elements of its parameter tensors; empty if not measured. has_backward: whether the backward
    pass reaches it, as parameters are trained in it or before it."""

    name: str
    parameters: int
    activation_bytes: float = 0.0
    output_bytes: float = 0.0
    forward_flops: float = 0.0
    peak_bytes: float = 0.0
    tensors: tuple[int, ...] = ()
    has_backward: bool = True


@dataclass(frozen=True, slots=True)
class Connection:
    """An output of a unit's module that a later unit needs besides the output of the unit before it, as a skip
    connection does. bytes: for one record. maker: the place of the unit that makes it. first, last: a pipeline carries
    it over the borders behind the units from `first` to the one before `last`. keeper: the unit whose passes keep it
    anyway, and whose activation_bytes have it; None if none does."""

    path: str
    bytes: float
    maker: int
    first: int
    last: int
    keeper: int | None = None

    def crosses(self, unit: int) -> bool:
        """Returns whether a border behind this unit is crossed."""
        return self.first <= unit < self.last


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of the forward or backward pass. working_bytes: of all tensors beside parameters and their gradients,
    for one record. gradient_ratio: the part of the gradients that are there."""

    working_bytes: float
    gradient_ratio: float


@dataclass(frozen=True, slots=True)
class ModelSize:
    """parameters, largest_block: numbers of parameters, of the model and of the largest group that is gathered at once.

    stored, gradient, optimizer, computed: bytes for a parameter: as stored, of its gradient, of the optimizer's state,
    and of a gathered copy. activation_bytes: for one record, over the whole model. units: the chain that a pipeline can
    cut; empty for a model that it cannot cut. forward_flops: for one record. moments: those that need most, measured in
    a forward and backward pass; empty where only the forward pass was measured. step_bytes: of temporary tensors in the
    optimizer's step, for each parameter that is stepped; step_tensor_bytes: for the largest parameter tensor, where the
    optimizer steps one after the other. recomputation: what was computed again in the backward pass, as in
    gangline.config.parallelism; all sizes were measured so. tensors: numbers of elements of the trained parameter
    tensors; empty if not measured. forward_kernels: operations that the forward pass issues, whatever the number of
    records. num_groups: groups that are gathered at once: the blocks, and all that is outside of them. connections:
    outputs of units that are carried over borders of a pipeline. flop_passes, kernel_passes: operations of the forward
    and backward pass, and those that are issued, over the forward pass's own; 0 where the backward pass was not
    measured. update_kernels: operations that a step of the optimizer issues for all parameters. update_bytes: bytes
    that it reads and writes, for each parameter.
    """

    parameters: int
    largest_block: int
    stored: float = 4.0
    gradient: float = 4.0
    optimizer: float = 8.0
    computed: float = 4.0
    activation_bytes: float = 0.0
    units: tuple[UnitSize, ...] = field(default=())
    forward_flops: float = 0.0
    moments: tuple[Moment, ...] = field(default=())
    step_bytes: float = 0.0
    step_tensor_bytes: float = 0.0
    recomputation: str = "none"
    tensors: tuple[int, ...] = ()
    forward_kernels: float = 0.0
    num_groups: int = 1
    connections: tuple[Connection, ...] = ()
    flop_passes: float = 0.0
    kernel_passes: float = 0.0
    update_kernels: float = 0.0
    update_bytes: float = 0.0

    @property
    def kept(self) -> float:
        """Bytes for a parameter that is whole on a slot."""
        return self.stored + self.gradient + self.optimizer


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one slot. transient: beside the others, for a part of each step. activations: all other tensors at the
    moment that needs most, less the gradients that are not there at that moment."""

    parameters: float
    gradients: float
    optimizer: float
    transient: float
    activations: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.transient + self.activations


def slot_memory(model: ModelSize, strategy: str, slots: int, records: float, shards: int | None = None) -> Memory:
    """Returns the bytes of one slot for a strategy that does not cut the model. records: of one slot's batch. shards:
    the slots among which `hsdp` divides; the other strategies divide by all."""
    family = STRATEGIES[strategy].family
    assert family in ("single", "replicated", "sharded"), strategy
    whole = float(model.parameters)
    divided = whole / (shards or slots)
    block = float(model.largest_block)
    if family != "sharded":
        # DDP's buckets are the gradients themselves (gradient_as_bucket_view).
        # Each tensor has one owner with zero1. The slot that owns most needs most.
        state = whole * owned_ratio(model, slots) if strategy == "zero1" else whole
        # The buckets stay from step to step. Without them gradients come one by one, and go after the step.
        late = model.gradient * whole if family == "single" else 0.0
        step = _step_bytes(model, state)
        if strategy == "zero1":
            step = max(step, min(model.stored * state, MESSAGE_BYTES))
        activations = max(step, _working_bytes(model, records, late))
        return Memory(model.stored * whole, model.gradient * whole, model.optimizer * state, 0.0, activations)
    # zero2 keeps the gathered parameters from forward to backward; the others two groups of them.
    gathered = whole if strategy == "zero2" else min(2 * block, whole)
    # A group's gradients are whole before they are reduced. They come when the gathered parameters are all still there.
    transient = model.computed * gathered + model.gradient * block
    step = _step_bytes(model, divided, shards or slots)
    activations = max(step - transient, _working_bytes(model, records, model.gradient * divided))
    return Memory(model.stored * divided, model.gradient * divided, model.optimizer * divided, transient, activations)


def owned_ratio(model: ModelSize, slots: int) -> float:
    """Returns the part of the trained parameters that one slot owns at most; equal parts where no tensors are known."""
    return largest_share(model.tensors, slots) / sum(model.tensors) if model.tensors else 1 / slots


def _step_bytes(model: ModelSize, stepped: float, shards: int = 1) -> float:
    """Returns the temporary bytes of the optimizer's step. stepped: the parameters that this slot steps. shards: the
    parts of each tensor, of which this slot has one."""
    return max(model.step_bytes * stepped, model.step_tensor_bytes / shards)


def _working_bytes(model: ModelSize, records: float, late: float) -> float:
    """Returns the most bytes of a step beside parameters, gradients and state. late: bytes of the gradients that come
    during the backward pass."""
    moments = model.moments or (Moment(model.activation_bytes, 1.0),)
    return max(0.0, *(moment.working_bytes * records - late * (1 - moment.gradient_ratio) for moment in moments))


def stage_memory(
    model: ModelSize,
    counts: Sequence[int],
    stages: int,
    schedule: str,
    *,
    microbatches: int,
    records: float,
    replicas: int = 1,
    is_divided: bool = False,
) -> list[Memory]:
    """Returns the bytes of each slot of a pipeline's replica. counts: the units of each part. records: of a replica's
    batch. replicas: their number. is_divided: whether each parameter has one owner among the replicas, which keeps its
    gradient and its state (`replicas: zero2`); the bytes are those of the replica that owns most then."""
    found = []
    received = _received_bytes(model, counts, stages, schedule)
    carried = _held_bytes(model, counts, stages, schedule)
    for slot, own in enumerate(stage_units(model, counts, stages, schedule)):
        numel = float(sum(unit.parameters for unit in own))
        saved = sum(unit.activation_bytes for unit in own)
        flying = in_flight(slot, stages, schedule, microbatches)
        activations = ((saved * (flying - 1) + _pass_bytes(own)) + carried[slot] * flying) * records / microbatches
        kept = _largest_share(own, replicas) if is_divided else numel
        # Gradients are whole until the replicas join them; the buffers stay from step to step.
        buffers, late = received[slot] * records, model.gradient * (numel - kept)
        step = _step_bytes(model, kept) - late
        if replicas > 1:
            # Gradients are joined in messages before the step.
            step = max(step, min(model.gradient * kept, MESSAGE_BYTES))
        activations = max(activations, step - buffers)
        sizes = (model.stored * numel, model.gradient * kept, model.optimizer * kept)
        found.append(Memory(*sizes, buffers + late, activations))
    return found


def _largest_share(units: Sequence[UnitSize], replicas: int) -> float:
    """Returns the parameters of the replica that owns most. Each tensor has one owner; an equal share counts where the
    tensors are not known."""
    numel = sum(unit.parameters for unit in units)
    tensors = [size for unit in units for size in unit.tensors]
    return largest_share(tensors, replicas) if tensors else numel / replicas


def _pass_bytes(units: Sequence[UnitSize]) -> float:
    """Returns the most bytes of one record's passes through the units of a slot: at the backward pass of a unit those
    before it still have all that they keep."""
    most = before = 0.0
    for unit in units:
        most = max(most, before + max(unit.peak_bytes, unit.activation_bytes))
        before += unit.activation_bytes
    return most


def _received_bytes(model: ModelSize, counts: Sequence[int], stages: int, schedule: str) -> list[float]:
    """Returns, for one record, the bytes of the buffers for what each slot receives: outputs of the part before it and
    gradients from the part after it, with all that is carried along. torch keeps one for each microbatch of a batch."""
    found = [0.0] * stages
    for border, sent in enumerate(border_bytes(model, counts), 1):
        sender, receiver = (slot_of_part(part, stages, schedule) for part in (border - 1, border))
        if sender != receiver:
            found[sender] += sent
            found[receiver] += sent
    return found


def carried_bytes(model: ModelSize, counts: Sequence[int]) -> list[float]:
    """Returns, for one record, the bytes that go over each border besides the output of the unit before it. counts:
    the units of each part."""
    return [
        sum((each.bytes for each in model.connections if each.crosses(end - 1)), 0.0) for end in accumulate(counts[:-1])
    ]


def border_bytes(model: ModelSize, counts: Sequence[int]) -> list[float]:
    """Returns, for one record, all bytes that go over each border in one direction."""
    ends = accumulate(counts[:-1])
    return [
        model.units[end - 1].output_bytes + more for end, more in zip(ends, carried_bytes(model, counts), strict=True)
    ]


def _held_bytes(model: ModelSize, counts: Sequence[int], stages: int, schedule: str) -> list[float]:
    """Returns, for one record, the bytes that each slot keeps until the backward pass of what its parts give to later
    ones besides: copies of what they have received and pass on, and outputs of their own that no unit of theirs keeps
    anyway."""
    found, first = [0.0] * stages, 0
    for part, count in enumerate(counts[:-1]):
        last = first + count - 1
        for each in model.connections:
            is_kept = first <= each.maker and each.keeper is not None and each.keeper <= last
            if each.crosses(last) and not is_kept:
                found[slot_of_part(part, stages, schedule)] += each.bytes
        first += count
    return found


def stage_units(model: ModelSize, counts: Sequence[int], stages: int, schedule: str) -> list[list[UnitSize]]:
    """Returns the units of each slot of a replica."""
    ends = [sum(counts[: part + 1]) for part in range(len(counts))]
    parts = [model.units[end - count : end] for end, count in zip(ends, counts, strict=True)]
    slots: list[list[UnitSize]] = [[] for _ in range(stages)]
    for place, part in enumerate(parts):
        slots[slot_of_part(place, stages, schedule)] += part
    return slots


def in_flight(slot: int, stages: int, schedule: str, microbatches: int) -> int:
    """Returns the most microbatches whose activations a slot keeps at once. Schedules with several parts in each slot
    keep at most all."""
    if schedule == "1F1B":
        return min(microbatches, stages - slot)
    assert schedule in SCHEDULES, schedule
    return microbatches
