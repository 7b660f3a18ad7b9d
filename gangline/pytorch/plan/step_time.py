"""PURE: the time of a training step, predicted from sizes of the model and measured rates of the slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gangline.config.parallelism import STRATEGIES
from gangline.pytorch.plan.memory import owned_ratio
from gangline.pytorch.plan.model_size import ModelSize, UnitSize
from gangline.pytorch.plan.stages import Pipeline, border_bytes, stage_units

GIB = 1024.0**3
# Part of a slot's memory, and bytes, that stay free: for the device's context, libraries and fragmentation.
SPARE_RATIO = 0.1
SPARE_BYTES = 0.5 * GIB
# Exchanges of a step that the computation does not hide: those of the last bucket or block in each direction.
_MESSAGES = {"ddp": 1, "zero1": 2, "zero2": 2, "zero3": 3, "hsdp": 4}
# Both passes over the forward pass, where the backward pass was not measured: it computes about twice as much. With
# recomputation the forward pass runs twice.
_PASSES, _PASSES_WITH_RECOMPUTATION = 3.0, 4.0
# Operations in whose time a slot schedules one pass of a microbatch through one part, beside its messages: measured in
# a pipeline of layers so small that nothing else takes time.
PASS_KERNELS = 150.0


@dataclass(frozen=True, slots=True)
class Place:
    """The slots of a trial, with their memory and speeds."""

    slots: int
    slots_per_machine: int
    memory_bytes: float | None = None  # memory of each slot; None if not known
    slot_flops: float = 10e12  # operations a second of one slot in products of matrices
    inside_rate: float = 16e9  # bytes a second between slots of one machine
    across_rate: float = 1.25e9  # bytes a second between machines
    message_seconds: float = 50e-6  # time of an exchange among all slots beside the time for its bytes
    # Whether ranks sum whole tensors where each needs a part of the sum, as gloo does; NCCL sends each part to its
    # rank. Ranks that do so compute on CPUs: they issue an operation, and exchange a block, only after the one before.
    reduces_whole: bool = False
    kernel_seconds: float = 5e-6  # time that a slot needs to issue an operation, however small its tensors
    memory_rate: float = 1e12  # bytes a second that a slot moves between its memory and its processor
    copy_rate: float = 1e12  # bytes a second that a slot copies into new memory
    # bytes a second of a tensor that one slot sends to all others; None if not known
    broadcast_rate: float | None = None
    # operations a second of one slot in convolutions whose kernels are larger than one point; None means slot_flops
    convolution_flops: float | None = None
    taken_bytes: float = 0.0  # memory of a GPU that other processes use; memory_bytes is without it

    @property
    def machines(self) -> int:
        return -(-self.slots // self.slots_per_machine)

    @property
    def usable_bytes(self) -> float | None:
        if self.memory_bytes is None:
            return None
        return max(0.0, self.memory_bytes * (1 - SPARE_RATIO) - SPARE_BYTES)

    @property
    def hop_seconds(self) -> float:
        """The time that a message to the next slot takes beside that for its bytes. An exchange among all slots makes
        2 (n - 1) such hops, as an all-reduce in a ring does."""
        return self.message_seconds / max(1, 2 * (self.slots - 1))

    def compute_seconds(
        self, flops: float, kernels: float, moved: float, convolved: float = 0.0, streamed: float = 0.0
    ) -> float:
        """Returns the time of so many floating-point operations, issued as so many kernels that move so many bytes of
        parameters and gradients. convolved: as in ModelSize. streamed: bytes that operations other than products read
        and write. A GPU issues kernels while earlier ones run, one after another. On a CPU much of what is streamed is
        in caches, so it does not count."""
        products = (1 - convolved) / self.slot_flops + convolved / (self.convolution_flops or self.slot_flops)
        issue = kernels * self.kernel_seconds
        if self.reduces_whole:
            return flops * products + issue + moved / self.memory_rate
        return max(flops * products + streamed / self.memory_rate, issue, moved / self.memory_rate)

    def rate(self, ranks: int) -> float:
        """Bytes a second among so many ranks that follow one another."""
        return self.inside_rate if ranks <= self.slots_per_machine else self.across_rate


def whole_seconds(name: str, model: ModelSize, place: Place, records: float, shards: int) -> float:
    """Returns the seconds of a step under a strategy that does not cut the model. records: of one slot's batch. shards:
    the slots among which a strategy divides each tensor."""
    passes = _passes(model)
    compute = place.compute_seconds(
        (model.flop_passes or passes) * model.forward_flops * records,
        (model.kernel_passes or passes) * model.forward_kernels,
        moved_bytes(model, model.parameters, 1),
        model.convolved,
        model.streamed_bytes * records,
    )
    if name == "zero1":
        owned = tensors = owned_ratio(model, place.slots)
    else:
        # A part of each tensor, with as many operations.
        owned, tensors = 1 / shards if STRATEGIES[name].family == "sharded" else 1.0, 1.0
    return compute + _update_seconds(model, place, owned, tensors) + _traffic_seconds(name, model, place)


def pipeline_seconds(model: ModelSize, pipeline: Pipeline, place: Place) -> float:
    """Returns the seconds of a step of a pipeline."""
    replicas, is_divided = pipeline.replicas, pipeline.is_divided
    compute = max(stage_seconds(model, pipeline, place)) / (1 - pipeline.bubble)
    # Outputs go to the next stage and their gradients come back.
    rate = place.rate(pipeline.stages)
    sent = 2 * max(border_bytes(model, pipeline)) * pipeline.records * pipeline.parts_per_slot / rate
    # Each microbatch on its way through the stages, there and back.
    sent += 2 * (pipeline.microbatches + pipeline.stages - 1) * pipeline.parts_per_slot * place.hop_seconds
    # One message joins gradients; owners send one for each replica and direction.
    sent += (0 if replicas == 1 else 2 * replicas if is_divided else 1) * place.message_seconds
    largest = max(sum(unit.parameters for unit in own) for own in stage_units(model, pipeline))
    owned = largest / max(1, model.parameters) / (replicas if is_divided else 1)
    gradients = model.gradient * largest
    joined = joined_bytes(gradients, replicas, is_divided=is_divided, reduces_whole=place.reduces_whole)
    return compute + _update_seconds(model, place, owned, owned) + sent + joined / place.rate(place.slots)


def _update_seconds(model: ModelSize, place: Place, owned: float, tensors: float) -> float:
    """Returns the seconds of the optimizer's step. owned, tensors: the parts of all parameters, and of all tensors,
    that a slot steps."""
    return place.compute_seconds(0.0, model.update_kernels * tensors, model.update_bytes * model.parameters * owned)


def _traffic_seconds(name: str, model: ModelSize, place: Place) -> float:
    """Returns the seconds of a step's exchanges."""
    if place.slots == 1:
        return 0.0
    copied = copied_bytes(name, model, place.slots) / place.copy_rate
    return _messages(name, model, place) * place.message_seconds + _bytes_seconds(name, model, place) + copied


