"""PURE: the `searcher` section: how many trials an experiment has and how long each one trains.

A length is a number of batches, records or epochs. All searchers share one model, because every key has the same
meaning wherever it is allowed. SEARCHER_ROWS lists the keys that each searcher allows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from gangline.config.section import WRITTEN, Section, describe, fault, unknown_key, wrong_type
from gangline.domain.id import trial_id_of
from gangline.domain.settled.searcher import HALVING_NAMES, MAX_DIVISOR, MAX_RUNGS, MAX_TRIALS, UNITS, Unit
from gangline.errors import GanglineError


class Length(Section):
    """Exactly one of the three is set. A bare number in the YAML counts batches."""

    batches: int | None = Field(default=None, ge=0)
    records: int | None = Field(default=None, ge=0)
    epochs: int | None = Field(default=None, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _accept_number(cls, value: Any) -> Any:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return {"batches": value} if is_number else value

    @model_validator(mode="after")
    def _has_one_unit(self) -> Self:
        units = [unit for unit in UNITS if getattr(self, unit) is not None]
        if len(units) != 1:
            what = " and ".join(units) if units else "none of them"
            raise fault("invalid_value", f"expected one of batches, records and epochs, found {what}")
        return self

    @model_serializer(mode="wrap")
    def _only_the_unit(self, handler: SerializerFunctionWrapHandler) -> dict[str, int]:
        values: dict[str, int] = handler(self)
        return {unit: number for unit, number in values.items() if number is not None}

    @property
    def unit(self) -> Unit:
        return next(unit for unit in UNITS if getattr(self, unit) is not None)

    @property
    def units(self) -> int:
        number = getattr(self, self.unit)
        assert isinstance(number, int)
        return number

    def __str__(self) -> str:
        return f"{self.units} {self.unit}"


SearcherName = Literal["single", "random", "grid", "adaptive_asha", "async_halving", "tpe", "optuna", "custom"]


@dataclass(frozen=True, slots=True)
class SearcherRow:
    """One searcher with its keys."""

    name: SearcherName
    keys: tuple[str, ...] = ()  # keys of the section, beside those that every searcher allows
    required: tuple[str, ...] = ()  # keys that must be given

    @property
    def allowed(self) -> set[str]:
        """Returns all keys that the section may have."""
        return {*_COMMON, *self.keys}


_COMMON = ("name", "metric", "smaller_is_better", "max_length", "source_trial_id", "source_checkpoint_uuid")
_COUNTED = ("max_trials", "max_concurrent_trials")
_HALVING = (*_COUNTED, "divisor", "stop_once", "time_metric", "max_time")
_ASHA = (*_HALVING, "max_rungs", "mode", "bracket_rungs")

SEARCHER_ROWS: dict[str, SearcherRow] = {
    row.name: row
    for row in (
        SearcherRow("single"),
        SearcherRow("random", _COUNTED, required=("max_trials",)),
        SearcherRow("grid", ("max_concurrent_trials",)),
        SearcherRow("adaptive_asha", _ASHA, required=("max_trials",)),
        SearcherRow("async_halving", (*_HALVING, "num_rungs"), required=("max_trials", "num_rungs")),
        SearcherRow("tpe", (*_COUNTED, "sampler", "pruner"), required=("max_trials",)),
        SearcherRow("optuna", (*_COUNTED, "sampler", "pruner"), required=("max_trials", "sampler")),
        SearcherRow("custom", ("unit",)),
    )
}
# Trials whose hyperparameters a preview shows. Each one takes a millisecond to draw.
MAX_PREVIEWED = 2000
# Arguments of Optuna's samplers and pruners are a few numbers.
_MAX_ARGUMENTS = 32
_MAX_ITEMS = 64
_PLAIN = (bool, int, float, str, type(None))
_WRAPPED = "wrapped_pruner"


class Searcher(Section):
    """metric: the validation metric that decides which trial and which checkpoint is best.

    max_concurrent_trials: the most trials that have not ended at a time; 0 for no limit.
    max_length may be absent only where a script with the Core API decides by itself when it is done, or where max_time
    gives the length: a value of time_metric, which is a validation metric or one of batches, records and epochs.

    mode, divisor, max_rungs, num_rungs, bracket_rungs: of a search by successive halving, see gangline.domain.search.
    stop_once: accepted for files of Determined; a stopped trial never continues, whatever its value is.

    source_trial_id, source_checkpoint_uuid: all trials begin from the latest checkpoint of this trial, or from this
    checkpoint: they take its state, and count batches from 0.

    sampler, pruner: classes of Optuna with their arguments, as _read_part reads them. They suggest each trial
    from the results of those before it, and stop trials by their validations.
    """

    name: SearcherName
    metric: str
    smaller_is_better: bool = True
    max_length: Length | None = None
    max_trials: int | None = Field(default=None, ge=1, le=MAX_TRIALS)
    max_concurrent_trials: int = Field(default=16, ge=0)
    source_trial_id: str | None = None
    source_checkpoint_uuid: str | None = None
    mode: Literal["aggressive", "standard", "conservative"] = "standard"
    divisor: float = Field(default=4, gt=1, le=MAX_DIVISOR)
    max_rungs: int = Field(default=5, ge=1, le=MAX_RUNGS)
    num_rungs: int | None = Field(default=None, ge=1, le=MAX_RUNGS)
    bracket_rungs: list[int] = Field(default_factory=list)
    stop_once: bool = False
    time_metric: str | None = None
    max_time: int | None = Field(default=None, ge=1)
    unit: Literal["batches", "records", "epochs"] | None = None
    sampler: dict[str, Any] | None = None
    pruner: dict[str, Any] | None = None

    @field_validator("source_trial_id", mode="before")
    @classmethod
    def _is_trial_id(cls, value: Any) -> Any:
        """Accepts a number of Determined's form too: 700001 for trial 7.1."""
        if isinstance(value, int) and not isinstance(value, bool):
            try:
                return trial_id_of(value)
            except GanglineError:
                text = f'expected the id of a trial, as "7.1" or 700001, found {describe(value)}'
                raise fault("wrong_type", text) from None
        # YAML reads 7.10 without quotation marks as the number 7.1.
        if value is not None and not (isinstance(value, str) and re.fullmatch(r"\d{1,18}\.\d{1,18}", value)):
            text = f'expected the id of a trial in quotation marks, as "7.1", found {describe(value)}'
            raise fault("wrong_type", text)
        return value

    @model_validator(mode="before")
    @classmethod
    def _read_parts(cls, value: Any) -> Any:
        """Gives sampler and pruner their one form. `tpe` names its sampler itself."""
        if not isinstance(value, Mapping):
            return value
        default_names = {"sampler": "TPESampler" if value.get("name") == "tpe" else None, "pruner": None}
        parts = {
            key: _read_part(value[key], key, default_name)
            for key, default_name in default_names.items()
            if value.get(key) is not None
        }
        return {**value, **parts}

    @model_validator(mode="before")
    @classmethod
    def _belongs_to_name(cls, value: Any, info: ValidationInfo) -> Any:
        if info.context is not WRITTEN or not isinstance(value, dict) or value.get("name") not in SEARCHER_ROWS:
            return value
        name, allowed = value["name"], SEARCHER_ROWS[value["name"]].allowed
        for key in value:
            if key in cls.model_fields and key not in allowed and not cls.is_default(key, value[key]):
                raise fault("unknown_key", f"has no meaning for the searcher {name!r}; remove it", key)
            if key not in cls.model_fields:
                raise unknown_key(str(key), allowed)
        return value

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        for key in SEARCHER_ROWS[self.name].required:
            if getattr(self, key) is None:
                raise fault("missing_key", f"required by the searcher {self.name!r}, but missing", key)
        if self.max_length is not None and self.max_length.units == 0:
            raise fault("invalid_value", "must be at least 1, found 0", "max_length", self.max_length.unit)
        if self.source_trial_id is not None and self.source_checkpoint_uuid is not None:
            text = "names a second source; keep this one or source_trial_id"
            raise fault("invalid_value", text, "source_checkpoint_uuid")
        self._check_time()
        for number in self.bracket_rungs:
            if not 1 <= number <= MAX_RUNGS:
                text = f"has {number}; a bracket has 1 to {MAX_RUNGS} rungs"
                raise fault("invalid_value", text, "bracket_rungs")
        return self

    def _check_time(self) -> None:
        """Refuses a length of successive halving that is missing or only half given."""
        for key, other in (("time_metric", "max_time"), ("max_time", "time_metric")):
            if getattr(self, key) is None and getattr(self, other) is not None:
                raise fault("missing_key", f"required beside {other}, but missing", key)
        if self.name in HALVING_NAMES and self.max_length is None and self.max_time is None:
            text = f"required by the searcher {self.name!r}, but missing; time_metric and max_time may take its place"
            raise fault("missing_key", text, "max_length")


