"""PURE: the `hyperparameters` section: constants, ranges, nested mappings of them, and the points of a grid over them.

The section is kept as the user wrote it, because trials and search print it so. parse_range reads one entry, sample
draws one set for a trial from the caller's random number generator, and a grid numbers all combinations. A range
computes one point at a time, so that a large `count` costs neither time nor memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import Field, PlainValidator, TypeAdapter, ValidationError, model_validator

from gangline.config.section import WRITTEN, Section, describe, fault, wrong_type

# A leader draws up to 32 trials between two steps of its event loop, at 50 us a range. The limit bounds that pause to
# 0.32 s.
MAX_RANGES = 200


class Random(Protocol):
    """The part of random.Random that sampling uses."""

    def randint(self, a: int, b: int, /) -> int: ...
    def uniform(self, a: float, b: float, /) -> float: ...
    def choice(self, seq: Sequence[Any], /) -> Any: ...


class _Bounded(Section):
    minval: float
    maxval: float
    count: int | None = Field(default=None, ge=1)

    @property
    def num_points(self) -> int:
        return self.count or 1

    def _spread(self, place: int) -> float:
        """Returns one of num_points numbers from minval to maxval, both included; the middle when there is only one."""
        if self.num_points == 1:
            return (self.minval + self.maxval) / 2
        # Returned exactly, because the sum below could miss it by rounding.
        if place == self.num_points - 1:
            return self.maxval
        return self.minval + place * ((self.maxval - self.minval) / (self.num_points - 1))

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.minval >= self.maxval:
            raise fault("invalid_value", f"must be above minval {self.minval:g}, found {self.maxval:g}", "maxval")
        return self


class Const(Section):
    type: Literal["const"] = "const"
    val: Any

    def sample(self, _rng: Random) -> Any:
        return self.val

    @property
    def num_points(self) -> int:
        return 1

    def point(self, _place: int) -> Any:
        return self.val


class Int(_Bounded):
    """Whole numbers from minval to maxval, both included."""

    type: Literal["int"] = "int"
    minval: int
    maxval: int

    def sample(self, rng: Random) -> int:
        return rng.randint(self.minval, self.maxval)

    @property
    def num_points(self) -> int:
        """Returns `count`, or fewer where the range has fewer whole numbers; each of them is one point."""
        return min(self.count or 1, self.maxval - self.minval + 1)

    def point(self, place: int) -> int:
        # Every whole number of the range is a point, so none is rounded.
        if self.num_points == self.maxval - self.minval + 1:
            return self.minval + place
        return round(self._spread(place))


class Double(_Bounded):
    type: Literal["double"] = "double"

    def sample(self, rng: Random) -> float:
        return rng.uniform(self.minval, self.maxval)

    def point(self, place: int) -> float:
        return self._spread(place)


class Log(_Bounded):
    """base to the power of a number that is uniform between minval and maxval."""

    type: Literal["log"] = "log"
    base: float = Field(default=10.0, gt=0)

    @property
    def is_finite(self) -> bool:
        """Returns whether both ends are finite floats. Between them the power grows or falls monotonically, so it is
        finite too."""
        try:
            return math.isfinite(self.base**self.minval) and math.isfinite(self.base**self.maxval)
        except OverflowError:
            return False

    def sample(self, rng: Random) -> float:
        return float(self.base ** rng.uniform(self.minval, self.maxval))

    def point(self, place: int) -> float:
        return float(self.base ** self._spread(place))


class Categorical(Section):
    type: Literal["categorical"] = "categorical"
    vals: list[Any] = Field(min_length=1)

    def sample(self, rng: Random) -> Any:
        return rng.choice(self.vals)

    @property
    def num_points(self) -> int:
        return len(self.vals)

    def point(self, place: int) -> Any:
        return self.vals[place]


Range = Const | Int | Double | Log | Categorical
_RANGE_BY_TYPE: dict[str, type[Range]] = {
    "const": Const,
    "int": Int,
    "double": Double,
    "log": Log,
    "categorical": Categorical,
}


def _validate_range(value: Mapping[str, Any]) -> Range:
    range_type = value["type"]
    if not isinstance(range_type, str) or range_type not in _RANGE_BY_TYPE:
        raise fault(
            "invalid_value", f"must be one of {', '.join(_RANGE_BY_TYPE)}, found {describe(range_type)}", "type"
        )
    return _RANGE_BY_TYPE[range_type].model_validate(value, context=WRITTEN)


_ANY_RANGE: TypeAdapter[Range] = TypeAdapter(Annotated[Any, PlainValidator(_validate_range)])


def is_nested(value: Any) -> bool:
    """Returns whether the value groups further hyperparameters, as a mapping without a `type` does."""
    return isinstance(value, Mapping) and "type" not in value


def parse_range(value: Any) -> Range:
    """Parses one entry that is not nested. Any value but a mapping is a constant. Raises pydantic's ValidationError."""
    if not isinstance(value, Mapping):
        return Const(val=value)
    return _ANY_RANGE.validate_python(value)


