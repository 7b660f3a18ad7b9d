"""PURE: maps Determined's cluster files to settings of Gangline's services and to templates, and says what became of
each key.

The caller reads and writes the files. Values of a wrong type are named and left out, so that whatever can be taken over
is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from gangline.config.layer.template_check import check_template
from gangline.config.section import describe
from gangline.errors import GanglineError
from gangline.migrate.cluster_key import AGENT, MASTER, Fate
from gangline.migrate.cluster_source import ClusterSource, KeyPath, KeyResult

_LEVELS = {"trace": "debug", "debug": "debug", "info": "info", "warning": "warning", "warn": "warning",
           "error": "error", "fatal": "error", "panic": "error"}  # fmt: skip
_SCHEDULER_PORT = 8082
# As the agent's settings have them.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MOST_SLOTS = 1024
_FILE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,60}")
_OWN_FOLDER = "gangline"
_CONTAINER_KEYS = {
    "shm_size_bytes": ("resources", "shm_size"),
    "image": ("environment", "image"),
    "force_pull_image": ("environment", "force_pull_image"),
    "environment_variables": ("environment", "environment_variables"),
    "add_capabilities": ("environment", "add_capabilities"),
    "drop_capabilities": ("environment", "drop_capabilities"),
    "devices": ("resources", "devices"),
    "bind_mounts": ("bind_mounts",),
    "log_policies": ("log_policies",),
    "preemption_timeout": ("preemption_timeout",),
}
# By the type: the scheme of URLs, and the key with the name.
_OBJECT_STORES = {"s3": ("s3", "bucket"), "gcs": ("gs", "bucket"), "azure": ("az", "container")}
_SAVED = ("save_experiment_best", "save_trial_best", "save_trial_latest")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one service, or those of a template, by their keys."""

    name: str
    values: Mapping[str, Any]


def migrate_master(values: Mapping[str, Any]) -> tuple[list[Settings], list[KeyResult]]:
    """Returns the settings of scheduler and gateway, the templates, and what became of each key of a master.yaml."""
    source = ClusterSource("master.yaml", values, MASTER)
    storage_url = _storage_url(source)
    shared: dict[str, Any] = {"cluster_token_file": "/etc/gangline/cluster.token", "storage_url": storage_url}
    level = _log_level(source)
    if level:
        shared["log_level"] = level
    etcd = {"endpoints": ["127.0.0.1:2379"]}
    scheduler = {**shared, "admin_token_file": "/etc/gangline/admin.token"}
    interface = source.text("task_container_defaults", "dtrain_network_interface")
    if interface:
        scheduler["network_interface"] = interface
    scheduler |= {"etcd": etcd, "resource_pools": _pools(source)}
    gateway = {**shared, "database_url": _database_url(source)}
    port = source.number(1, 2**16 - 1, "port")
    if port is not None:
        gateway["http_listen"] = f"0.0.0.0:{port}"
    days = source.number(-1, 2**15 - 1, "retention_policy", "log_retention_days")
    if days is not None:
        gateway["log_retention_days"] = days
    gateway["etcd"] = etcd
    templates = _templates(source)
    _note_manager(source)
    source.note(("etcd",), Fate.DECIDE, "state is kept in etcd, which Determined does not use: set etcd.endpoints in "
                "scheduler.toml and gateway.toml")  # fmt: skip
    source.note_rest()
    return [Settings("scheduler.toml", scheduler), Settings("gateway.toml", gateway), *templates], source.entries


def migrate_agent(values: Mapping[str, Any]) -> tuple[list[Settings], list[KeyResult]]:
    """Returns the settings of an agent, and what became of each key of an agent.yaml."""
    source = ClusterSource("agent.yaml", values, AGENT)
    host = source.text("master_host")
    address = f"{_host(host or '127.0.0.1')}:{_SCHEDULER_PORT}"
    if not host:
        source.note(("master_host",), Fate.DECIDE, "absent: set scheduler_addresses to the hosts of the schedulers")
    agent: dict[str, Any] = {"cluster_token_file": "/etc/gangline/cluster.token", "scheduler_addresses": [address]}
    agent_id, pool = source.text("agent_id"), source.text("resource_pool")
    if agent_id and _ID.fullmatch(agent_id):
        agent["id"] = agent_id
    elif agent_id:
        source.note(("agent_id",), Fate.DECIDE, f"{agent_id!r}: an id has letters, digits, '.', '_' and '-' only, 63 "
                    "at most; without one the hostname applies")  # fmt: skip
    if pool:
        agent["pool"] = pool
    label = source.text("label")
    if label:
        agent["labels"] = {"label": label}
    slots = _slots(source)
    if slots:
        agent["slots"] = slots
    level = "debug" if source.get(bool, "debug") else _log_level(source)
    if level:
        agent["log_level"] = level
    source.note_rest()
    return [Settings("agent.toml", agent)], source.entries


