"""PURE: the decision of `parallelism: auto`: what is measured becomes the rule's input, and the rule's table becomes
the record of a choice.

Rates are rounded to powers of the square root of 2, so that two measurements of the same slots seldom give different
choices. An attempt on as many slots as the one before it keeps the choice of that one, so noise changes no running
trial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gangline.config.optimization import Optimizations
from gangline.config.parallelism import RECOMPUTATIONS, STRATEGIES, Parallelism
from gangline.config.pipeline import DEFAULT_SCHEDULE, SCHEDULES
from gangline.config.strategy_choice import MOST_ROWS, CandidateRow, StrategyChoice
from gangline.errors import GanglineError, invalid
from gangline.pytorch.plan.memory import Memory
from gangline.pytorch.plan.model_size import ModelSize
from gangline.pytorch.plan.rule import Candidate, Work, choose, list_candidates, nothing_fits, size_text
from gangline.pytorch.plan.step_time import Place

_FAILED = "ran out of memory in an earlier attempt"


@dataclass(frozen=True, slots=True)
class Decision:
    """Choice of a strategy for a trial, with its table."""

    candidates: tuple[Candidate, ...]  # rows of the table
    chosen: Candidate | None  # None where no candidate is left
    # names of candidates that ran out of memory in earlier attempts on as many slots
    out_of_memory: tuple[str, ...] = ()
    is_kept: bool = False  # whether the choice is that of the attempt before
    # reason of each strategy that refuses the trial's code, as in StrategyChoice
    refused: Mapping[str, str] = field(default_factory=dict)


def recomputations_of(section: Parallelism) -> tuple[str, ...]:
    """Returns the kinds of recomputation that the table has: all, unless the configuration names one."""
    kind = section.activation_checkpointing
    return RECOMPUTATIONS if kind in (None, "auto") else (str(kind),)


def work_of(
    section: Parallelism,
    optimizations: Optimizations,
    batch: Any,
    num_models: int,
    rounds: int = 1,
    *,
    refused: Mapping[str, str] | None = None,
) -> Work:
    """Returns what the trial does in a step. batch: the hyperparameter global_batch_size. rounds: batches that each
    slot trains one after another, because the attempt has fewer slots than slots_per_trial. refused: as in Work.
    Options of a pipeline restrict the candidates only where `auto` chooses."""
    records = batch // rounds if isinstance(batch, int) and not isinstance(batch, bool) else None
    work = Work(
        records,
        num_models > 1,
        optimizations.gradient_compression.hook is not None,
        refused=refused or {},
    )
    if section.strategy != "auto":
        return work
    schedule = section.schedule or DEFAULT_SCHEDULE
    stages = section.stages
    if stages is None and isinstance(section.split, list):
        # The names are beginnings of the second and each later part.
        stages = max(1, (len(section.split) + 1) // SCHEDULES[schedule].parts)
    return replace(work, stages=stages, microbatches=section.microbatches, schedule=schedule, replicas=section.replicas)


def decide(models: Sequence[ModelSize], work: Work, place: Place, earlier: StrategyChoice | None = None) -> Decision:
    """Returns the decision. models: the same model for each possible recomputation; rows that cannot run are listed for
    the first one alone. earlier: the record of the attempt before; it counts only for the same number of slots, because
    another number has other candidates. A refusal of the trial's code counts for every number."""
    refused = {} if earlier is None else dict(earlier.refused)
    work = replace(work, refused={**work.refused, **refused})
    first, *others = (list_candidates(model, work, place) for model in models)
    candidates = (*first, *(each for other in others for each in other if each.memory is not None))
    if earlier is None or earlier.slots != place.slots:
        return Decision(candidates, choose(list(candidates)), refused=refused)
    judged = _refuse_failed(candidates, earlier)
    kept = next((each for each in judged if each.name == earlier.choice and not each.refusal), None)
    return Decision(judged, kept or choose(list(judged)), earlier.out_of_memory, kept is not None, refused)


def _refuse_failed(candidates: Sequence[Candidate], earlier: StrategyChoice) -> tuple[Candidate, ...]:
    """Refuses candidates that failed, and those that need no fewer bytes than the smallest that failed: the prediction
    was too low for that one, and so it would be for them."""
    failed = earlier.out_of_memory
    sizes = {row.name: float(row.bytes["total"]) for row in earlier.rows if "total" in row.bytes}
    sizes |= {each.name: each.memory.total for each in candidates if each.memory is not None}
    least = min(((sizes[name], name) for name in failed if name in sizes), default=None)
    judged = []
    for each in candidates:
        refusal = each.refusal
        if each.name in failed:
            refusal = _FAILED
        elif not refusal and least is not None and each.memory is not None and each.memory.total >= least[0]:
            refusal = f"needs {size_text(each.memory.total)}, no less than {least[1]}, which ran out of memory"
        judged.append(replace(each, refusal=refusal))
    return tuple(judged)


def explain_failure(decision: Decision, models: Sequence[ModelSize], work: Work, place: Place) -> GanglineError:
    """Returns the error of a decision without a choice."""
    error = _explain(decision, models, work, place)
    lines = [f"{name} refused the trial in an earlier attempt: {line}" for name, line in decision.refused.items()]
    return error.reworded("; ".join((error.message, *lines)))


