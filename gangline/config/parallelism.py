"""PURE: the `parallelism` section: how one trial is spread over its slots. One word, or a mapping with a strategy."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from gangline.config.section import Section, fault, wrong_type

Strategy = Literal["auto", "none", "ddp", "zero1", "zero2", "zero3", "hsdp", "pipeline"]
_PIPELINE_ONLY = ("stages", "microbatches", "schedule", "split")


class Parallelism(Section):
    """stages, microbatches, schedule and split belong to pipeline (and to auto, which may choose it)."""

    strategy: Strategy = "ddp"
    stages: int | None = Field(default=None, ge=1)
    microbatches: int | None = Field(default=None, ge=1)
    schedule: str | None = None
    split: list[str] | None = None

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
        if self.strategy in ("pipeline", "auto"):
            return self
        for key in _PIPELINE_ONLY:
            if getattr(self, key) is not None:
                raise fault("invalid_value", f"belongs to pipeline, but the strategy is {self.strategy}", key)
        return self
