"""PURE: the `parallelism` section: the strategy that spreads one trial over its slots, as one word or a mapping."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from gangline.config.section import Section, fault, wrong_type
from gangline.config.strategy_table import STRATEGIES, StrategyName, owners_of

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
