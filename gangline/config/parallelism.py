"""PURE: the `parallelism` section, and the one table of strategies by which a trial is spread over its slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from gangline.config.complaint import complaints_of, join_path
from gangline.config.pipeline import (
    DEFAULT_SCHEDULE,
    SCHEDULES,
    SPLIT_WORDS,
    find_schedule,
    microbatch_conflict,
    names_conflict,
    split_conflict,
    unknown_word,
)
from gangline.config.section import WRITTEN, Section, fault, wrong_type
from gangline.errors import invalid

StrategyName = Literal["auto", "none", "ddp", "zero1", "zero2", "zero3", "hsdp", "pipeline"]
# How parameters lie on the slots: on one slot alone, whole on each, divided over all of them, or layer by layer. `auto`
# chooses one of the others.
Family = Literal["single", "replicated", "sharded", "staged", "any"]


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """One strategy with its rules."""

    name: StrategyName
    family: Family
    options: tuple[str, ...] = ()  # keys of the section `parallelism` that the strategy knows
    # further options of torch's class, for scripts that pass their configuration themselves
    script_options: tuple[str, ...] = ()
    fewest_slots: int = 1  # the least number of slots of a trial
    slots_multiple: int = 1  # the number of slots is a multiple of it
    # Number of ranks that train on the same records, as parts of one data replica. A staged strategy has as many as the
    # option `stages` says, see ranks_per_replica below.
    ranks_per_replica: int = 1
    combines_with: tuple[str, ...] = ()  # strategies that it applies among its replicas


_DDP_OPTIONS = ("find_unused_parameters", "static_graph")
_STAGE_OPTIONS = ("stages", "microbatches", "schedule", "split", "carry")

STRATEGIES: dict[str, StrategyRow] = {
    row.name: row
    for row in (
        StrategyRow("none", "single"),
        StrategyRow("ddp", "replicated", _DDP_OPTIONS, ("broadcast_buffers",)),
        StrategyRow("zero1", "replicated", _DDP_OPTIONS, ("broadcast_buffers",), fewest_slots=2),
        StrategyRow("zero2", "sharded", ("blocks",), fewest_slots=2),
        StrategyRow("zero3", "sharded", ("blocks",), fewest_slots=2),
        # Equal copies of a divided trial: at least two copies of two slots.
        StrategyRow("hsdp", "sharded", ("blocks",), fewest_slots=4, slots_multiple=2),
        StrategyRow(
            "pipeline", "staged", (*_STAGE_OPTIONS, "replicas"), fewest_slots=2, combines_with=("ddp", "zero2")
        ),
        # Has all options; the chosen strategy gets those that it knows.
        StrategyRow("auto", "any", (*_STAGE_OPTIONS, "replicas", *_DDP_OPTIONS, "blocks")),
    )
}
NAMES = tuple(STRATEGIES)
# What is computed again in the backward pass instead of being kept: see gangline.pytorch.parallel.recomputation.
RECOMPUTATIONS = ("none", "blocks", "full")


def ranks_per_replica(strategy: str, slots: int, stages: int | None = None) -> int:
    """Returns how many ranks train on the same records. stages: the option of that name; a staged strategy without it
    has one replica on all slots."""
    row = STRATEGIES[strategy]
    return (stages or max(1, slots)) if row.family == "staged" else row.ranks_per_replica


def recomputation_conflict(kind: str | None, strategy: str, schedule: str | None) -> str | None:
    """Returns why activations cannot be recomputed; None when they can."""
    if kind in (None, "none", "auto") or strategy not in ("pipeline", "auto"):
        return None
    if schedule is None or SCHEDULES[schedule].can_recompute:
        return None
    return (
        f"{schedule} computes the gradients of inputs and weights apart, which would recompute activations twice; use "
        "schedule: 1F1B"
    )


def is_sharded(strategy: str) -> bool:
    """Whether the strategy divides parameters over the slots, so that gradients do not go through DDP."""
    row = STRATEGIES.get(strategy)
    return row is not None and row.family == "sharded"


def owners_of(option: str) -> tuple[str, ...]:
    """Returns the strategies that know this key of the section `parallelism`, without `auto`."""
    return tuple(row.name for row in STRATEGIES.values() if option in row.options and row.family != "any")


def parse_parallelism(values: Any) -> Parallelism:
    """Parses the section that a script passes. Raises GanglineError `config.*` with the key's path."""
    try:
        return Parallelism.model_validate(values, context=WRITTEN)
    except ValidationError as failure:
        first = complaints_of(failure, values)[0]
        place = join_path(("parallelism", *first.path))
        raise invalid(f"config.{first.code}", f"{place}: {first.text}") from failure


# The keys that some strategies do not know, in the order in which they are checked.
_OPTIONS = (
    "stages",
    "microbatches",
    "schedule",
    "split",
    "carry",
    "replicas",
    "find_unused_parameters",
    "static_graph",
    "blocks",
)


