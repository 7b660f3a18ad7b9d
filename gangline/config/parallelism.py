"""PURE: the `parallelism` section, and the one table of strategies by which a trial is spread over its slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from gangline.config.section import Section, fault, wrong_type

StrategyName = Literal["auto", "none", "ddp", "zero1", "zero2", "zero3", "hsdp", "pipeline"]
# How parameters lie on the slots: on one slot alone, whole on each, divided over all of them, or layer by layer. `auto`
# chooses one of the others.
Family = Literal["single", "replicated", "sharded", "staged", "any"]


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """options: keys of the section `parallelism` that the strategy knows. script_options: further options of torch's
    class, for scripts that pass their configuration themselves. fewest_slots: the least number of slots of a trial.
    slots_multiple: the number of slots is a multiple of it. ranks_per_replica: how many ranks train on the same
    records, as parts of one data replica; the class answers the same in `Strategy.replica_of`."""

    name: StrategyName
    family: Family
    options: tuple[str, ...] = ()
    script_options: tuple[str, ...] = ()
    fewest_slots: int = 1
    slots_multiple: int = 1
    ranks_per_replica: int = 1
    is_built: bool = True


_DDP_OPTIONS = ("find_unused_parameters", "static_graph")
_STAGE_OPTIONS = ("stages", "microbatches", "schedule", "split")

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
        StrategyRow("auto", "any", (*_STAGE_OPTIONS, *_DDP_OPTIONS, "blocks"), is_built=False),
        StrategyRow("pipeline", "staged", _STAGE_OPTIONS, is_built=False),
    )
}
BUILT = tuple(row.name for row in STRATEGIES.values() if row.is_built)


def is_sharded(strategy: str) -> bool:
    """Whether the strategy divides parameters over the slots, so that gradients do not go through DDP."""
    row = STRATEGIES.get(strategy)
    return row is not None and row.family == "sharded"


def owners_of(option: str) -> tuple[str, ...]:
    """Returns the strategies that know this key of the section `parallelism`, without `auto`."""
    return tuple(row.name for row in STRATEGIES.values() if option in row.options and row.family != "any")


# The keys that some strategies do not know, in the order in which they are checked.
_OPTIONS = ("stages", "microbatches", "schedule", "split", "find_unused_parameters", "static_graph", "blocks")


class Parallelism(Section):
    """stages, microbatches, schedule and split belong to pipeline.

    find_unused_parameters, static_graph: as in torch's DistributedDataParallel. blocks: names of module classes whose
    instances are gathered one at a time; None finds them automatically, an empty list gathers the whole model at once.
    """

    strategy: StrategyName = "ddp"
    stages: int | None = Field(default=None, ge=1)
    microbatches: int | None = Field(default=None, ge=1)
    schedule: str | None = None
    split: list[str] | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    blocks: list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_word(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"strategy": value}
        if not isinstance(value, dict):
            raise wrong_type("a strategy or a mapping with one", value)
        return value

    @model_validator(mode="after")
    def _fits_strategy(self) -> Self:
        for key in _OPTIONS:
            if getattr(self, key) is not None and key not in STRATEGIES[self.strategy].options:
                owners = owners_of(key)
                words = " and ".join((", ".join(owners[:-1]), owners[-1])) if len(owners) > 1 else owners[0]
                raise fault("invalid_value", f"belongs to {words}, but the strategy is {self.strategy}", key)
        return self