def _messages(name: str, model: ModelSize, place: Place) -> int:
    """Returns the exchanges of a step that the computation does not hide. name: of a strategy that does not cut the
    model. On CPUs a divided model waits for each group: it is gathered in one or two passes and its gradients are
    summed once, each time after the ranks have compared which group it is. So the backward pass ends, too. Modules
    outside of blocks stay gathered."""
    if not place.reduces_whole or STRATEGIES[name].family != "sharded":
        return _MESSAGES[name]
    gathered = model.num_groups if name == "zero2" else 2 * model.num_groups - 1
    across = model.num_groups if name == "hsdp" else 0
    return 2 * (gathered + model.num_groups) + 1 + across


def _bytes_seconds(name: str, model: ModelSize, place: Place) -> float:
    """Returns the seconds for the bytes of a step's exchanges."""
    slots = place.slots
    if name == "hsdp":
        own, copies = place.slots_per_machine, slots // place.slots_per_machine
        gradients = model.gradient * model.parameters / own
        inside = sent_bytes("zero3", model, own, reduces_whole=place.reduces_whole) / place.inside_rate
        return inside + 2 * _ring(copies) * gradients / place.across_rate
    rate = place.rate(slots)
    if name == "zero1":
        # After the gradients of ddp, owners send their parameters one after the other: all of them pass the link.
        # Frozen ones are not sent, and a parameter has as many bytes as its gradient.
        broadcast = model.gradient * model.parameters / (place.broadcast_rate or rate)
        return sent_bytes("ddp", model, slots, reduces_whole=place.reduces_whole) / rate + broadcast
    return sent_bytes(name, model, slots, reduces_whole=place.reduces_whole) / rate


def copied_bytes(name: str, model: ModelSize, slots: int) -> float:
    """Returns the bytes that a slot copies for the exchanges of a step. A gathering copies the slot's part into a
    message, receives all parts in one tensor, and copies them out of it. A sum of gradients copies them into a message
    and receives the slot's part. With zero1 parameters are received in new memory, owner by owner, while all wait."""
    part = 1 / slots
    gathering, summing = model.sent * (2 + part), model.gradient * (1 + part)
    per_parameter = {
        "zero1": model.gradient,
        "zero2": gathering + summing,
        "zero3": 2 * gathering + summing,
        "hsdp": 2 * gathering + summing,
    }
    return model.parameters * per_parameter.get(name, 0.0)


