"""Reads Determined's cluster files and writes the settings files of Gangline's services, with a report on each key.

`cluster_settings.py` decides; this module reads and writes. It overwrites nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gangline.config.yaml_document import parse_document
from gangline.errors import GanglineError, invalid
from gangline.migrate.cluster_settings import Settings, migrate_agent, migrate_master
from gangline.migrate.cluster_source import KeyResult
from gangline.text_file import read_text

_HEADER_BY_FILE = {
    "scheduler.toml": "/etc/gangline/scheduler.toml on the hosts of the schedulers",
    "gateway.toml": "/etc/gangline/gateway.toml on the host of the gateway",
    "agent.toml": "/etc/gangline/agent.toml on each GPU host",
}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Migration:
    """The result of a migration of cluster files."""

    text_by_name: Mapping[str, str]  # texts of the files to write
    entries: Sequence[KeyResult]  # result for each key


def migrate_cluster(master: Path, agent: Path | None = None) -> Migration:
    """Returns the files for a cluster like Determined's. Raises GanglineError `migrate.no_file`, `config.*`,
    `migrate.no_mapping` for files that cannot be read."""
    settings, entries = migrate_master(_read(master))
    if agent is not None:
        more_settings, more_entries = migrate_agent(_read(agent))
        settings, entries = [*settings, *more_settings], [*entries, *more_entries]
    return Migration({each.name: _render(each) for each in settings}, entries)


def write_files(migration: Migration, folder: Path) -> list[Path]:
    """Writes the files into a folder, which is made where it does not exist. Raises GanglineError `migrate.exists`
    before it writes anything, where one of them is there, and `migrate.unwritable`."""
    paths = [folder / name for name in migration.text_by_name]
    there = [path for path in paths if path.exists() or path.is_symlink()]
    if there:
        raise invalid(
            "migrate.exists", f"{there[0]} exists, and nothing was written; move it away, or name another folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, migration.text_by_name.values(), strict=True):
            # Variables of a template may hold secrets.
            mode = 0o600 if path.suffix == ".yaml" else 0o644
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise invalid("migrate.unwritable", f"{folder}: {error.strerror}") from error
    return paths


def _read(path: Path) -> Mapping[str, Any]:
    text = read_text(path)
    try:
        values = parse_document(text).values
    except GanglineError as error:
        raise invalid(error.code, f"{path}: {error.message}") from error
    if values is None:
        return {}
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise invalid("migrate.no_mapping", f"{path} holds no mapping of settings; give Determined's master.yaml")
    return values


def _render(settings: Settings) -> str:
    if settings.name.endswith(".yaml"):
        name = settings.name.removesuffix(".yaml").replace("template", "determined", 1)
        head = f"# gangline template set {name} {settings.name}"
        use = f"# gangline workspace edit NAME --default-template {name}"
        return f"{head}\n{use}\n{yaml.safe_dump(dict(settings.values), sort_keys=False, allow_unicode=True)}"
    lines = [f"# {_HEADER_BY_FILE[settings.name]}. Made from Determined's files by gangline migrate cluster."]
    plain = {key: value for key, value in settings.values.items() if key not in ("etcd", "resource_pools")}
    lines += [f"{key} = {_toml(value)}" for key, value in plain.items()]
    if "etcd" in settings.values:
        lines += ["", "[etcd]", *(f"{key} = {_toml(value)}" for key, value in settings.values["etcd"].items())]
    for pool in settings.values.get("resource_pools", ()):
        lines += ["", "[[resource_pools]]", *(f"{key} = {_toml(value)}" for key, value in pool.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Returns a value of TOML. A text of JSON is one of TOML as well, as long as it has no control characters."""
    match value:
        case bool() | int() | float():
            return json.dumps(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Mapping():
            return "{ " + ", ".join(f"{_key(key)} = {_toml(below)}" for key, below in value.items()) + " }"
        case _:
            return "[" + ", ".join(map(_toml, value)) + "]"


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _toml(key)
