"""PURE: secrets in a configuration, which no view shows.

Owns the rule by which a value counts as a secret: by the words of its key's name. The gateway masks the configurations
that it reads, and the leader puts the values back where a user submits a masked configuration again, as in a fork.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

from gangline.domain.experiment import Experiment, Project, ProjectDefaults, Template, Workspace
from gangline.errors import invalid

MASK = "******"
# Sections whose values may be secrets. Hyperparameters are shown with each trial, so they are none.
SECTIONS = ("data", "environment", "checkpoint_storage", "integrations")
_WORDS = {
    "auth",
    "apikey",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "secret",
    "secrets",
    "token",
}
_PAIRS = {("api", "key"), ("access", "key"), ("private", "key"), ("account", "key")}
R = TypeVar("R", Experiment, Template)
D = TypeVar("D", Workspace, Project)
_VARIABLES = "environment_variables"
_Path = tuple[str, ...]
_Change = Callable[[_Path, str], str]
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether a key, or an environment variable, of this name holds a secret. `tokenizer` and `max_tokens` do not."""
    words = [word.lower() for word in _WORD.findall(name)]
    return bool(_WORDS.intersection(words)) or any(pair in _PAIRS for pair in pairwise(words))


@lru_cache(maxsize=256)
def mask_secrets(config_json: str) -> str:
    """Returns the configuration with MASK for the text of each secret; the same text if there is none."""
    is_masked = False

    def mask(_path: _Path, text: str) -> str:
        nonlocal is_masked
        is_masked = is_masked or bool(text)
        return MASK if text else text

    masked = _walk_sections(_load(config_json), mask)
    return json.dumps(masked) if is_masked else config_json


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

    def restore(path: _Path, text: str) -> str:
        if text != MASK:
            return text
        for secrets in known:
            for place in (path, _without_kind(path)):
                if place in secrets:
                    return secrets[place]
        where = ".".join(path)
        raise invalid("config.masked", f"{where}: {MASK} stands for a value that is not shown; write the value itself")

    return json.dumps(_walk_sections(_load(config_json), restore))


def _load(config_json: str) -> dict[str, Any]:
    values = json.loads(config_json or "{}")
    return values if isinstance(values, dict) else {}


def _find_secrets(config_json: str) -> dict[_Path, str]:
    secrets: dict[_Path, str] = {}

    def note(path: _Path, text: str) -> str:
        secrets[path] = text
        secrets.setdefault(_without_kind(path), text)
        return text

    _walk_sections(_load(config_json), note)
    return secrets


def _without_kind(path: _Path) -> _Path:
    """Returns the place of an environment variable without the kind of slot, which one form of the list leaves out."""
    return (*path[:2], path[-1]) if _VARIABLES in path else path


def _walk_sections(values: Mapping[str, Any], change: _Change) -> dict[str, Any]:
    return {
        name: _walk(value, (name,), change, inside=False) if name in SECTIONS else value
        for name, value in values.items()
    }


def _walk(value: Any, path: _Path, change: _Change, *, inside: bool) -> Any:
    """Returns the value with `change` applied to the text of each secret. inside: whether a key above names one."""
    match value:
        case dict():
            return {
                name: _walk(below, (*path, name), change, inside=inside or is_secret(name))
                for name, below in value.items()
            }
        case list() if _VARIABLES in path:
            return [_walk_assignment(entry, path, change) for entry in value]
        case list():
            return [_walk(entry, (*path, str(index)), change, inside=inside) for index, entry in enumerate(value)]
        case str() if inside:
            return change(path, value)
        case _:
            return value


def _walk_assignment(entry: Any, path: _Path, change: _Change) -> Any:
    """Does the same for an entry NAME=VALUE, whose place is its name: a merge with other lists moves it."""
    if not isinstance(entry, str):
        return entry
    name, sign, text = entry.partition("=")
    return f"{name}={change((*path, name), text)}" if sign and is_secret(name) else entry
