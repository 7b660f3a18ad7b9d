"""PURE: the bytes that each slot of a pipeline keeps, and those that go over the borders between its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gangline.config.pipeline import SCHEDULES, bubble_ratio, slot_of_part
from gangline.pytorch.parallel.shared.even_division import largest_share
from gangline.pytorch.plan.memory import MESSAGE_BYTES, Memory, step_bytes
from gangline.pytorch.plan.model_size import ModelSize, UnitSize


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a model and its batch are cut."""

    counts: tuple[int, ...]  # number of units of each part; a slot has one or more parts
    stages: int
    schedule: str
    microbatches: int
    records: float  # records of a replica's batch, which is cut into microbatches
    replicas: int = 1
    # whether each parameter has one owner among the replicas, which keeps its gradient and its state (`zero2`)
    is_divided: bool = False

    @property
    def parts_per_slot(self) -> int:
        return SCHEDULES[self.schedule].parts

    @property
    def bubble(self) -> float:
        return bubble_ratio(self.stages, self.microbatches, self.schedule)

    @property
    def ends(self) -> list[int]:
        """The number of units up to the end of each part."""
        return list(accumulate(self.counts))

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first unit of each part, and the one behind its last."""
        return [(end - count, end) for end, count in zip(self.ends, self.counts, strict=True)]

    def slot_of(self, part: int) -> int:
        return slot_of_part(part, self.stages, self.schedule)

    def in_flight(self, slot: int) -> int:
        """Returns the most microbatches whose activations a slot keeps at once. Schedules with several parts in each
        slot keep at most all."""
        return min(self.microbatches, self.stages - slot) if self.schedule == "1F1B" else self.microbatches


def stage_memory(model: ModelSize, pipeline: Pipeline) -> list[Memory]:
    """Returns the bytes of each slot of a replica; of the replica that owns most where they divide parameters."""
    found = []
    received, held = _received_bytes(model, pipeline), _held_bytes(model, pipeline)
    records = pipeline.records
    for slot, own in enumerate(stage_units(model, pipeline)):
        numel = float(sum(unit.parameters for unit in own))
        saved = sum(unit.activation_bytes for unit in own)
        flying = pipeline.in_flight(slot)
        kept_bytes = saved * (flying - 1) + _pass_bytes(own) + held[slot] * flying
        # A schedule makes each copy once for all microbatches.
        copied_bytes = sum(unit.copied_bytes for unit in own)
        # Each rank has the whole batch, of which microbatches are views.
        activations = (model.batch_bytes + kept_bytes / pipeline.microbatches) * records + copied_bytes
        kept = _largest_share(own, pipeline.replicas) if pipeline.is_divided else numel
        # Gradients are whole until the replicas join them; the buffers stay from step to step.
        buffers, late = received[slot] * records, model.gradient * (numel - kept)
        step = step_bytes(model, kept) - late
        if pipeline.replicas > 1:
            # Gradients are joined in messages before the step.
            step = max(step, min(model.gradient * kept, MESSAGE_BYTES))
        activations = max(activations, step - buffers)
        sizes = (model.stored * numel, model.gradient * kept, model.optimizer * kept)
        found.append(Memory(*sizes, buffers + late, activations))
    return found


def stage_units(model: ModelSize, pipeline: Pipeline) -> list[list[UnitSize]]:
    """Returns the units of each slot of a replica."""
    slots: list[list[UnitSize]] = [[] for _ in range(pipeline.stages)]
    for part, (first, end) in enumerate(pipeline.spans):
        slots[pipeline.slot_of(part)] += model.units[first:end]
    return slots


def carried_bytes(model: ModelSize, pipeline: Pipeline) -> list[float]:
    """Returns, for one record, the bytes that go over each border besides the output of the unit before it."""
    return [sum((each.bytes for each in model.connections if each.crosses(end - 1)), 0.0) for end in pipeline.ends[:-1]]


def border_bytes(model: ModelSize, pipeline: Pipeline) -> list[float]:
    """Returns, for one record, all bytes that go over each border in one direction."""
    carried = carried_bytes(model, pipeline)
    return [model.units[end - 1].output_bytes + more for end, more in zip(pipeline.ends[:-1], carried, strict=True)]


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


def _received_bytes(model: ModelSize, pipeline: Pipeline) -> list[float]:
    """Returns, for one record, the bytes of the buffers for what each slot receives: outputs of the part before it and
    gradients from the part after it, with all that is carried along. torch keeps one for each microbatch of a batch."""
    found = [0.0] * pipeline.stages
    for border, sent in enumerate(border_bytes(model, pipeline), 1):
        sender, receiver = pipeline.slot_of(border - 1), pipeline.slot_of(border)
        if sender != receiver:
            found[sender] += sent
            found[receiver] += sent
    return found


def _held_bytes(model: ModelSize, pipeline: Pipeline) -> list[float]:
    """Returns, for one record, the bytes that each slot keeps until the backward pass besides what its units keep: what
    its parts give to later ones, received copies and own outputs, unless a unit of theirs keeps it anyway. What the
    first unit of a part keeps of its input is in the buffer for it, or on this slot already, so that counts less."""
    found = [0.0] * pipeline.stages
    for part, (first, end) in enumerate(pipeline.spans[:-1]):
        last, slot = end - 1, pipeline.slot_of(part)
        found[slot] += model.units[last].passed_bytes
        found[pipeline.slot_of(part + 1)] -= model.units[end].taken_bytes
        for each in model.connections:
            is_kept = first <= each.maker and each.keeper is not None and each.keeper <= last
            if each.crosses(last) and not is_kept:
                found[slot] += each.bytes
    return found
