"""The settings that an operator can give an agent.

services/common/setting/settings.py documents where values are read from.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from services.common.setting.settings import ServiceSettings, check_names

# An agent's id is part of etcd keys and slot ids, so its characters are limited.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# The ids of the accounts for owners. No common software gives ids from 2000200001 to 2147352575: systemd uses 60001 to
# 65519 (homed, DynamicUser), 524288 to 1879048191 (nspawn) and 2147352576 to 2147418111 (foreign images); Debian gives
# users up to 64999 and subordinate ids (subuid) from 100000 to 600100000; SSSD and FreeIPA map 200000 to 2000200000;
# LXD uses 1000000 to 1001000000, OpenShift 1000000000 to 1999999999. It is longer than the number of users of a
# cluster, MAX_USERS in services/scheduler/transition/account/user_change.py, because ids are never given again.
DEFAULT_UIDS = "2001000000-2001099999"
# Numbers beyond 31 bits are negative for some programs, and the last ones mean no user.
_LAST_UID = 2**31 - 1


class AgentSettings(ServiceSettings):
    service: ClassVar[str] = "agent"

    scheduler_addresses: list[str] = Field(
        default_factory=lambda: ["127.0.0.1:8082"], min_length=1, description="host:port of the schedulers, any order"
    )
    id: str = Field(default_factory=socket.gethostname, description="unique in the cluster; the hostname by default")
    slots: str = Field(default="auto", description="auto for the GPUs, or N for N artificial CPU slots")
    pool: str = Field(default="default", min_length=1, description="resource pool that the slots belong to")
    labels: dict[str, str] = Field(default_factory=dict, description="k=v,k=v")
    state_dir: Path = Field(default=Path("/var/lib/gangline/agent"), description="journal; one agent at a time")
    warm: bool = Field(default=True, description="keep warm processes, from which trials start in a moment")
    kill_runners_on_exit: bool = Field(
        default=False, description="SIGTERM preempts the running trials before the agent ends; else they run on"
    )
    exit_grace_seconds: float = Field(default=10.0, ge=0, description="for that: time until what is left is killed")
    keep_ended: int = Field(default=10, ge=0, description="folders of ended allocations kept for debugging")
    code_cache_mb: float = Field(
        default=2048.0, ge=0, description="MB of code archives kept here; the least recently used are removed first"
    )
    code_cache_days: float = Field(default=30.0, ge=0, description="an archive unused for so long is removed")
    rank_user: str = Field(
        default="", description="user as which the ranks run; by default one for each owner, if the agent is root"
    )
    rank_users: dict[str, str] = Field(
        default_factory=dict, description="owner=user,owner=user: users for the ranks of single owners"
    )
    rank_uids: str = Field(
        default=DEFAULT_UIDS,
        description="user ids of the accounts for owners; empty to run ranks as the agent's own user",
    )
    shared_notebooks: bool = Field(
        default=False, description="start notebooks also where trials of other users could open them"
    )
    rank_memory_mb: int = Field(default=0, ge=0, description="MiB of host memory that a rank may use; 0 for no limit")
    rank_processes: int = Field(default=0, ge=0, description="processes and threads of a rank; 0 for no limit")
    container_command: list[str] = Field(
        default_factory=list,
        description="program for environment.image, with its first arguments; podman or docker by default, or none",
    )
    container_options: list[str] = Field(default_factory=list, description="further arguments of its run")
    health_seconds: float = Field(default=15.0, gt=0, description="between two checks of GPUs, interfaces, disk")
    health_confirmations: int = Field(
        default=2, ge=2, description="findings of a hardware fault that take a GPU out of use"
    )
    health_good_checks: int = Field(default=3, ge=1, description="in a row, after which a GPU or disk is used again")
    health_window_seconds: float = Field(default=3600.0, gt=0, description="for how long a finding waits for a second")

    @field_validator("id")
    @classmethod
    def _check_id(cls, value: str) -> str:
        if not _ID.fullmatch(value):
            raise ValueError("an id has letters, digits, '.', '_' and '-' only, 63 at most, and begins with no sign")
        return value

    @field_validator("pool", "labels", "rank_user", "rank_users")
    @classmethod
    def _check_names(cls, value: str | dict[str, str]) -> str | dict[str, str]:
        names = [value] if isinstance(value, str) else [*value, *value.values()]
        check_names(names)
        return value

    @field_validator("rank_uids")
    @classmethod
    def _check_uids(cls, value: str) -> str:
        first, _, last = value.partition("-")
        is_range = all(text.isascii() and text.isdigit() and len(text) <= 10 for text in (first, last))
        if value and not (is_range and 1000 <= int(first) < int(last) <= _LAST_UID):
            raise ValueError(f"it is a range from 1000 to {_LAST_UID}, as {DEFAULT_UIDS}, or empty")
        return value

    @field_validator("slots", mode="before")
    @classmethod
    def _check_slots(cls, value: object) -> str:
        text = str(value)
        if text != "auto" and not (text.isascii() and text.isdigit() and int(text) <= 1024):
            raise ValueError("it is auto or a number from 0 to 1024")
        return text
