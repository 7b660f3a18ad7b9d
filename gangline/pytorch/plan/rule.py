"""PURE: lists every way to spread a trial over its slots, and chooses the fastest one that fits.

The same sizes give the same table and the same choice. Among candidates of about the same time the first one of the
table is chosen, the simplest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gangline.config.elastic import slots_conflict
from gangline.config.parallelism import STRATEGIES, recomputation_conflict
from gangline.config.pipeline import (
    DEFAULT_SCHEDULE,
    SCHEDULES,
    batch_conflict,
    bubble_ratio,
    choose_microbatches,
    microbatch_conflict,
)
from gangline.config.strategy_choice import first_of_fastest
from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.staged.partition import imbalance_ratio, partition
from gangline.pytorch.plan.memory import (
    Memory,
    ModelSize,
    UnitSize,
    border_bytes,
    owned_ratio,
    slot_memory,
    stage_memory,
    stage_units,
)

GIB = 1024.0**3
# Part of a slot's memory, and bytes, that stay free: for the device's context, libraries and fragmentation.
SPARE_RATIO = 0.1
SPARE_BYTES = 0.5 * GIB
# The largest number of slots that the search for one that fits tries.
_MOST_SLOTS = 4096
# Exchanges of a step that the computation does not hide: those of the last bucket or block in each direction.
_MESSAGES = {"ddp": 1, "zero1": 2, "zero2": 2, "zero3": 3, "hsdp": 4}
# Both passes over the forward pass, where the backward pass was not measured: it computes about twice as much. With
# recomputation the forward pass runs twice.
_PASSES, _PASSES_WITH_RECOMPUTATION = 3.0, 4.0


# Why a trial gets no pipeline; after the word.
SEVERAL_MODELS = "cuts one model, and the trial wraps several"


@dataclass(frozen=True, slots=True)
class Place:
    """The slots of a trial. memory_bytes: of each slot; None where it is not known. slot_flops: operations a second
    of one slot. inside_rate, across_rate: bytes a second between slots of one machine, and between machines.
    message_seconds: the time that an exchange among all slots takes beside that for its bytes. reduces_whole:
    whether ranks sum whole tensors where each needs a part of the sum, as gloo does; NCCL sends each part to its
    rank. Ranks that do so compute on CPUs: they issue an operation, and exchange a block, only after the one
    before. kernel_seconds: the time that a slot needs to issue an operation, however small its tensors.
    memory_rate: bytes a second that a slot moves between its memory and its processor. copy_rate: bytes a second
    that it copies into new memory. broadcast_rate: bytes a second of a tensor that one slot sends to all others; None
    where it is not known."""

    slots: int
    slots_per_machine: int
    memory_bytes: float | None = None
    slot_flops: float = 10e12
    inside_rate: float = 16e9
    across_rate: float = 1.25e9
    message_seconds: float = 50e-6
    reduces_whole: bool = False
    kernel_seconds: float = 5e-6
    memory_rate: float = 1e12
    copy_rate: float = 1e12
    broadcast_rate: float | None = None

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

    def compute_seconds(self, flops: float, kernels: float, moved: float) -> float:
        """Returns the time of so many floating-point operations, issued as so many kernels that move so many bytes of
        parameters and gradients. A GPU does these at the same time."""
        parts = flops / self.slot_flops, kernels * self.kernel_seconds, moved / self.memory_rate
        return sum(parts) if self.reduces_whole else max(parts)

    def rate(self, ranks: int) -> float:
        """Bytes a second among so many ranks that follow one another."""
        return self.inside_rate if ranks <= self.slots_per_machine else self.across_rate


@dataclass(frozen=True, slots=True)
class Work:
    """records: of the global batch; None where each slot has the batch that was measured, whatever their number.
    several_models: whether the trial wraps more than one model. compresses: whether gradients are compressed.

    stages, microbatches, schedule, replicas: of pipelines, as the configuration sets them for `auto`; None leaves them
    open. refused: the reason of each strategy that refuses the trial's code."""

    records: int | None = None
    several_models: bool = False
    compresses: bool = False
    stages: int | None = None
    microbatches: int | None = None
    schedule: str = DEFAULT_SCHEDULE
    replicas: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One row of the table. memory: of the slot that needs most; None where the strategy cannot run. seconds: the
    expected time of a step, communication not hidden. refusal: why it is not chosen; empty for one that fits."""

    strategy: str
    options: tuple[tuple[str, int | str], ...] = ()
    memory: Memory | None = None
    seconds: float = 0.0
    refusal: str = ""
    bubble: float = 0.0
    imbalance: float = 1.0
    recomputation: str = "none"

    @property
    def name(self) -> str:
        words = " ".join(f"{key} {value}" for key, value in self._words)
        return f"{self.strategy} ({words})" if words else self.strategy

    @property
    def _words(self) -> tuple[tuple[str, int | str], ...]:
        return self.options if self.recomputation == "none" else (*self.options, ("recompute", self.recomputation))


def list_candidates(model: ModelSize, work: Work, place: Place) -> list[Candidate]:
    """Returns all strategies in the order of the table. A pipeline has a row for each possible number of stages, and
    another one with `replicas: zero2` where there are several replicas."""
    found: list[Candidate] = []
    for name, row in STRATEGIES.items():
        if row.family == "any":
            continue
        if row.family == "staged":
            found += _pipelines(model, work, place)
            continue
        found.append(_whole(name, model, work, place))
    found = [replace(candidate, recomputation=model.recomputation) for candidate in found]
    return [_judge(candidate, place) for candidate in found]


def choose(candidates: list[Candidate]) -> Candidate | None:
    """Returns the first candidate that fits and is about as fast as the fastest one; None where none fits."""
    fitting = [candidate for candidate in candidates if not candidate.refusal]
    return first_of_fastest(fitting, lambda candidate: candidate.seconds)


def nothing_fits(model: ModelSize, work: Work, place: Place, candidates: list[Candidate]) -> GanglineError:
    """Returns the error for a table without a candidate that fits, with the smallest number of slots that would do."""
    sizes = [(candidate.memory.total, candidate.name) for candidate in candidates if candidate.memory is not None]
    if not sizes or place.usable_bytes is None or place.memory_bytes is None:
        names_by_refusal: dict[str, list[str]] = {}
        for candidate in candidates:
            names_by_refusal.setdefault(candidate.refusal, []).append(candidate.name)
        reasons = "; ".join(f"{', '.join(names)}: {refusal}" for refusal, names in names_by_refusal.items())
        return invalid("parallelism.auto", f"parallelism: no strategy can run on {place.slots} slots: {reasons}")
    least, name = min(sizes)
    more = fewest_slots(model, work, place)
    way_out = (
        f"{more} such slots would do"
        if more is not None
        else "more slots do not help; use a smaller batch, or slots with more memory"
    )
    return invalid(
        "parallelism.auto",
        f"parallelism: no strategy fits on {place.slots} slots of {size_text(place.memory_bytes)}, of which "
        f"{size_text(place.usable_bytes)} are usable: {name} needs {size_text(least)}; {way_out}",
    )


def fewest_slots(model: ModelSize, work: Work, place: Place) -> int | None:
    """Returns the smallest number of slots above those of the place on which some strategy fits; None for none."""
    most = min(_MOST_SLOTS, work.records or _MOST_SLOTS)
    for slots in range(place.slots + 1, most + 1):
        more = replace(place, slots=slots)
        if choose([_judge(candidate, more) for candidate in _dividing(model, work, more)]) is not None:
            return slots
    return None


def size_text(count: float) -> str:
    """Returns a number of bytes as text for people."""
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / GIB * 1024:.2f} MiB"


def _dividing(model: ModelSize, work: Work, place: Place) -> Iterator[Candidate]:
    """Yields the strategies that need the fewest bytes."""
    for name in ("zero1", "zero2", "zero3"):
        yield _whole(name, model, work, place)
    yield from _pipelines(model, work, place)


def _judge(candidate: Candidate, place: Place) -> Candidate:
    usable = place.usable_bytes
    if candidate.refusal or candidate.memory is None or usable is None or candidate.memory.total <= usable:
        return candidate
    return replace(
        candidate, refusal=f"needs {size_text(candidate.memory.total)}, above the usable {size_text(usable)}"
    )


def _whole(name: str, model: ModelSize, work: Work, place: Place) -> Candidate:
    slots, row = place.slots, STRATEGIES[name]
    refusal = slots_conflict(name, slots, "the slots are")
    if row.family == "replicated" and slots == 1:
        refusal = "has nothing to exchange on one slot; use none"
    if name == "hsdp" and refusal is None:
        if place.machines < 2:
            refusal = "makes copies across machines, and the slots are of one machine"
        elif slots % place.slots_per_machine or place.slots_per_machine < 2:
            refusal = "needs machines with equally many slots, at least 2"
    if work.compresses and row.family == "sharded":
        refusal = "cannot compress gradients (optimizations.gradient_compression)"
    records = _records(work, slots)
    if refusal is None and work.records is not None and records < 1:
        refusal = f"a batch of {work.records} records is smaller than {slots} slots"
    refusal = refusal or work.refused.get(name)
    if refusal is not None:
        return Candidate(name, refusal=refusal)
    shards = place.slots_per_machine if name == "hsdp" else slots
    memory = slot_memory(model, name, slots, records, shards)
    passes = _passes(model)
    compute = place.compute_seconds(
        (model.flop_passes or passes) * model.forward_flops * records,
        (model.kernel_passes or passes) * model.forward_kernels,
        moved_bytes(model, model.parameters, 1),
    )
    if name == "zero1":
        owned = tensors = owned_ratio(model, slots)
    else:
        # A part of each tensor, with as many operations.
        owned, tensors = 1 / shards if row.family == "sharded" else 1.0, 1.0
    compute += _update_seconds(model, place, owned, tensors)
    return Candidate(name, (), memory, compute + _traffic_seconds(name, model, place))


def _update_seconds(model: ModelSize, place: Place, owned: float, tensors: float) -> float:
    """Returns the seconds of the optimizer's step. owned, tensors: the parts of all parameters, and of all tensors,
    that a slot steps."""
    return place.compute_seconds(0.0, model.update_kernels * tensors, model.update_bytes * model.parameters * owned)


def _traffic_seconds(name: str, model: ModelSize, place: Place) -> float:
    """Returns the seconds of a step's exchanges."""
    if place.slots == 1:
        return 0.0
    copied = copied_bytes(name, model, place.slots) / place.copy_rate
    return messages(name, model, place) * place.message_seconds + _bytes_seconds(name, model, place) + copied


