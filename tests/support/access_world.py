"""A closed cluster with users of every role, and one of everything in a workspace: for tests that make every call.

The scheduler and the gateway are real. Records that only training makes are in etcd before the scheduler starts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gangline.client import Client as Sdk
from gangline.domain.access import Role, RoleAssignment, WorkspaceRoles
from gangline.domain.experiment import (
    Checkpoint,
    Project,
    ProjectCounter,
    ProjectDefaults,
    Template,
    Workspace,
)
from gangline.domain.named_kind import DEFAULT_PROJECT, DEFAULT_WORKSPACE
from gangline.domain.quota import Quota, QuotaSubject
from gangline.domain.registry import Model, ModelAlias, ModelVersion
from gangline.domain.user import User, UserCounter
from gangline.errors import GanglineError
from gangline.protocol import wire
from services.common.access.security import (
    allocation_token,
    as_password,
    drain_token,
    hash_token,
    session_token,
)
from services.common.etcd import EtcdClient, EtcdSettings, Put
from services.gateway.program import Addresses, run_gateway
from services.scheduler.state.codec import key_of
from services.scheduler.state.records import id_of
from tests.support.gateway import CLUSTER_TOKEN, settings_in
from tests.support.scheduler import SchedulerProcess
from tests.support.wait import until_async

# By their role in workspace "lab"; the boss administers the cluster.
ROLES = {"viewer": Role.VIEWER, "editor": Role.EDITOR, "owner": Role.EDITOR, "manager": Role.ADMIN}
USERS = ("stranger", *ROLES, "boss")
NUMBERS = {name: number for number, name in enumerate(USERS, 11)}
CALLERS = ("nobody", *USERS, "allocation", "agent")
CHECKPOINT_ID = "0a1b2c3d-0000-4000-8000-000000000001"
EXPERIMENT_ID, SHELL_ID = 1, 2
CONFIG = "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\nworkspace: lab\nproject: vision\n"


def token_of(caller: str) -> str:
    if caller == "allocation":
        return allocation_token(CLUSTER_TOKEN, "9.1.1")
    if caller == "agent":
        return drain_token(CLUSTER_TOKEN, "a1")
    return "" if caller == "nobody" else f"token-of-{caller}-in-the-tests"


def determined_token_of(caller: str) -> str:
    login = hash_token(as_password(token_of(caller)))
    return session_token(CLUSTER_TOKEN, caller, login, int(time.time()) + 3600)


def _records(*, is_open: bool) -> list[object]:
    roles = tuple(RoleAssignment(role, NUMBERS[name]) for name, role in ROLES.items())
    users = [
        User(
            name,
            hash_token(token_of(name)),
            name == "boss",
            login_sha256=hash_token(as_password(token_of(name))),
            id=NUMBERS[name],
        )
        for name in USERS
    ]
    checkpoint = Checkpoint(
        CHECKPOINT_ID, "1.1", EXPERIMENT_ID, 10, f"/storage/checkpoints/{CHECKPOINT_ID}", file_bytes={"a": 1}
    )
    return [
        *users,
        UserCounter(50, 1),
        ProjectCounter(10, 10, next_model_id=10),
        DEFAULT_WORKSPACE,
        DEFAULT_PROJECT,
        *(() if is_open else (WorkspaceRoles(0),)),
        WorkspaceRoles(2, roles),
        Workspace(2, "lab", owner="boss"),
        Project(2, 2, "vision", owner="owner", defaults=ProjectDefaults(template="t")),
        Template("t", config_json='{"max_restarts": 1}', owner="owner"),
        Model(3, "m", owner="owner", workspace_id=2, aliases=(ModelAlias("best", 1),), next_version=2),
        Quota(QuotaSubject("workspace", "2"), max_slots=8),
        ModelVersion("3.1", 3, 1, CHECKPOINT_ID, owner="owner"),
        checkpoint,
    ]


@asynccontextmanager
async def open_world(
    folder: Path, etcd: EtcdClient, settings: EtcdSettings, *, is_open: bool = False
) -> AsyncIterator[Addresses]:
    """Yields the gateway's addresses once the owner has experiment 1, which is paused, and the shell 2. is_open: with
    the roles for the cluster as they are at first."""
    records = _records(is_open=is_open)
    await etcd.commit([Put(key_of(type(each), id_of(each)), wire.encode(each)) for each in records])  # type: ignore[arg-type]
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("print('trains')\n")
    scheduler = SchedulerProcess(folder / "scheduler", settings, "s1", storage=str(folder / "storage"))
    try:
        await scheduler.start()
        async with run_gateway(settings_in(folder, settings)) as addresses:
            await _fill(folder, addresses)
            yield addresses
    finally:
        scheduler.end()


async def _fill(folder: Path, addresses: Addresses) -> None:
    with Sdk(addresses.grpc, token_of("owner"), retry_seconds=20) as owner:

        async def is_led() -> bool:
            try:
                return (await asyncio.to_thread(owner.get_cluster)).leader is not None
            except GanglineError:
                return False

        await until_async(is_led, "a leader")
        created = await asyncio.to_thread(owner.create_experiment, CONFIG, folder / "code", is_paused=True)
        shell = await asyncio.to_thread(owner.start_task, "shell", {"workspace": "lab", "project": "vision"})
        assert (created.id, shell.id) == (EXPERIMENT_ID, SHELL_ID)
        await asyncio.to_thread(owner.create_token, "nightly")
        view = await asyncio.to_thread(owner.create_saved_view, "experiments", "mine", {})
        VIEW_IDS.append(view.id)


# Of the saved view of the newest world.
VIEW_IDS: list[str] = []
