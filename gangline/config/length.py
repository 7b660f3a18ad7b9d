"""PURE: a length of training, in batches, records or epochs."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from gangline.config.section import Section, fault

Unit = Literal["batches", "records", "epochs"]
UNITS: tuple[Unit, ...] = ("batches", "records", "epochs")


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
        found = [unit for unit in UNITS if getattr(self, unit) is not None]
        if len(found) != 1:
            what = " and ".join(found) if found else "none of them"
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