def messages(name: str, model: ModelSize, place: Place) -> int:
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
        # The owners of parameters send one after the other, so all parameters pass the link.
        broadcast = model.gradient * model.parameters / (place.broadcast_rate or rate)
        return sent_bytes("ddp", model, slots, reduces_whole=place.reduces_whole) / rate + broadcast
    return sent_bytes(name, model, slots, reduces_whole=place.reduces_whole) / rate


def copied_bytes(name: str, model: ModelSize, slots: int) -> float:
    """Returns the bytes that a slot copies for the exchanges of a step. A gathering copies the slot's part into a
    message, receives all parts in one tensor, and copies them out of it. A sum of gradients copies them into a message
    and receives the slot's part. With zero1 a slot receives the parameters of the other owners in new memory."""
    part = 1 / slots
    gathering, summing = model.computed * (2 + part), model.gradient * (1 + part)
    per_parameter = {
        "zero1": model.gradient * (1 - part),
        "zero2": gathering + summing,
        "zero3": 2 * gathering + summing,
        "hsdp": 2 * gathering + summing,
    }
    return model.parameters * per_parameter.get(name, 0.0)


def sent_bytes(name: str, model: ModelSize, slots: int, *, reduces_whole: bool) -> float:
    """Returns the bytes of parameters and gradients that a slot sends in a step, as a mean over the slots. name: of a
    strategy that does not cut the model, without hsdp. reduces_whole: as in Place.

    An all-reduce sends each byte 2 (n - 1) / n times; the sum of parts, a gathering and a broadcast half as often.
    zero1 averages all gradients as ddp does, and then broadcasts the new parameters. zero3 gathers once more for the
    backward pass; modules outside of blocks stay gathered, so it sends that much less."""
    gathered, gradient = model.computed, model.gradient
    per_parameter = {
        "none": 0.0,
        "ddp": 2 * gradient,
        # Frozen parameters are not sent, and a parameter has as many bytes as its gradient.
        "zero1": 2 * gradient + gradient,
        "zero2": gathered + gradient * (2 if reduces_whole else 1),
        "zero3": 2 * gathered + gradient * (2 if reduces_whole else 1),
    }
    return _ring(slots) * model.parameters * per_parameter[name]


