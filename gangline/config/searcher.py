"""PURE: the `searcher` section: how many trials an experiment has and how long each one trains.

All searchers share one model, because every key has the same meaning wherever it is allowed. KEYS_BY_NAME lists the
keys that each searcher allows.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from gangline.config.length import Length
from gangline.config.section import WRITTEN, Section, fault, unknown_key

SearcherName = Literal["single", "random", "grid", "adaptive_asha", "async_halving", "custom"]

_COMMON = {"name", "metric", "smaller_is_better", "max_length", "source_trial_id", "source_checkpoint_uuid"}
_HALVING = {"max_trials", "max_concurrent_trials", "divisor", "stop_once", "time_metric", "max_time"}
KEYS_BY_NAME: dict[str, set[str]] = {
    "single": _COMMON,
    "grid": _COMMON | {"max_concurrent_trials"},
    "random": _COMMON | {"max_trials", "max_concurrent_trials"},
    "async_halving": _COMMON | _HALVING | {"num_rungs"},
    "adaptive_asha": _COMMON | _HALVING | {"max_rungs", "mode", "bracket_rungs"},
    "custom": _COMMON | {"unit"},
}
# The limit of Determined. A larger search is usually a mistake.
MAX_TRIALS = 2000
_NEEDS_MAX_TRIALS = ("random", "async_halving", "adaptive_asha")


class Searcher(Section):
    """metric: the validation metric that decides which trial and which checkpoint is best.

    max_concurrent_trials: the most trials that have not ended at a time; 0 for no limit.
    max_length may be absent only where a script with the Core API decides by itself when it is done.
    """

    name: SearcherName
    metric: str
    smaller_is_better: bool = True
    max_length: Length | None = None
    max_trials: int | None = Field(default=None, ge=1, le=MAX_TRIALS)
    max_concurrent_trials: int = Field(default=16, ge=0)
    source_trial_id: int | None = None
    source_checkpoint_uuid: str | None = None
    mode: Literal["aggressive", "standard", "conservative"] = "standard"
    divisor: float = Field(default=4, gt=1)
    max_rungs: int = Field(default=5, ge=1)
    num_rungs: int | None = Field(default=None, ge=1)
    bracket_rungs: list[int] = Field(default_factory=list)
    stop_once: bool = False
    time_metric: str | None = None
    max_time: int | None = Field(default=None, ge=1)
    unit: Literal["batches", "records", "epochs"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _belongs_to_name(cls, value: Any, info: ValidationInfo) -> Any:
        if info.context is not WRITTEN or not isinstance(value, dict) or value.get("name") not in KEYS_BY_NAME:
            return value
        name, allowed = value["name"], KEYS_BY_NAME[value["name"]]
        for key in value:
            if key in cls.model_fields and key not in allowed and not cls.is_default(key, value[key]):
                raise fault("unknown_key", f"has no meaning for the searcher {name!r}; remove it", key)
            if key not in cls.model_fields:
                raise unknown_key(str(key), allowed)
        return value

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.name in _NEEDS_MAX_TRIALS and self.max_trials is None:
            raise fault("missing_key", f"required by the searcher {self.name!r}, but missing", "max_trials")
        if self.max_length is not None and self.max_length.units == 0:
            raise fault("invalid_value", "must be at least 1, found 0", "max_length", self.max_length.unit)
        return self