def _read_part(value: Any, key: str, default_name: str | None = None) -> dict[str, Any]:
    """Returns the part as a mapping with a name. value: a name, or a mapping with `name` and arguments. key: of the
    searcher's section, for errors. default_name: where the mapping has no name; None: it must have one."""
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping):
        raise wrong_type("a name of Optuna, or a mapping with name and arguments", value, key)
    part = dict(value)
    name = part.pop("name", default_name)
    if not isinstance(name, str):
        text = "required, but missing" if name is None else f"expected a name of Optuna, found {describe(name)}"
        raise fault("missing_key" if name is None else "wrong_type", text, key, "name")
    if len(part) > _MAX_ARGUMENTS:
        raise fault("invalid_value", f"has {len(part)} arguments; at most {_MAX_ARGUMENTS} are allowed", key)
    for argument, given in part.items():
        if not isinstance(argument, str):
            raise wrong_type("the name of an argument", argument, key)
        if argument == _WRAPPED:
            part[argument] = _read_part(given, argument)
        elif not _is_plain(given):
            raise wrong_type("a number, a string, a boolean or a list of them", given, key, argument)
    return {"name": name, **part}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= _MAX_ITEMS and all(isinstance(item, _PLAIN) for item in value)
    return isinstance(value, _PLAIN)
