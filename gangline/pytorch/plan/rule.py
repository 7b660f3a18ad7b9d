"""PURE: lists every way to spread a trial over its slots, and chooses the fastest one that fits.

The same sizes give the same table and the same choice. Among candidates of about the same time the first one of the
table is chosen, the simplest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from gangline.config.elastic import slots_conflict
from gangline.config.parallelism import STRATEGIES, recomputation_conflict
from gangline.config.pipeline import (
    DEFAULT_SCHEDULE,
    SCHEDULES,
    batch_conflict,
    choose_microbatches,
    microbatch_conflict,
)
from gangline.config.strategy_choice import first_of_fastest
from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.staged.partition import partition
from gangline.pytorch.plan.memory import Memory, slot_memory
from gangline.pytorch.plan.model_size import ModelSize
from gangline.pytorch.plan.stages import Pipeline, stage_memory
from gangline.pytorch.plan.step_time import GIB, Place, pipeline_seconds, whole_seconds

# The largest number of slots that the search for one that fits tries.
_MOST_SLOTS = 4096
# Why a trial gets no pipeline; after the word.
SEVERAL_MODELS = "cuts one model, and the trial wraps several"


@dataclass(frozen=True, slots=True)
class Work:
    """A trial and its configuration, as far as they decide which strategies fit."""

    # records of the global batch; None if each slot has the batch that was measured, whatever their number
    records: int | None = None
    several_models: bool = False  # whether the trial wraps more than one model
    compresses: bool = False  # whether gradients are compressed
    stages: int | None = None  # stages of pipelines, as the configuration sets them for `auto`; None leaves them open
    microbatches: int | None = None  # microbatches of pipelines; None leaves them open
    schedule: str = DEFAULT_SCHEDULE  # schedule of pipelines
    replicas: str | None = None  # strategy of a pipeline's replicas; None leaves it open
    refused: Mapping[str, str] = field(default_factory=dict)  # reason of each strategy that refuses the trial's code


@dataclass(frozen=True, slots=True)
class Candidate:
    """One row of the table."""

    strategy: str
    options: tuple[tuple[str, int | str], ...] = ()
    memory: Memory | None = None  # memory of the slot that needs most; None where the strategy cannot run
    seconds: float = 0.0  # expected time of a step, with communication not hidden
    refusal: str = ""  # why the row is not chosen; empty for one that fits
    bubble: float = 0.0
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
    taken = f" (without {size_text(place.taken_bytes)} that other processes use)" if place.taken_bytes else ""
    return invalid(
        "parallelism.auto",
        f"parallelism: no strategy fits on {place.slots} slots of {size_text(place.memory_bytes)}{taken}, of which "
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
    return Candidate(name, (), memory, whole_seconds(name, model, place, records, shards))


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
    counts = tuple(partition(costs, parts))
    pipeline = Pipeline(counts, stages, schedule, microbatches, records, replicas, is_divided)
    return Candidate(
        "pipeline",
        (*options, ("microbatches", microbatches), *(("replicas", kind) for _ in range(is_divided))),
        max(stage_memory(model, pipeline), key=lambda memory: memory.total),
        pipeline_seconds(model, pipeline, place),
        bubble=pipeline.bubble,
    )