def _slots(source: ClusterSource) -> str:
    """Returns the setting `slots`; empty for the default."""
    number, kind = source.number(0, _MOST_SLOTS, "artificial_slots"), source.text("slot_type")
    if number:
        return str(number)
    match kind:
        case "":
            return ""
        case "none":
            return "0"
        case "cpu":
            return "1"
        case "auto" | "cuda" | "gpu":
            return "auto"
        case "rocm":
            source.note(
                ("slot_type",), Fate.DECIDE, "AMD's GPUs are not found by themselves; set slots to their number"
            )
        case _:
            source.note(("slot_type",), Fate.DECIDE, f"{kind!r} is no kind of slots; set slots to auto or a number")
    return ""


def _log_level(source: ClusterSource) -> str:
    level = source.text("log", "level")
    if level and level.lower() not in _LEVELS:
        levels = ", ".join(dict.fromkeys(_LEVELS.values()))
        source.note(("log", "level"), Fate.DECIDE, f"{level!r} is no level; the services have {levels}")
    return _LEVELS.get((level or "").lower(), "")


def _pools(source: ClusterSource) -> list[dict[str, Any]]:
    """Returns the pools of scheduler.toml. A pool without a scheduler of its own has that of the resource manager."""
    common = _scheduler(source, ("resource_manager", "scheduler"))
    pools = source.values.get("resource_pools")
    names: dict[str, dict[str, Any]] = {}
    for index, pool in enumerate(pools if isinstance(pools, list) else ()):
        name = source.text("resource_pools", index, "pool_name") if isinstance(pool, Mapping) else None
        if not name or name in names:
            why = "is a second pool of this name" if name else "has no name"
            source.note(("resource_pools", index), Fate.DECIDE, f"it {why}, so it was left out")
            continue
        own = _scheduler(source, ("resource_pools", index, "scheduler"))
        names[name] = {"pool_name": name, "scheduler": own or common or _completed({})}
    if "default" not in names:
        names = {"default": {"pool_name": "default", "scheduler": common or _completed({})}, **names}
    return list(names.values())


_ALLOWED: dict[str, tuple[str, ...]] = {
    "type": ("priority", "fair_share", "round_robin"),
    "fitting_policy": ("best", "worst"),
}


def _scheduler(source: ClusterSource, path: KeyPath) -> dict[str, Any]:
    found: dict[str, Any] = {key: value for key in _ALLOWED if (value := source.text(*path, key))}
    for key in ("preemption", "allow_heterogeneous_fits"):
        flag = source.get(bool, *path, key)
        found |= {} if flag is None else {key: flag}
    priority = source.number(1, 99, *path, "default_priority")
    found |= {} if priority is None else {"default_priority": priority}
    for key, allowed in _ALLOWED.items():
        if found.get(key, allowed[0]) not in allowed:
            source.note((*path, key), Fate.DECIDE, f"{found.pop(key)!r} is none of {', '.join(allowed)}")
    if found.get("type") == "round_robin" and found.pop("preemption", False):
        source.note((*path, "preemption"), Fate.DECIDE, "a pool of type round_robin does not preempt")
    return _completed(found) if found else {}


