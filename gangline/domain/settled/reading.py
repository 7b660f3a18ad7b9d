"""PURE: makes the settled record from a stored text, from the values of a JSON document, or from a checked model.

Submit has checked the values. A configuration of another version may lack keys or have more of them, and a script off
the cluster passes only some. So reading never fails: a missing value, a null and a value of another type are the
default, and an unknown key is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache, partial
from operator import itemgetter
from types import UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from gangline.domain.failure import LogRule
from gangline.domain.settled.record import Settled, SettledParallelism, SettledVariables
from gangline.domain.settled.searcher import UNITS, SettledLength

# Returns the value in the form of the record; None for a value that has another type.
_Rule = Callable[[Any], Any]


def load_document(config_json: str) -> dict[str, Any]:
    """Returns a stored configuration, or the settings of a template, as they were written; empty for an empty text.
    Raises ValueError for a text that is no JSON."""
    document = json.loads(config_json or "{}")
    return document if isinstance(document, dict) else {}


def with_values(config_json: str, values: Mapping[tuple[str, ...], Any]) -> str:
    """Returns a stored configuration with other values at some paths; the same text where it has them already.
    A section that is no mapping, which `settle` reads as its defaults, gives way to one."""
    document = load_document(config_json)
    is_changed = False
    for path, value in values.items():
        section = document
        for key in path[:-1]:
            if not isinstance(section.get(key), dict):
                section[key] = {}
            section = section[key]
        is_changed = is_changed or path[-1] not in section or section[path[-1]] != value
        section[path[-1]] = value
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) if is_changed else config_json


def settle(config_json: str, *sections: str) -> Settled:
    """Returns the record of a stored configuration; all defaults for a text that is no JSON. sections: as for
    `settle_values`."""
    try:
        document = load_document(config_json)
    except (ValueError, RecursionError):
        return Settled()
    return settle_values(document, *sections)


def settle_values(values: Any, *sections: str) -> Settled:
    """Returns the record of a document. values: a mapping, or a model with the names of the configuration; all defaults
    for another value.

    sections: the keys of a mapping that are read, which lists of many experiments name; all keys without any.
    """
    if sections:
        values = {key: values.get(key) for key in sections}
    return _read(Settled, values) or Settled()


def _read(record: Any, value: Any) -> Any:
    """Returns the record of a mapping or a model; None for another value."""
    if record in _LONG_FORMS:
        value = _LONG_FORMS[record](value)
    if not isinstance(value, Mapping):
        # pydantic's models have it. Most programs that settle a configuration do not load pydantic.
        return _copy(record, vars(value)) if hasattr(value, "model_fields_set") else None
    fields, read = _fields_of(record), []
    given_values = map(value.get, fields.names)
    columns = zip(given_values, fields.plain_types, fields.rules, fields.defaults, strict=True)
    for given, plain_type, rule, default in columns:
        if given.__class__ is plain_type:
            read.append(given)
        else:
            settled = None if given is None else rule(given)
            read.append(default if settled is None else settled)
    return record(*read)


def _copy(record: Any, values: Mapping[str, Any]) -> Any:
    """Returns the record of a model, whose values have their types. The leader calls it for each submit."""
    fields = _fields_of(record)
    copied = list(fields.pick(values))
    for place in fields.structured:
        if copied[place] is not None:
            copied[place] = fields.rules[place](copied[place])
    return record(*copied)


class _Fields(NamedTuple):
    """The fields of a record, in their order."""

    names: tuple[str, ...]
    rules: tuple[_Rule, ...]
    plain_types: tuple[Any, ...]  # type of values that need no rule
    defaults: tuple[Any, ...]
    structured: tuple[int, ...]  # places of the fields whose values have another form in a model
    pick: Callable[[Mapping[str, Any]], Iterable[Any]]  # returns the values of all fields


@cache
def _fields_of(record: Any) -> _Fields:
    annotations = get_type_hints(record)
    names, rules, default = tuple(annotations), tuple(map(_rule_of, annotations.values())), record()
    return _Fields(
        names,
        rules,
        tuple(map(_PLAIN_TYPES.get, rules)),
        tuple(getattr(default, name) for name in names),
        tuple(place for place, rule in enumerate(rules) if rule not in _PLAIN_TYPES and rule is not _any),
        itemgetter(*names) if len(names) > 1 else lambda values: (values[names[0]],),
    )


def _rule_of(annotation: Any) -> _Rule:
    """Returns the rule for a field of a record."""
    origin = get_origin(annotation) or annotation
    if origin in _RULES:
        return _RULES[origin]
    if origin is UnionType:
        options = [_rule_of(option) for option in get_args(annotation) if option is not type(None)]
        return options[0] if len(options) == 1 else partial(_one_of, options)
    if origin is Literal:
        return partial(_choice, get_args(annotation))
    if origin is tuple:
        return partial(_items, _rule_of(get_args(annotation)[0]))
    if is_dataclass(origin) or hasattr(origin, "_fields"):
        return partial(_read, origin)
    return partial(_member, origin)


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None


def _any(value: Any) -> Any:
    return value


def _one_of(rules: list[_Rule], value: Any) -> Any:
    return next((read for rule in rules if (read := rule(value)) is not None), None)


def _items(rule: _Rule, value: Any) -> tuple[Any, ...] | None:
    if not isinstance(value, list | tuple):
        return None
    items = tuple(map(rule, value))
    return None if None in items else items


def _choice(options: tuple[Any, ...], value: Any) -> Any:
    return value if value in options else None


def _member(members: type[StrEnum], value: Any) -> StrEnum | None:
    return members.__members__.get(value.upper()) if isinstance(value, str) else None


def _length(value: Any) -> SettledLength | None:
    """Reads a mapping with exactly one unit. A bare number counts batches."""
    if (number := _int(value)) is not None:
        return SettledLength("batches", number)
    values = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    given = [(unit, values[unit]) for unit in UNITS if values.get(unit) is not None]
    return SettledLength(*given[0]) if len(given) == 1 and _int(given[0][1]) is not None else None


_RULES: dict[Any, _Rule] = {
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    Mapping: _mapping,
    Any: _any,
    SettledLength: _length,
}
_PLAIN_TYPES: dict[_Rule, type[Any]] = {_bool: bool, _int: int, _float: float, _str: str, _mapping: dict}


def _of_parallelism(value: Any) -> Any:
    return {"strategy": value} if isinstance(value, str) else value


def _of_variables(value: Any) -> Any:
    """Lets one list apply to all kinds. `gpu` is the older name of `cuda`."""
    if isinstance(value, list):
        return {"cpu": value, "cuda": value}
    return {"cuda": value["gpu"], **value} if isinstance(value, dict) and "gpu" in value else value


def _of_log_rule(value: Any) -> Any:
    """Reads the older form of an action: {type: cancel_retries}."""
    action = value.get("action") if isinstance(value, dict) else None
    return {**value, "action": action.get("type")} if isinstance(action, dict) else value


# Sections with a shorter or an older form.
_LONG_FORMS: dict[type[Any], Callable[[Any], Any]] = {
    SettledParallelism: _of_parallelism,
    SettledVariables: _of_variables,
    LogRule: _of_log_rule,
}
