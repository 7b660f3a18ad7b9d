"""PURE: the bytes that a slot needs under each strategy, computed from sizes of the model.

The formulas count what torch really keeps: a stored parameter, its gradient, the optimizer's state, and what a step
adds for a moment. A test compares them with worked examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gangline.config.parallelism import STRATEGIES
from gangline.config.pipeline import SCHEDULES, slot_of_part


@dataclass(frozen=True, slots=True)
class UnitSize:
    """A unit of a model's chain. parameters: their number. activation_bytes: kept from its forward to its backward
    pass, for one record. output_bytes: what the next unit gets, for one record. forward_flops: for one record."""

    name: str
    parameters: int
    activation_bytes: float = 0.0
    output_bytes: float = 0.0
    forward_flops: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelSize:
    """parameters, largest_block: numbers of parameters, of the model and of the largest group that is gathered at once.

    stored, gradient, optimizer, computed: bytes for a parameter: as stored, of its gradient, of the optimizer's state,
    and of a gathered copy. activation_bytes: for one record, over the whole model. units: the chain that a pipeline can
    cut; empty for a model that it cannot cut. forward_flops: for one record.
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

    @property
    def kept(self) -> float:
        """Bytes for a parameter that is whole on a slot."""
        return self.stored + self.gradient + self.optimizer


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one slot. transient: beside the others, for a part of each step."""

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
    activations = model.activation_bytes * records
    block = float(model.largest_block)
    if family != "sharded":
        # DDP's buckets are the gradients themselves (gradient_as_bucket_view).
        state = divided if strategy == "zero1" else whole
        return Memory(model.stored * whole, model.gradient * whole, model.optimizer * state, 0.0, activations)
    # zero2 keeps the gathered parameters from forward to backward; the others two groups of them.
    gathered = whole if strategy == "zero2" else min(2 * block, whole)
    # A group's gradients are whole before they are reduced. They come when the gathered parameters are all still there.
    transient = model.computed * gathered + model.gradient * block
    return Memory(model.stored * divided, model.gradient * divided, model.optimizer * divided, transient, activations)


def stage_memory(
    model: ModelSize, counts: Sequence[int], stages: int, schedule: str, *, microbatches: int, records: float
) -> list[Memory]:
    """Returns the bytes of each slot of a pipeline's replica. counts: the units of each part. records: of a replica's
    batch."""
    found = []
    for slot, own in enumerate(stage_units(model, counts, stages, schedule)):
        numel = float(sum(unit.parameters for unit in own))
        kept = sum(unit.activation_bytes for unit in own)
        flying = in_flight(slot, stages, schedule, microbatches)
        activations = kept * records / microbatches * flying
        found.append(Memory(model.stored * numel, model.gradient * numel, model.optimizer * numel, 0.0, activations))
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