def _explain(decision: Decision, models: Sequence[ModelSize], work: Work, place: Place) -> GanglineError:
    if not decision.out_of_memory:
        sized = [each for each in decision.candidates if each.memory is not None]
        least = min(sized, key=lambda each: each.memory.total if each.memory else 0.0, default=None)
        by_kind = {model.recomputation: model for model in models}
        model = by_kind[least.recomputation] if least else models[0]
        return nothing_fits(model, work, place, list(decision.candidates))
    return invalid(
        "parallelism.auto",
        f"parallelism: {', '.join(decision.out_of_memory)} ran out of memory on {place.slots} slots, and no strategy "
        "that needs less fits; use a smaller batch, more slots, or slots with more memory",
    )


def record_of(decision: Decision, place: Place, notes: Sequence[str]) -> StrategyChoice:
    """Returns the record. Its choice is empty where the decision has none. Of a long table it has the choice, the
    candidates that ran out of memory, and the fastest ones."""
    kept = _kept_in_record(decision)
    if len(kept) < len(decision.candidates):
        notes = [*notes, f"the table has {len(decision.candidates) - len(kept)} further rows, see gangline plan"]
    if place.taken_bytes:
        notes = [*notes, f"other processes use {size_text(place.taken_bytes)} of a slot's GPU, which is left to them"]
    return StrategyChoice(
        decision.chosen.name if decision.chosen else "",
        place.slots,
        tuple(row_of(candidate) for candidate in kept),
        None if place.memory_bytes is None else round(place.memory_bytes),
        decision.out_of_memory,
        tuple(notes),
        place.slot_flops,
        place.inside_rate if place.slots_per_machine > 1 else None,
        place.across_rate if place.machines > 1 else None,
        place.message_seconds if place.slots > 1 else None,
        place.kernel_seconds,
        place.memory_rate,
        place.copy_rate,
        broadcast_rate=place.broadcast_rate,
        convolution_flops=place.convolution_flops,
        refused=decision.refused,
    )


def _kept_in_record(decision: Decision) -> list[Candidate]:
    def order(candidate: Candidate) -> tuple[bool, bool, float]:
        is_needed = candidate == decision.chosen or candidate.name in decision.out_of_memory
        return not is_needed, bool(candidate.refusal), candidate.seconds

    kept = {candidate.name for candidate in sorted(decision.candidates, key=order)[:MOST_ROWS]}
    return [candidate for candidate in decision.candidates if candidate.name in kept]


def row_of(candidate: Candidate) -> CandidateRow:
    """Returns a candidate as a row of the table, for the record and for `gangline plan`."""
    memory = candidate.memory
    return CandidateRow(
        candidate.name,
        candidate.strategy,
        dict(candidate.options),
        candidate.recomputation,
        bytes={} if memory is None else bytes_by_purpose(memory),
        step_seconds=None if memory is None else candidate.seconds,
        refusal=candidate.refusal,
    )


def bytes_by_purpose(memory: Memory) -> dict[str, int]:
    """Returns whole bytes by purpose, with their `total`."""
    return {**{key: round(value) for key, value in asdict(memory).items()}, "total": round(memory.total)}


def settled_section(chosen: CandidateRow, section: Parallelism) -> dict[str, Any]:
    """Returns the section `parallelism` that names the chosen strategy, with those configured options that it knows.
    The ranks choose a pipeline's number of microbatches by the same rule as its row."""
    known = STRATEGIES[chosen.strategy].options
    written = {key: getattr(section, key) for key in known if getattr(section, key) is not None}
    own = {key: chosen.options[key] for key in ("stages", "replicas") if key in chosen.options}
    if chosen.activation_checkpointing != "none":
        own["activation_checkpointing"] = chosen.activation_checkpointing
        own |= {"blocks": section.blocks} if section.blocks is not None else {}
    return {"strategy": chosen.strategy, **written, **own}


def round_rate(rate: float) -> float:
    """Returns the nearest power of the square root of 2. rate: above 0 and finite."""
    return float(2 ** (round(2 * math.log2(rate)) / 2))


def slot_share(limits_by_rank: Sequence[tuple[int, Mapping[str, int]]]) -> float | None:
    """Returns the bytes of the slot that has the fewest: a limit is divided by the ranks that share it.

    limits_by_rank: for each rank its machine, and its limits by the name of what is limited; ranks of a machine share a
    limit of the same name. None where a rank has no limit.
    """
    sharers: dict[tuple[int, str], int] = {}
    for machine, limits in limits_by_rank:
        for name in limits:
            sharers[machine, name] = sharers.get((machine, name), 0) + 1
    shares = [
        min((value / sharers[machine, name] for name, value in limits.items()), default=None)
        for machine, limits in limits_by_rank
    ]
    known = [share for share in shares if share is not None]
    return min(known) if known and len(known) == len(shares) else None


def groups_by_machine(machines: Sequence[int]) -> list[list[int]]:
    """Returns the ranks of each machine. machines: the machine of each rank."""
    return [[rank for rank, own in enumerate(machines) if own == machine] for machine in sorted(set(machines))]


def rate_of(bytes_per_second: float, ranks: int, otherwise: float) -> float:
    """Returns the bytes a second over a link, rounded, from the bytes a second of an all-reduce among so many ranks: in
    a ring each byte is sent 2 (n - 1) / n times. otherwise: for a rate that was not measurable."""
    rate = 2 * (ranks - 1) / ranks * bytes_per_second
    return round_rate(rate) if 0 < rate < math.inf else otherwise