def check_hyperparameters(values: Any) -> dict[str, Any]:
    """Returns the values unchanged. Raises a validation error that names the path of the first wrong entry."""
    if not isinstance(values, Mapping):
        raise wrong_type("a mapping", values)
    _check(values, ())
    return dict(values)


def sample(values: Mapping[str, Any], rng: Random) -> dict[str, Any]:
    """Draws one value for each hyperparameter. The same generator state gives the same values."""
    return {
        name: sample(value, rng) if is_nested(value) else parse_range(value).sample(rng)
        for name, value in values.items()
    }


def ranges_of(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Range]]:
    """Yields every entry with its path, nested ones too, in the order in which they were written."""
    for name, value in values.items():
        if is_nested(value):
            yield from ranges_of(value, (*path, name))
        else:
            yield (*path, name), parse_range(value)


def count_draws(values: Mapping[str, Any]) -> int:
    """Returns the work of drawing one trial's values: one for each range, and one for each 100 choices."""
    ranges = [each for _, each in ranges_of(values) if not isinstance(each, Const)]
    return sum(1 + (len(each.vals) // 100 if isinstance(each, Categorical) else 0) for each in ranges)


def find_undrawable(values: Mapping[str, Any]) -> tuple[tuple[str, ...], str] | None:
    """Returns the path of the first range that no sampler can draw from, and the reason. Too many ranges are a reason
    as well."""
    num_ranges = 0
    for path, value_range in ranges_of(values):
        num_ranges += not isinstance(value_range, Const)
        if num_ranges > MAX_RANGES:
            return path, f"is one range too many; a search has at most {MAX_RANGES}, write the others as constants"
        if isinstance(value_range, Double) and not math.isfinite(value_range.maxval - value_range.minval):
            return (*path, "maxval"), "the width of the range is beyond a float; move minval and maxval closer together"
        if isinstance(value_range, Log) and not value_range.is_finite:
            return (
                *path,
                "maxval",
            ), f"{value_range.base:g} to this power is beyond a float; move minval and maxval closer to 0"
    return None


def possible_values(value: Any) -> list[int] | None:
    """Returns the whole numbers that decide whether a range can become too small: all values of a list, the ends of a
    range."""
    if is_nested(value):
        return None
    value_range = parse_range(value)
    match value_range:
        case Int():
            return [value_range.minval, value_range.maxval]
        case Categorical():
            candidates = list(value_range.vals)
        case Const():
            candidates = [value_range.val]
        case _:
            return None
    return candidates if all(isinstance(entry, int) and not isinstance(entry, bool) for entry in candidates) else None


def _check(values: Mapping[Any, Any], path: tuple[str | int, ...]) -> None:
    for name, value in values.items():
        if not isinstance(name, str):
            raise wrong_type("a name", name, *path, str(name))
        if is_nested(value):
            _check(value, (*path, name))
            continue
        _check_range(value, (*path, name))


def _check_range(value: Any, path: tuple[str | int, ...]) -> None:
    try:
        parse_range(value)
    except ValidationError as failure:
        # A nested model's error reaches the outer model as a fault, so that its path is kept.
        from gangline.config.complaint import complaints_of  # noqa: PLC0415 - the two modules need one another

        first = complaints_of(failure, value)[0]
        raise fault(first.code, first.text, *path, *first.path) from failure


def find_uncounted(values: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Returns the path of the first range without a `count`. A grid cannot list its points without one."""
    for path, value_range in ranges_of(values):
        if not isinstance(value_range, Const | Categorical) and value_range.count is None:
            return path
    return None


class Grid:
    """Computes the points of a grid. They are numbered from 1; the hyperparameter that was written last changes
    fastest."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._axes = list(ranges_of(values))
        self._empty = _skeleton(values)

    @property
    def num_points(self) -> int:
        return prod(axis.num_points for _, axis in self._axes)

    def point(self, number: int) -> dict[str, Any]:
        place, point = number - 1, _copy(self._empty)
        # The last axis is the lowest digit of the number, so it changes fastest.
        for path, axis in reversed(self._axes):
            place, index = divmod(place, axis.num_points)
            target = point
            for name in path[:-1]:
                target = target[name]
            target[path[-1]] = axis.point(index)
        return point


def _skeleton(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keeps the order of the names, which filling from the last axis would reverse."""
    return {name: _skeleton(value) if is_nested(value) else None for name, value in values.items()}


def _copy(skeleton: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) if isinstance(value, Mapping) else value for name, value in skeleton.items()}
