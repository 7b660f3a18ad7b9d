"""Command-line flags and environment texts for the fields of a settings model.

Owns the names (`etcd.endpoints` is `--etcd-endpoints`) and the parsing of texts: lists as a,b and mappings as k=v,k=v.
Lists and mappings of models, such as tables of pools, can be set in the file only. Called by `settings.py`.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Union, get_args, get_origin

from pydantic import BaseModel

from gangline.errors import GanglineError, invalid
from services.common.setting.setting_error import Layer, nearest


@dataclass(frozen=True, slots=True)
class Flag:
    """Describes one flag."""

    path: tuple[str, ...]  # the field's place in the model
    shape: str  # "list", "map", "bool" or "text"
    help: str

    @property
    def name(self) -> str:
        return "--" + "-".join(self.path).replace("_", "-")

    def parse(self, text: str, origin: str) -> Any:
        """Splits texts of lists and mappings; the model parses everything else."""
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if self.shape == "list":
            return parts
        if self.shape == "map":
            if any("=" not in part for part in parts):
                raise invalid("settings.invalid", f"{origin} {text!r} is not of the form name=value,name=value")
            return dict(part.split("=", 1) for part in parts)
        return text


def flags_of(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[Flag]:
    """Yields every field that a text can set, with nested models unfolded."""
    for name, field in model.model_fields.items():
        annotation = _without_none(field.annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from flags_of(annotation, (*path, name))
        else:
            shape = _shape(annotation)
            if shape:
                yield Flag((*path, name), shape, field.description or "")


def parse_flags(model: type[BaseModel], program: str, arguments: Sequence[str]) -> tuple[Layer, Path | None]:
    """Returns the given flags, and the file that `--settings` names."""
    parser = _Parser(prog=program, allow_abbrev=False)
    parser.add_argument("--settings", type=Path, metavar="FILE", help="TOML file with settings")
    flags = {flag.name: flag for flag in flags_of(model)}
    for flag in flags.values():
        action: Any = argparse.BooleanOptionalAction if flag.shape == "bool" else "store"
        parser.add_argument(flag.name, action=action, default=None, help=flag.help or None)
    given, unknown = parser.parse_known_args(list(arguments))
    if unknown:
        raise _unknown_flag(unknown[0], [*flags, "--settings"], program)
    values: dict[str, Any] = {}
    for flag in flags.values():
        value = getattr(given, flag.name[2:].replace("-", "_"))
        if value is not None:
            value_at(values, flag.path, value if flag.shape == "bool" else flag.parse(value, flag.name))
    return Layer("the flags", values), given.settings


def value_at(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Sets a nested value."""
    for part in path[:-1]:
        values = values.setdefault(part, {})
    values[path[-1]] = value


def _unknown_flag(given: str, flags: Sequence[str], program: str) -> GanglineError:
    name = given.partition("=")[0]
    candidate = nearest(name, flags)
    hint = f"; did you mean {candidate}?" if candidate else ""
    return invalid("settings.unknown_flag", f"{name} is no flag of {program}{hint}")


def _shape(annotation: Any) -> str | None:
    origin = get_origin(annotation)
    inner = [argument for argument in get_args(annotation) if argument is not Ellipsis]
    has_models = any(
        isinstance(_without_none(argument), type) and issubclass(argument, BaseModel) for argument in inner
    )
    if origin in (list, tuple, set, frozenset):
        return None if has_models else "list"
    if origin in (dict, Mapping):
        return None if has_models else "map"
    return "bool" if annotation is bool else "text"


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        others = [argument for argument in get_args(annotation) if argument is not type(None)]
        return others[0] if len(others) == 1 else annotation
    return annotation


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise invalid("settings.invalid", f"{self.prog}: {message}")