def joined_bytes(gradients: float, replicas: int, *, is_divided: bool, reduces_whole: bool) -> float:
    """Returns the bytes that a slot of a pipeline sends to the same stage of other replicas in a step, as a mean over
    the replicas. gradients: bytes of the stage's gradients. is_divided: as in stage_memory; each gradient goes to its
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


def _records(work: Work, replicas: int) -> int:
    return 1 if work.records is None else work.records // replicas


def _pipelines(model: ModelSize, work: Work, place: Place) -> list[Candidate]:
    refusal = ""
    if place.slots < STRATEGIES["pipeline"].fewest_slots:
        refusal = "needs at least 2 slots"
    elif work.several_models:
        refusal = SEVERAL_MODELS
    elif not model.units:
        refusal = "cannot cut the model: it has no list of at least two modules"
    elif work.compresses:
        refusal = "cannot compress gradients (optimizations.gradient_compression)"
    else:
        refusal = work.refused.get("pipeline", "")
    if refusal:
        return [Candidate("pipeline", refusal=refusal)]
    if recomputation_conflict(model.recomputation, "pipeline", work.schedule) is not None:
        return [Candidate("pipeline", refusal=f"{work.schedule} cannot recompute activations")]
    divisors = [stages for stages in range(2, place.slots + 1) if place.slots % stages == 0]
    if work.stages is not None and work.stages not in divisors:
        text = f"the {place.slots} slots are no multiple of the {work.stages} stages that parallelism sets"
        return [Candidate("pipeline", (("stages", work.stages),), refusal=text)]
    found = []
    for stages in divisors:
        if work.stages not in (None, stages):
            continue
        rows = [_pipeline(model, work, place, stages, kind) for kind in _kinds_of_replicas(work, place.slots // stages)]
        # What refuses the stages does so for all kinds of replicas.
        found += rows[:1] if rows[0].memory is None else rows
    return found


def _kinds_of_replicas(work: Work, replicas: int) -> tuple[str, ...]:
    """Returns how the replicas of a pipeline may keep gradients and state. One replica has nothing to divide."""
    if replicas == 1:
        return ("ddp",)
    return STRATEGIES["pipeline"].combines_with if work.replicas is None else (work.replicas,)


def _pipeline(model: ModelSize, work: Work, place: Place, stages: int, kind: str) -> Candidate:
    """kind: of replicas, as in the option `replicas`."""
    schedule, is_divided = work.schedule, kind == "zero2"
    options: tuple[tuple[str, int | str], ...] = (("stages", stages),)
    parts, replicas = stages * SCHEDULES[schedule].parts, place.slots // stages
    if parts > len(model.units):
        return Candidate("pipeline", options, refusal=f"has {parts} parts, and the model {len(model.units)} units")
    # Where the batch grows with the slots, a replica has the records of all its slots.
    records = stages if work.records is None else _records(work, replicas)
    if records < 1:
        return Candidate("pipeline", options, refusal=f"a batch of {work.records} records is too small")
    if work.microbatches is not None:
        conflict = batch_conflict(records, work.microbatches, stages, schedule)
        conflict = conflict or microbatch_conflict(work.microbatches, stages, schedule)
        if conflict is not None and work.records is not None:
            return Candidate("pipeline", options, refusal=conflict)
    microbatches = work.microbatches or choose_microbatches(records, stages, schedule)
    if work.microbatches is None and microbatch_conflict(microbatches, stages, schedule) is not None:
        text = f"a replica's {records} records cannot be cut into the {stages} microbatches that {schedule} needs"
        return Candidate("pipeline", options, refusal=text)
    costs = [unit.parameters for unit in model.units]
    counts = partition(costs, parts)
    memories = stage_memory(
        model,
        counts,
        stages,
        schedule,
        microbatches=microbatches,
        records=records,
        replicas=replicas,
        is_divided=is_divided,
    )
    bubble = bubble_ratio(stages, microbatches, schedule)
    imbalance = imbalance_ratio(costs, counts)
    slowest = max(
        stage_seconds(model, counts, stages, schedule, records=records, place=place, microbatches=microbatches)
    )
    compute = slowest / (1 - bubble)
    # Outputs go to the next stage and their gradients come back.
    border = max(border_bytes(model, counts))
    sent = 2 * border * records * SCHEDULES[schedule].parts / place.rate(stages)
    # Each microbatch on its way through the stages, there and back.
    sent += 2 * (microbatches + stages - 1) * SCHEDULES[schedule].parts * place.hop_seconds
    # One message joins gradients; owners send one for each replica and direction.
    sent += (0 if replicas == 1 else 2 * replicas if is_divided else 1) * place.message_seconds
    largest = max(sum(unit.parameters for unit in own) for own in stage_units(model, counts, stages, schedule))
    owned = largest / max(1, model.parameters) / (replicas if is_divided else 1)
    joined = joined_bytes(
        model.gradient * largest, replicas, is_divided=is_divided, reduces_whole=place.reduces_whole
    ) / place.rate(place.slots)
    return Candidate(
        "pipeline",
        (*options, ("microbatches", microbatches), *(("replicas", kind) for _ in range(is_divided))),
        max(memories, key=lambda memory: memory.total),
        compute + _update_seconds(model, place, owned, owned) + sent + joined,
        bubble=bubble,
        imbalance=imbalance,
    )


def stage_seconds(
    model: ModelSize,
    counts: Sequence[int],
    stages: int,
    schedule: str,
    *,
    records: float,
    place: Place,
    microbatches: int,
) -> list[float]:
    """Returns the seconds in which each slot of a replica computes in a step, without waiting. records: of the
    replica's batch. Unknown operations of units are spread as their parameters. Each microbatch issues the kernels of a
    whole batch; units have equal numbers of them."""
    known = sum(unit.forward_flops for unit in model.units)
    numel = max(1, sum(unit.parameters for unit in model.units))

    def flops(units: Sequence[UnitSize]) -> float:
        if known:
            return sum(unit.forward_flops for unit in units)
        return model.forward_flops * sum(unit.parameters for unit in units) / numel

    def kernels(units: Sequence[UnitSize]) -> float:
        return model.forward_kernels * len(units) / max(1, len(model.units))

    found = []
    for own in stage_units(model, counts, stages, schedule):
        moved = moved_bytes(model, sum(unit.parameters for unit in own), microbatches)
        computed = _both_passes(model, own, flops, model.flop_passes)
        issued = _both_passes(model, own, kernels, model.kernel_passes)
        found.append(place.compute_seconds(computed * records, issued * microbatches, moved))
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
