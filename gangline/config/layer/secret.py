"""PURE: secrets in a configuration, which no view shows.

Owns the places that may hold secrets. A value is one by the name of its key (secret_name.py), or by a name that the
user lists in `environment.secret_names`; of any other text the secret parts of URLs are masked. The gateway masks the
configurations that it reads, and the leader puts the values back where a user submits a masked configuration again, as
in a fork.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from gangline.config.layer.secret_name import MASK, is_secret, mask_inside
from gangline.domain.experiment import Experiment, Project, ProjectDefaults, Template, Workspace
from gangline.errors import invalid

# Sections whose values may be secrets. Hyperparameters are shown with each trial, so they are none.
SECTIONS = (
    "data", "environment", "checkpoint_storage", "integrations", "tensorboard_storage", "data_layer", "internal",
    "security", "slurm", "pbs",
)  # fmt: skip
R = TypeVar("R", Experiment, Template)
D = TypeVar("D", Workspace, Project)
_VARIABLES = "environment_variables"
_LISTED = ("environment", "secret_names")
_NONE: frozenset[str] = frozenset()
_Path = tuple[str, ...]
# Receives the place of a text, the text, and whether all of it is a secret. Returns what takes its place.
_Change = Callable[[_Path, str, bool], str]


@lru_cache(maxsize=256)
def mask_secrets(config_json: str) -> str:
    """Returns the configuration with MASK for the text of each secret; the same text if there is none."""
    is_changed = False

    def mask(_path: _Path, text: str, is_whole: bool) -> str:
        nonlocal is_changed
        masked = _mask(text, is_whole)
        is_changed = is_changed or masked != text
        return masked

    masked = _walk_sections(_load(config_json), mask)
    return json.dumps(masked) if is_changed else config_json


def _mask(text: str, is_whole: bool) -> str:
    return MASK if is_whole and text else mask_inside(text)


def hide_secrets(record: R) -> R:
    """Returns the record with a masked configuration."""
    masked = mask_secrets(record.config_json)
    return record if masked is record.config_json else replace(record, config_json=masked)


def hide_default_secrets(record: D) -> D:
    """Returns the workspace or project with a masked storage in its defaults."""
    storage_json = record.defaults.checkpoint_storage_json
    config_json = as_config(record.defaults)
    masked = mask_secrets(config_json)
    if not storage_json or masked is config_json:
        return record
    hidden = json.dumps(json.loads(masked)["checkpoint_storage"])
    return replace(record, defaults=replace(record.defaults, checkpoint_storage_json=hidden))


def restore_default_secrets(storage_json: str, present: ProjectDefaults) -> str:
    """Returns the section with the present value for each MASK. Raises GanglineError `config.masked`."""
    if MASK not in storage_json:
        return storage_json
    restored = restore_secrets(as_config(ProjectDefaults(checkpoint_storage_json=storage_json)), [as_config(present)])
    return json.dumps(json.loads(restored)["checkpoint_storage"])


def as_config(defaults: ProjectDefaults) -> str:
    """Returns the configuration that has the storage of these defaults, and nothing else."""
    return f'{{"checkpoint_storage": {defaults.checkpoint_storage_json or "{}"}}}'


def restore_secrets(config_json: str, sources: Sequence[str]) -> str:
    """Returns the configuration with the value of the first source for each MASK.

    sources: configurations that may have the value at the same place. Raises GanglineError `config.masked` for a MASK
    whose value none of them has.
    """
    if MASK not in config_json:
        return config_json
    known = [secrets for secrets in map(_find_secrets, sources) if secrets]

    def restore(path: _Path, text: str, is_whole: bool) -> str:
        if MASK not in text:
            return text
        for secrets in known:
            for place in (path, _without_kind(path)):
                masked, secret = secrets.get(place, ("", ""))
                if masked == text:
                    return secret
        if not (is_whole and text == MASK) and f"://{MASK}@" not in text and f"={MASK}" not in text:
            return text
        where = ".".join(path)
        raise invalid("config.masked", f"{where}: {MASK} stands for a value that is not shown; write the value itself")

    return json.dumps(_walk_sections(_load(config_json), restore))


def _load(config_json: str) -> dict[str, Any]:
    values = json.loads(config_json or "{}")
    return values if isinstance(values, dict) else {}


def _find_secrets(config_json: str) -> dict[_Path, tuple[str, str]]:
    """Returns each text that has a secret, masked and as it is, by its place."""
    secrets: dict[_Path, tuple[str, str]] = {}

    def note(path: _Path, text: str, is_whole: bool) -> str:
        masked = _mask(text, is_whole)
        if is_whole or masked != text:
            secrets[path] = masked, text
            secrets.setdefault(_without_kind(path), (masked, text))
        return text

    _walk_sections(_load(config_json), note)
    return secrets


def _without_kind(path: _Path) -> _Path:
    """Returns the place of an environment variable without the kind of slot, which one form of the list leaves out."""
    return (*path[:2], path[-1]) if _VARIABLES in path else path


def _walk_sections(values: Mapping[str, Any], change: _Change) -> dict[str, Any]:
    walk = _Walk(change, _listed_names(values))
    return {
        name: walk.value(value, (name,), inside=False) if name in SECTIONS else value for name, value in values.items()
    }


def _listed_names(values: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names that the user has listed, in lower case."""
    environment = values.get("environment")
    names = environment.get("secret_names") if isinstance(environment, dict) else None
    return frozenset(name.lower() for name in names if isinstance(name, str)) if isinstance(names, list) else _NONE


@dataclass(frozen=True, slots=True)
class _Walk:
    """Applies `change` to the texts of a section."""

    change: _Change
    names: frozenset[str]  # further names of secrets, in lower case

    def value(self, value: Any, path: _Path, *, inside: bool) -> Any:
        """Returns the value with its texts changed. inside: whether a key above names a secret."""
        match value:
            case dict():
                return {name: self._entry(name, below, value, path, inside=inside) for name, below in value.items()}
            case list() if path == _LISTED:
                return value
            case list() if _VARIABLES in path:
                return [self._assignment(entry, path, inside=inside) for entry in value]
            case list():
                return [self.value(entry, (*path, str(index)), inside=inside) for index, entry in enumerate(value)]
            case str():
                return self.change(path, value, inside)
            case _:
                return value

    def _entry(self, name: str, value: Any, siblings: Mapping[str, Any], path: _Path, *, inside: bool) -> Any:
        if not isinstance(value, str | dict | list):
            return value
        # Kubernetes writes a variable as {name: NAME, value: VALUE}.
        named = siblings.get("name") if name == "value" else name
        is_named = inside or (isinstance(named, str) and self._is_secret(named))
        return self.value(value, (*path, name), inside=is_named)

    def _assignment(self, entry: Any, path: _Path, *, inside: bool) -> Any:
        """Changes an entry NAME=VALUE, whose place is its name: a merge with other lists moves it."""
        if not isinstance(entry, str):
            return entry
        name, sign, text = entry.partition("=")
        return f"{name}={self.change((*path, name), text, inside or self._is_secret(name))}" if sign else entry

    def _is_secret(self, name: str) -> bool:
        return is_secret(name) or name.lower() in self.names