def sent_bytes(name: str, model: ModelSize, slots: int, *, reduces_whole: bool) -> float:
    """Returns the bytes of parameters and gradients that a slot sends in a step, as a mean over the slots. name: of a
    strategy that does not cut the model, without zero1 and hsdp. reduces_whole: as in Place.

    An all-reduce sends each byte 2 (n - 1) / n times; the sum of parts and a gathering half as often. zero3 gathers
    once more for the backward pass; modules outside of blocks stay gathered, so it sends that much less."""
    gathered, gradient = model.sent, model.gradient
    per_parameter = {
        "none": 0.0,
        "ddp": 2 * gradient,
        "zero2": gathered + gradient * (2 if reduces_whole else 1),
        "zero3": 2 * gathered + gradient * (2 if reduces_whole else 1),
    }
    return _ring(slots) * model.parameters * per_parameter[name]


def joined_bytes(gradients: float, replicas: int, *, is_divided: bool, reduces_whole: bool) -> float:
    """Returns the bytes that a slot of a pipeline sends to the same stage of other replicas in a step, as a mean over
    the replicas. gradients: bytes of the stage's gradients. is_divided: as in Pipeline; each gradient goes to its
    owner then, and the new parameter to all. gloo sums the parts of a tensor on all ranks and then moves them to the
    owner."""
    to_owner = 1 + 1 / replicas if is_divided and reduces_whole else 1.0
    return _ring(replicas) * gradients * (to_owner + 1)


def moved_bytes(model: ModelSize, parameters: float, calls: int) -> float:
    """Returns the bytes of so many parameters, and of their gradients, that a step moves between memory and processor.
    calls: of the model. Each forward and backward pass reads the parameters, and the backward pass writes gradients.
    Those of a later call are added to the earlier ones: two are read, one is written."""
    each = (_passes(model) - 1) * model.computed + model.gradient
    return parameters * (calls * each + (calls - 1) * 3 * model.gradient)


def _passes(model: ModelSize) -> float:
    return _PASSES if model.recomputation == "none" else _PASSES_WITH_RECOMPUTATION


def _ring(ranks: int) -> float:
    return (ranks - 1) / ranks


def stage_seconds(model: ModelSize, pipeline: Pipeline, place: Place) -> list[float]:
    """Returns the seconds in which each slot of a replica computes in a step, without waiting. Unknown operations of
    units are spread as their parameters. Each microbatch issues the kernels of a whole batch, of which units have equal
    numbers, and is scheduled in both passes."""
    known = sum(unit.forward_flops for unit in model.units)
    numel = max(1, sum(unit.parameters for unit in model.units))

    def flops(units: Sequence[UnitSize]) -> float:
        if known:
            return sum(unit.forward_flops for unit in units)
        return model.forward_flops * sum(unit.parameters for unit in units) / numel

    def kernels(units: Sequence[UnitSize]) -> float:
        return model.forward_kernels * len(units) / max(1, len(model.units))

    found = []
    for own in stage_units(model, pipeline):
        moved = moved_bytes(model, sum(unit.parameters for unit in own), pipeline.microbatches)
        computed = _both_passes(model, own, flops, model.flop_passes)
        issued = _both_passes(model, own, kernels, model.kernel_passes)
        issued += 2 * PASS_KERNELS * pipeline.parts_per_slot
        # Other operations are spread as the products.
        streamed = model.streamed_bytes * flops(own) / max(1e-30, flops(model.units))
        seconds = place.compute_seconds(
            computed * pipeline.records,
            issued * pipeline.microbatches,
            moved,
            model.convolved,
            streamed * pipeline.records,
        )
        found.append(seconds)
    return found


def _both_passes(
    model: ModelSize, own: Sequence[UnitSize], count: Callable[[Sequence[UnitSize]], float], passes: float
) -> float:
    """Returns what a stage's units count in the forward and the backward pass. count: of the forward pass of units.
    passes: both passes of the whole model over its forward pass; 0 where they were not measured. Units that no backward
    pass reaches count once, so the others have the rest."""
    reached = [unit for unit in model.units if unit.has_backward]
    part = count(reached) / max(1e-30, count(model.units))
    of_reached = ((passes or _passes(model)) - (1 - part)) / max(1e-30, part) if part else 1.0
    own_reached = count([unit for unit in own if unit.has_backward])
    return count(own) + (of_reached - 1) * own_reached
