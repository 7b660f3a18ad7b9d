"""PURE: warns of settings that are valid and look like a mistake: hyperparameters that resemble a range and are none.

The settings are carried out as written, because each of them can be meant. Every warning says what is carried out and
what to write for the other meaning. Called by gangline.config.parse.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from gangline.config.experiment import ExperimentConfig
from gangline.config.hyperparameter import Const, Log, is_nested, parse_range, ranges_of
from gangline.config.section import clip

# Pairs of keys that name the ends of a range, ours first.
_ENDS = (("minval", "maxval"), ("min", "max"), ("low", "high"), ("lower", "upper"))
_CHOICES = ("vals", "values", "choices")
_KEYS_OF_RANGES = {key for pair in _ENDS for key in pair} | {*_CHOICES, "base", "count"}
# No hyperparameter of a training lies beyond this power of ten, or below its inverse.
_MOST_DECIMALS = 30
_MOST_WARNINGS = 5
# A search draws no values of its own for `single`, and the user's process chooses them for `custom`.
_WITHOUT_DRAWING = ("single", "custom")


def find_doubtful(config: ExperimentConfig) -> list[str]:
    """Returns a warning for each hyperparameter that resembles a range and is none, and for a grid of one point."""
    values, searcher = config.hyperparameters, config.searcher.name
    warnings = list(_of_hyperparameters(values, ("hyperparameters",), is_drawn=searcher not in _WITHOUT_DRAWING))
    if len(warnings) > _MOST_WARNINGS:
        rest = f"hyperparameters: {len(warnings) - _MOST_WARNINGS} more look like ranges and are none"
        warnings = [*warnings[:_MOST_WARNINGS], rest]
    if searcher == "grid" and all(isinstance(axis, Const) for _, axis in ranges_of(values)):
        warnings.append(
            "searcher: this grid has one trial, because no hyperparameter has a range; write one as "
            "{type: categorical, vals: [0.1, 0.01]}"
        )
    return warnings


def _of_hyperparameters(values: Mapping[str, Any], path: tuple[str, ...], *, is_drawn: bool) -> Iterator[str]:
    """is_drawn: whether the searcher draws a value for each trial, so a list may be meant as a choice."""
    for name, value in values.items():
        place = ".".join((*path, name))
        if not is_nested(value):
            text = _list_like_choices(value) if is_drawn and isinstance(value, list) else _power_like_value(value)
        elif (advice := _range_meant(value)) is None:
            yield from _of_hyperparameters(value, (*path, name), is_drawn=is_drawn)
            continue
        else:
            text = (
                f"has no type, so it is a group of the hyperparameters {', '.join(value)}; for a range write {advice}"
            )
        if text is not None:
            yield f"{place}: {text}"


def _range_meant(group: Mapping[str, Any]) -> str | None:
    """Returns the range that a group without a type resembles; None for a group that resembles none."""
    if not group or not _KEYS_OF_RANGES.issuperset(group):
        return None
    for key in _CHOICES:
        if isinstance(group.get(key), list):
            return f"{{type: categorical, vals: {_show(group[key])}}}"
    for low, high in _ENDS:
        ends = group.get(low), group.get(high)
        if all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
            name = "int" if all(isinstance(end, int) for end in ends) else "double"
            return f"{{type: {name}, minval: {_show(ends[0])}, maxval: {_show(ends[1])}}}"
    return None


def _power_like_value(value: Any) -> str | None:
    value_range = parse_range(value)
    if not isinstance(value_range, Log) or not value_range.base > 1:
        return None
    low, high, base = value_range.minval, value_range.maxval, value_range.base
    decimals = [end * math.log10(base) for end in (low, high)]
    if not (low > 0 and high <= 1) and max(map(abs, decimals)) <= _MOST_DECIMALS:
        return None
    text = f"minval and maxval are exponents of base {base:g}, so values are drawn from "
    text += f"{_power(decimals[0])} to {_power(decimals[1])}"
    if low <= 0:
        return text
    ends = f"minval: {math.log(low, base):.4g}, maxval: {math.log(high, base):.4g}"
    return f"{text}; for values from {low:g} to {high:g} write {ends}"


def _list_like_choices(values: list[Any]) -> str | None:
    if len(values) < 2:
        return None
    choice = f"{{type: categorical, vals: {_show(values)}}}"
    return (
        f"every trial gets the whole list; for one of its values in each trial write {choice}, and "
        "{type: const, val: ...} where the list is meant"
    )


def _power(decimals: float) -> str:
    return f"{10**decimals:.4g}" if abs(decimals) <= _MOST_DECIMALS else f"1e{decimals:+.0f}"


def _show(value: Any) -> str:
    return clip(json.dumps(value, ensure_ascii=False, default=str))
