"""PURE: turns a refused setting into one line for the user: which key, from where, and the nearest known one.

Owns the wording only. Called by `settings.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from gangline.config.complaint import say_expectation
from gangline.errors import GanglineError, invalid

Path = Sequence[int | str]


@dataclass(frozen=True, slots=True)
class Layer:
    """Holds the settings of one origin."""

    name: str  # the origin as a user would call it
    values: Mapping[str, Any]


def nearest(word: str, words: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Returns the known word that this one was probably meant to be."""
    matches = difflib.get_close_matches(word, list(words), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def explain(model: type[BaseModel], error: ValidationError, layers: Sequence[Layer]) -> GanglineError:
    """Describes the first problem of a validation, because users fix one at a time."""
    problem = error.errors()[0]
    path = problem["loc"]
    key = ".".join(str(part) for part in path)
    origin = next((layer.name for layer in layers if _has(layer.values, path)), "the settings")
    if problem["type"] == "extra_forbidden":
        return _unknown_key(model, path, key, origin)
    if problem["type"] == "missing":
        flag = "--" + key.replace("_", "-").replace(".", "-")
        return invalid("settings.missing", f"{key} is not set; give {flag}, or set it in {layers[-1].name}")
    given = problem.get("input")
    return invalid("settings.invalid", f"{key} in {origin} cannot be {given!r}: {say_expectation(problem)}")


def _unknown_key(model: type[BaseModel], path: Path, key: str, origin: str) -> GanglineError:
    instead = getattr(model, "replaced", {}).get(key)
    if instead:
        return invalid("settings.unknown_key", f"{key} in {origin} is no setting any more; set {instead}")
    candidate = nearest(str(path[-1]), _known_keys(model, path[:-1]))
    hint = f"; did you mean {'.'.join([*map(str, path[:-1]), candidate])}?" if candidate else ""
    return invalid("settings.unknown_key", f"{key} in {origin} is no setting{hint}")


def _known_keys(model: Any, path: Path) -> list[str]:
    """Returns the field names at this place of the model. The walk passes through mappings and sequences of models."""
    for part in path:
        models = [item for item in _models(model) if isinstance(part, str) and part in item.model_fields]
        model = models[0].model_fields[str(part)].annotation if models else model
    return [name for item in _models(model) for name in item.model_fields]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if get_origin(annotation) is None:
        return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
    return [model for argument in get_args(annotation) for model in _models(argument)]


def _has(values: Any, path: Path) -> bool:
    for part in path:
        if isinstance(values, Mapping) and part in values:
            values = values[part]
        elif not isinstance(values, list | tuple) or not isinstance(part, int) or part >= len(values):
            return False
        else:
            values = values[part]
    return True
