"""Makes the plan of a measured trial as plain values, which the command prints as text or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gangline.config.elastic import slots_conflict
from gangline.config.parallelism import Parallelism
from gangline.config.pipeline import DEFAULT_SCHEDULE, choose_microbatches
from gangline.errors import GanglineError
from gangline.pytorch.parallel.staged.partition import imbalance_ratio
from gangline.pytorch.parallel.staged.unit import divide_units
from gangline.pytorch.plan.decision import bytes_by_purpose, decide, explain_failure, row_of
from gangline.pytorch.plan.measure import Measured
from gangline.pytorch.plan.rule import SEVERAL_MODELS, Candidate, Work
from gangline.pytorch.plan.stages import Pipeline, carried_bytes, stage_memory
from gangline.pytorch.plan.step_time import Place, stage_seconds

# Sizes of a model that the plan does not show.
_LONG = ("units", "moments", "tensors", "connections")


def make_plan(measured: Sequence[Measured], work: Work, place: Place, section: Parallelism) -> dict[str, Any]:
    """Returns the plan. measured: the trial for each kind of recomputation. section: the configured `parallelism`; a
    pipeline takes its options."""
    first, sizes = measured[0], [each.size for each in measured]
    decision = decide(sizes, work, place)
    is_judged = place.memory_bytes is not None
    chosen = decision.chosen if is_judged else None
    pipeline = _pipeline(measured, work, place, section, chosen)
    problem = _configured_problem(decision.candidates, pipeline, place, section)
    if problem is None and is_judged and chosen is None:
        problem = explain_failure(decision, sizes, work, place).message
    return {
        "model": first.name,
        "optimizer": first.optimizer,
        "size": {key: value for key, value in asdict(first.size).items() if key not in _LONG},
        "place": {**asdict(place), "machines": place.machines, "usable_bytes": place.usable_bytes},
        "global_batch_size": work.records,
        "pipeline": pipeline,
        "candidates": [{**asdict(row_of(each)), "bubble": each.bubble} for each in decision.candidates],
        "choice": chosen.name if chosen else None,
        "problem": problem,
        "notes": list(first.notes),
    }


def _configured_problem(
    candidates: Sequence[Candidate], pipeline: Mapping[str, Any], place: Place, section: Parallelism
) -> str | None:
    """Returns why the strategy that the configuration names cannot run, whatever the memory; None where it can, and for
    `auto`."""
    name = section.strategy
    if name == "pipeline":
        refusal = pipeline.get("refusal")
    else:
        rows = [each for each in candidates if each.strategy == name]
        # On one slot the default, ddp, is the same as none.
        can_run = place.slots == 1 or not rows or any(each.memory is not None for each in rows)
        refusal = None if can_run else rows[0].refusal
    return None if refusal is None else f"parallelism: the configured strategy {name} cannot run: {refusal}"


def _pipeline(
    kinds: Sequence[Measured], work: Work, place: Place, section: Parallelism, chosen: Candidate | None
) -> dict[str, Any]:
    """Returns the stages as configured, or of the chosen pipeline, or with the most stages that the model and the slots
    allow; or why there are none."""
    is_configured = section.strategy == "pipeline"
    chosen = chosen if chosen is not None and chosen.strategy == "pipeline" and not is_configured else None
    # The first kind is the configured one.
    measured = next((each for each in kinds if chosen and each.size.recomputation == chosen.recomputation), kinds[0])
    refusal = _refusal(measured, work, place)
    if refusal is not None:
        return {"refusal": refusal}
    options = dict(chosen.options) if chosen is not None else {}
    stages = section.stages or (place.slots if is_configured else _stages(measured, place, options))
    if stages is None or place.slots % stages:
        conflict = slots_conflict("pipeline", place.slots, "the slots of this plan are", section.stages)
        return {"refusal": conflict or f"{len(measured.units)} units cannot be divided over {place.slots} slots"}
    schedule = section.schedule or DEFAULT_SCHEDULE
    replicas = place.slots // stages
    records = work.records // replicas if work.records else stages
    microbatches = section.microbatches or choose_microbatches(max(1, records), stages, schedule)
    split = section.split if isinstance(section.split, list) else None
    try:
        counts = divide_units(measured.model, measured.units, stages, split, schedule)
    except GanglineError as error:
        return {"refusal": error.message}
    is_divided = replicas > 1 and "zero2" in (section.replicas, options.get("replicas"))
    pipeline = Pipeline(tuple(counts), stages, schedule, microbatches, records, replicas, is_divided)
    return _describe(measured, pipeline, place)


def _refusal(measured: Measured, work: Work, place: Place) -> str | None:
    """Returns why no pipeline can be planned, whatever its stages; None for no reason."""
    if place.slots < 2:
        return "a pipeline needs at least 2 slots; see --slots"
    if measured.num_models > 1 or measured.cut_refusal:
        return measured.cut_refusal or f"pipeline {SEVERAL_MODELS}"
    return work.refused.get("pipeline")


def _describe(measured: Measured, pipeline: Pipeline, place: Place) -> dict[str, Any]:
    memories = stage_memory(measured.size, pipeline)
    seconds = stage_seconds(measured.size, pipeline, place)
    return {
        "schedule": pipeline.schedule,
        "stages": pipeline.stages,
        "replicas": pipeline.replicas,
        "has_divided_replicas": pipeline.is_divided,
        "microbatches": pipeline.microbatches,
        "bubble": pipeline.bubble,
        "largest_to_mean": imbalance_ratio([unit.numel for unit in measured.units], pipeline.counts),
        "parts": _parts(measured, pipeline),
        "slots": [
            {"bytes": bytes_by_purpose(memory), "step_seconds": second}
            for memory, second in zip(memories, seconds, strict=True)
        ],
    }


def _stages(measured: Measured, place: Place, options: Mapping[str, int | str]) -> int | None:
    """options: of the chosen pipeline; empty for none."""
    if options:
        return int(options["stages"])
    possible = [count for count in range(2, place.slots + 1) if place.slots % count == 0]
    return max((count for count in possible if count <= len(measured.units)), default=None)


def _parts(measured: Measured, pipeline: Pipeline) -> list[dict[str, Any]]:
    """Returns the parts. carried_bytes: of a record, over the border behind the part, besides the output of its last
    unit."""
    found = []
    # Nothing goes on from the last part.
    all_carried = [*carried_bytes(measured.size, pipeline), 0.0]
    for (first, end), carried in zip(pipeline.spans, all_carried, strict=True):
        units = measured.units[first:end]
        found.append(
            {
                "modules": [path for unit in units for path in unit.paths],
                "parameters": sum(unit.numel for unit in units),
                "carried_bytes": carried,
            }
        )
    return found
