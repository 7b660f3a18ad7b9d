"""The settings of a scheduler: flags, GANGLINE_* variables, /etc/gangline/scheduler.toml. See ServiceSettings for the
precedence and for what all services have. Read once by `__main__`."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gangline.domain.settled.record import DEFAULT_POOL
from gangline.domain.storage.storage_fault import DEFAULT_WAIT_SECONDS
from services.common.setting.settings import ServiceSettings, check_names, check_own_storage
from services.scheduler.placement import PoolConfig
from services.scheduler.placement.request.snapshot import (
    ON_CALL_IS_IMPOSSIBLE,
    Backfill,
    default_backfill,
    default_preemption,
)
from services.scheduler.state.rules import DEFAULT_PRIORITY, Rules


class PoolScheduler(BaseModel):
    """Holds how a pool places."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["priority", "fair_share", "round_robin"] = "priority"
    fitting_policy: Literal["best", "worst"] = "best"
    default_priority: int = Field(default=DEFAULT_PRIORITY, ge=1, le=99)  # 1 is most urgent, 99 least
    allow_heterogeneous_fits: bool = False
    # Urgent requests may preempt less urgent work, and groups below their shares may preempt work of others. None means
    # on, but off for round_robin.
    preemption: bool | None = None
    # Later work may start early if it delays no request ahead of it; "on_call": everywhere, preempted for any request
    # ahead of it; None: as much as the pool allows
    backfill: Backfill | None = None
    network_labels: tuple[str, ...] = ("zone", "rack")  # see PoolConfig

    @model_validator(mode="after")
    def _has_whom_to_call(self) -> Self:
        if self.backfill == "on_call" != default_backfill(self.type, self.is_preemption_on):
            raise ValueError(f"backfill: {ON_CALL_IS_IMPOSSIBLE}")
        return self

    @property
    def is_preemption_on(self) -> bool:
        return default_preemption(self.type) if self.preemption is None else self.preemption


class ResourcePool(BaseModel):
    """One `[[resource_pools]]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pool_name: str = Field(min_length=1)
    scheduler: PoolScheduler = PoolScheduler()

    def to_config(self) -> PoolConfig:
        return PoolConfig(
            name=self.pool_name,
            policy=self.scheduler.type,
            fitting=self.scheduler.fitting_policy,
            default_priority=self.scheduler.default_priority,
            allow_heterogeneous_fits=self.scheduler.allow_heterogeneous_fits,
            is_preemption_on=self.scheduler.is_preemption_on,
            backfill=default_backfill(self.scheduler.type, self.scheduler.is_preemption_on)
            if self.scheduler.backfill is None
            else self.scheduler.backfill,
            network_labels=self.scheduler.network_labels,
        )


class SchedulerSettings(ServiceSettings):
    service: ClassVar[str] = "scheduler"
    replaced: ClassVar[Mapping[str, str]] = {
        "max_infrastructure_failures": "give_up_hours, the hours for which a trial is tried again"
    }

    metrics_listen: str | None = Field(default="0.0.0.0:8083", description="host:port of /metrics")
    id: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}", description="unique among the schedulers"
    )
    listen: str = Field(default="0.0.0.0:8082", description="host:port of the gRPC server")
    storage_url: str = Field(description="where code and checkpoints are kept: a directory or any URL of fsspec")
    storage_wait_seconds: float = Field(
        default=DEFAULT_WAIT_SECONDS, gt=0, description="for which a trial waits for a storage that takes nothing"
    )
    admin_token_file: Path | None = Field(default=None, description="the token of the user admin")
    leader_lease_seconds: float = Field(default=5.0, gt=0, description="how long a lost leader is waited for")
    agent_lease_seconds: float = Field(
        default=8.0, gt=0, description="an agent, or a runner beside it, not heard of for so long is lost"
    )
    agent_grace_seconds: float = Field(default=10.0, ge=0, description="more than that, after a change of the leader")
    agent_silence_seconds: float = Field(
        default=300.0,
        gt=0,
        description="how long work on lost agents is kept while the leader hears no majority",
    )
    accept_seconds: float = Field(default=30.0, gt=0, description="for the agents of a gang to accept it")
    rendezvous_seconds: float = Field(default=60.0, gt=0, description="from a gang's first runner to its last")
    start_seconds: float = Field(default=120.0, gt=0, description="more than that, until ranks are up")
    kill_grace_seconds: float = Field(default=5.0, ge=0, description="between telling ranks to end and SIGKILL")
    force_seconds: float = Field(default=30.0, gt=0, description="after that, for an agent to report the end")
    give_up_hours: float = Field(
        default=24.0, ge=0, description="for which attempts in a row may fail for reasons outside of a trial"
    )
    exclusion_seconds: float = Field(
        default=600.0, ge=0, description="for which a trial avoids an agent where it could not start"
    )
    shrink_seconds: float = Field(
        default=60.0, ge=0, description="for which a trial waits for all of its slots before it goes on on fewer"
    )
    resize_seconds: float = Field(default=300.0, ge=0, description="at least, between two changes of a trial's size")
    network_interface: str = Field(default="", description="the one interface that gangs use; empty chooses by itself")
    resource_pools: list[ResourcePool] = Field(default=[ResourcePool(pool_name=DEFAULT_POOL)])

    @field_validator("storage_url")
    @classmethod
    def _is_one_storage(cls, value: str) -> str:
        check_own_storage(value)
        return value

    @field_validator("id")
    @classmethod
    def _check_id(cls, value: str) -> str:
        check_names([value])
        return value

    @field_validator("resource_pools")
    @classmethod
    def _are_distinct(cls, pools: list[ResourcePool]) -> list[ResourcePool]:
        names = [pool.pool_name for pool in pools]
        check_names(names)
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"pool {twice!r} is defined twice")
        return pools if DEFAULT_POOL in names else [*pools, ResourcePool(pool_name=DEFAULT_POOL)]

    @property
    def pools(self) -> tuple[PoolConfig, ...]:
        return tuple(pool.to_config() for pool in self.resource_pools)

    @property
    def rules(self) -> Rules:
        return Rules(
            default_priorities={pool.name: pool.default_priority for pool in self.pools},
            accept_seconds=self.accept_seconds,
            rendezvous_seconds=self.rendezvous_seconds,
            start_seconds=self.start_seconds,
            kill_grace_seconds=self.kill_grace_seconds,
            force_seconds=self.force_seconds,
            give_up_seconds=self.give_up_hours * 3600,
            exclusion_seconds=self.exclusion_seconds,
            shrink_seconds=self.shrink_seconds,
            resize_seconds=self.resize_seconds,
        )