class Parallelism(Section):
    """stages: slots of one replica; None for all slots. microbatches: equal parts of a replica's batch; None chooses
    their number. schedule: see gangline.config.pipeline. split: `parameters`, `time`, or the names of the modules with
    which the second and each later part of the model begin. carry: names of units whose outputs go along to all later
    parts, also where the first batch does not need them. replicas: how the replicas of a pipeline keep gradients and
    the optimizer's state: `ddp` whole, `zero2` divided. These six belong to pipeline.

    find_unused_parameters, static_graph: as in torch's DistributedDataParallel. blocks: names of module classes whose
    instances are gathered one at a time; None finds them automatically, an empty list gathers the whole model at once.

    activation_checkpointing: what is computed again in the backward pass, in every strategy: `none`, `blocks`, `full`.
    None is `none`; with the strategy `auto` it is `auto`, which chooses among them. With it, blocks also names the
    classes of the blocks that are recomputed.
    """

    strategy: StrategyName = "ddp"
    stages: int | None = Field(default=None, ge=1)
    microbatches: int | None = Field(default=None, ge=1)
    schedule: str | None = None
    split: str | list[str] | None = None
    carry: list[str] | None = None
    replicas: str | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    blocks: list[str] | None = None
    activation_checkpointing: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_word(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"strategy": value}
        if not isinstance(value, dict):
            raise wrong_type("a strategy or a mapping with one", value)
        return value

    @field_validator("schedule")
    @classmethod
    def _is_schedule(cls, value: str | None) -> str | None:
        if value is None:
            return None
        known = find_schedule(value)
        if known is None:
            raise fault("invalid_value", unknown_word("schedule", value, tuple(SCHEDULES)))
        return known

    @field_validator("split", mode="before")
    @classmethod
    def _is_split(cls, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, str):
            if "." in value:
                text = f"expected {', '.join(SPLIT_WORDS)} or a list; for one module write [{value}]"
                raise fault("invalid_value", text)
            if value not in SPLIT_WORDS:
                more = ", or a list of modules, as in [blocks.4, blocks.8]"
                raise fault("invalid_value", unknown_word("split", value, SPLIT_WORDS, more))
            return value
        if not isinstance(value, list):
            raise wrong_type("parameters, time, or a list of modules as [blocks.4, blocks.8]", value)
        for place, name in enumerate(value):
            if not isinstance(name, str):
                raise wrong_type("a module's name as a string, such as 'blocks.4' or '4'", name, place)
        conflict = names_conflict(value)
        if conflict is not None:
            raise fault("invalid_value", conflict[1], conflict[0])
        return value

    @field_validator("activation_checkpointing")
    @classmethod
    def _is_recomputation(cls, value: str | None) -> str | None:
        if value not in (None, "auto", *RECOMPUTATIONS):
            raise fault("invalid_value", unknown_word("activation checkpointing", str(value), RECOMPUTATIONS))
        return value

    @field_validator("replicas")
    @classmethod
    def _is_combined(cls, value: str | None) -> str | None:
        known = STRATEGIES["pipeline"].combines_with
        if value is not None and value not in known:
            raise fault("invalid_value", unknown_word("strategy of replicas", value, known))
        return value

    def ranks_per_replica(self, slots: int) -> int:
        """Returns how many of a trial's slots train on the same records. For `auto` it is the most that the choice may
        have, so that only a batch that is too small for every strategy is refused."""
        if STRATEGIES[self.strategy].family == "any":
            return self.stages or max(1, slots)
        return ranks_per_replica(self.strategy, slots, self.stages)

    @model_validator(mode="after")
    def _is_pipeline(self) -> Self:
        if self.stages is None:
            return self
        if self.stages < 2 and self.strategy in ("pipeline", "auto"):
            raise fault("invalid_value", "a pipeline has at least 2 stages; use ddp for 1", "stages")
        schedule = self.schedule or DEFAULT_SCHEDULE
        if self.microbatches is not None:
            text = microbatch_conflict(self.microbatches, self.stages, schedule)
            if text is not None:
                raise fault("invalid_value", text, "microbatches")
        text = split_conflict(len(self.split), self.stages, schedule) if isinstance(self.split, list) else None
        if text is not None:
            raise fault("invalid_value", text, "split")
        return self

    @model_validator(mode="after")
    def _can_recompute(self) -> Self:
        if self.activation_checkpointing == "auto" and self.strategy != "auto":
            words = f"auto belongs to the strategy auto, but the strategy is {self.strategy}; use none, blocks or full"
            raise fault("invalid_value", words, "activation_checkpointing")
        text = recomputation_conflict(self.activation_checkpointing, self.strategy, self.schedule)
        if text is not None:
            raise fault("invalid_value", text, "activation_checkpointing")
        return self

    @model_validator(mode="after")
    def _fits_strategy(self) -> Self:
        for key in _OPTIONS:
            # Blocks that are recomputed may have names in every strategy.
            if key == "blocks" and self.activation_checkpointing not in (None, "none"):
                continue
            if getattr(self, key) is not None and key not in STRATEGIES[self.strategy].options:
                owners = owners_of(key)
                words = " and ".join((", ".join(owners[:-1]), owners[-1])) if len(owners) > 1 else owners[0]
                raise fault("invalid_value", f"belongs to {words}, but the strategy is {self.strategy}", key)
        return self
