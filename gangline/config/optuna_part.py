"""PURE: `searcher.sampler` and `searcher.pruner`: the name of a class of Optuna, with arguments.

Owns their form. The scheduler, which has Optuna, checks the names and the arguments when it makes the searcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gangline.config.section import describe, fault, wrong_type

# Arguments of Optuna's samplers and pruners are a few numbers.
_MAX_ARGUMENTS = 32
_MAX_ITEMS = 64
_PLAIN = (bool, int, float, str, type(None))
_WRAPPED = "wrapped_pruner"


def read_part(value: Any, key: str, default_name: str | None = None) -> dict[str, Any]:
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
            part[argument] = read_part(given, argument)
        elif not _is_plain(given):
            raise wrong_type("a number, a string, a boolean or a list of them", given, key, argument)
    return {"name": name, **part}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= _MAX_ITEMS and all(isinstance(item, _PLAIN) for item in value)
    return isinstance(value, _PLAIN)