def _completed(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a pool's scheduler with Determined's default where ours differs: `priority` preempts only where told."""
    scheduler = {"type": "priority", **found}
    if scheduler["type"] == "priority":
        scheduler.setdefault("preemption", False)
    return scheduler


def _note_manager(source: ClusterSource) -> None:
    kind = source.text("resource_manager", "type")
    if kind and kind != "agent":
        source.note(("resource_manager", "type"), Fate.DECIDE,
                    f"there is no {kind} here: install an agent on each GPU host, see docs/cluster.md")  # fmt: skip


def _storage_url(source: ClusterSource) -> str:
    """Returns the URL of a folder of our own, so that no file of either system is in the other's way."""
    section = "checkpoint_storage"
    kind = source.text(section, "type")
    if kind == "shared_fs":
        host_path, below = source.text(section, "host_path"), source.text(section, "storage_path")
        place = _joined(host_path or "", below or "") if host_path else ""
        return _own(source, place, "host_path")
    if kind == "directory":
        place = source.text(section, "container_path") or ""
        if place:
            source.note((section, "container_path"), Fate.DECIDE,
                        "taken over as a path of the hosts; mount the folder there, or change storage_url")  # fmt: skip
        return _own(source, place, "container_path")
    scheme, key = _OBJECT_STORES.get(kind, ("", ""))
    if scheme:
        bucket = source.text(section, key) or ""
        prefix = (source.text(section, "prefix") or "").strip("/")
        return _own(source, f"{scheme}://{_joined(bucket, prefix)}" if bucket else "", key)
    if kind:
        source.note((section, "type"), Fate.DECIDE, f"{kind!r} is no storage; set storage_url in both files")
        return _own(source, "", "")
    return _own(source, "", "type")


def _joined(place: str, below: str) -> str:
    """Returns the folder below another one; `below` may repeat the place."""
    place = place.rstrip("/") or ("/" if place.startswith("/") else "")
    if below.startswith(f"{place}/") or below == place:
        return below.rstrip("/")
    return f"{place}/{below.strip('/')}".rstrip("/") if below.strip("/") else place


def _own(source: ClusterSource, place: str, key: str) -> str:
    if "::" in place:
        source.note(("checkpoint_storage", key), Fate.DECIDE, "it has '::', which stands for chains of storages")
        place = ""
    elif not place and key:
        source.note(("checkpoint_storage", key), Fate.DECIDE, "absent: set storage_url to a place that all hosts reach")
    return f"{place.rstrip('/')}/{_OWN_FOLDER}" if place else f"/mnt/{_OWN_FOLDER}"


def _database_url(source: ClusterSource) -> str:
    """Returns the URL of a database of our own on the same server. libpq reads the password elsewhere."""
    host = source.text("db", "host")
    port, user = _port(source), source.text("db", "user")
    if not host:
        return "sqlite:////var/lib/gangline/gateway/gateway.db"
    options = {
        name: value
        for key, name in (("ssl_mode", "sslmode"), ("ssl_root_cert", "sslrootcert"))
        if (value := source.text("db", key))
    }
    who = f"{quote(user, safe='')}@" if user else ""
    where = f"{_host(host)}:{port}" if port else _host(host)
    return f"postgresql://{who}{where}/gangline" + (f"?{urlencode(options)}" if options else "")


def _port(source: ClusterSource) -> str:
    port = source.get(object, "db", "port")
    if port is None or (str(port).isdigit() and 0 < int(str(port)) < 2**16):
        return "" if port is None else str(port)
    source.note(("db", "port"), Fate.DECIDE, f"{describe(port)} is no port, so it was not taken over")
    return ""


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _templates(source: ClusterSource) -> list[Settings]:
    """Returns the templates of experiments: of all, and of pools with defaults of their own."""
    common = _container_template(source, ("task_container_defaults",))
    pool = source.text("resource_manager", "default_compute_resource_pool")
    if pool:
        common.setdefault("resources", {})["resource_pool"] = pool
    storage = {key: value for key in _SAVED if (value := source.get(int, "checkpoint_storage", key)) is not None}
    if storage:
        common["checkpoint_storage"] = storage
    templates = [Settings("template.yaml", common)] if common else []
    pools = source.values.get("resource_pools")
    for index, each in enumerate(pools if isinstance(pools, list) else ()):
        name = each.get("pool_name") if isinstance(each, Mapping) else None
        own = _container_template(source, ("resource_pools", index, "task_container_defaults"))
        if own and isinstance(name, str):
            own.setdefault("resources", {})["resource_pool"] = name
            # A name that is no name of a file gets the number of its pool.
            title = name if _FILE_NAME.fullmatch(name) else str(index)
            templates.append(Settings(f"template-{title}.yaml", own))
    return templates


def _container_template(source: ClusterSource, path: KeyPath) -> dict[str, Any]:
    """Returns a template of the defaults of containers. A value that an experiment's file would not accept is named and
    left out."""
    template: dict[str, Any] = {}
    for key, place in _CONTAINER_KEYS.items():
        value = source.get(object, *path, key)
        if value is None:
            continue
        if isinstance(value, Mapping) and key in ("environment_variables", "image") and "gpu" in value:
            value = {"cuda" if name == "gpu" else name: below for name, below in value.items()}
        single: dict[str, Any] = {place[0]: value if len(place) == 1 else {place[1]: value}}
        try:
            check_template(json.dumps(single))
        except (GanglineError, TypeError, ValueError) as error:
            why = error.message.splitlines()[0] if isinstance(error, GanglineError) else str(error)
            source.note((*path, key), Fate.DECIDE, f"not taken over: {why}")
            continue
        if len(place) == 1:
            template[place[0]] = value
        else:
            template.setdefault(place[0], {})[place[1]] = value
    if "bind_mounts" in template and "image" not in template.get("environment", {}):
        source.note((*path, "bind_mounts"), Fate.DECIDE, "not taken over: without an image a trial reads the paths of "
                    "the host itself; with one, set bind_mounts beside environment.image")  # fmt: skip
        del template["bind_mounts"]
    return template
