"""The audit log over real processes: etcd, a scheduler, a gateway, and clients of all its surfaces."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import pytest_asyncio

from gangline.client import Client
from gangline.domain.audit import AuditRecord
from gangline.domain.user import hash_password
from gangline.errors import GanglineError
from services.common.access.security import allocation_token, as_password, hash_token
from services.common.etcd import EtcdClient, EtcdSettings
from services.gateway.audit.refusal_limit import OF_ADDRESSES
from tests.support.gateway import NO_TLS, USER_TOKEN
from tests.support.scheduler import ADMIN_TOKEN, CLUSTER_TOKEN
from tests.support.two_users import BOB_TOKEN, CONFIG, IN_VISION, Bench
from tests.support.wait import until_async

T = TypeVar("T")
PASSWORD, NEW_PASSWORD = "Planted-password-1", "Planted-password-2"


@pytest_asyncio.fixture
async def bench(tmp_path: Path, etcd: EtcdClient, etcd_settings: EtcdSettings) -> AsyncIterator[Bench]:
    """With one scheduler, one gateway, and the administrator beside alice and bob."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('trains')\n")
    async with AsyncExitStack() as stack:
        bench = Bench(tmp_path, etcd_settings, etcd, stack)
        await bench.scheduler("s1")
        await bench.gateway()
        admin = admin_of(bench)
        await until_async(lambda: _works(admin.list_audit), "the gateway knowing the administrator")
        yield bench


def admin_of(bench: Bench) -> Client:
    client = Client(bench.process.addresses["grpc"], ADMIN_TOKEN, retry_seconds=40)
    bench.stack.callback(client.close)
    return client


async def _works(function: Callable[[], object]) -> bool:
    try:
        await asyncio.to_thread(function)
    except GanglineError:
        return False
    return True


def http(bench: Bench, token: str = ADMIN_TOKEN) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    address = bench.process.addresses["http"]
    return httpx.AsyncClient(base_url=f"http://{address}", headers=headers, timeout=20, verify=NO_TLS)


async def call(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    return await asyncio.to_thread(function, *arguments, **options)


async def refusal(function: Callable[..., object], *arguments: Any, **options: Any) -> str:
    with pytest.raises(GanglineError) as failure:
        await call(function, *arguments, **options)
    return failure.value.code


async def records(bench: Bench, count: int, **wanted: Any) -> list[AuditRecord]:
    """Waits until so many records match, and returns them, the oldest first."""
    client = admin_of(bench)

    async def find() -> list[AuditRecord] | None:
        found, _ = await call(client.list_audit, **wanted)
        return found[::-1] if len(found) >= count else None

    found = await until_async(find, f"{count} records of {wanted}")
    assert len(found) == count
    return found


async def determined_token(bench: Bench, name: str, token: str) -> str:
    async with http(bench, "") as client:
        answer = await client.post("/api/v1/auth/login", json={"username": name, "password": as_password(token)})
        return str(answer.json()["token"])


async def test_a_change_has_one_name_and_one_record_over_every_surface(bench: Bench) -> None:
    numbers = [(await call(bench.create, CONFIG)).id for _ in range(3)]
    await call(bench.alice.kill_experiment, numbers[0], request_id="kill-it")
    async with http(bench, USER_TOKEN) as client:
        assert (await client.post(f"/api/v1/experiments/{numbers[1]}/kill")).status_code == 200
    async with http(bench, await determined_token(bench, "alice", USER_TOKEN)) as client:
        assert (await client.post(f"/api/v1/experiments/{numbers[2]}/kill")).status_code == 200
    killed = await records(bench, 3, action="experiment.kill")
    assert [each.surface for each in killed] == ["grpc", "http", "determined"]
    assert [each.object_id for each in killed] == [str(number) for number in numbers]
    for each in killed:
        assert (each.actor_kind, each.actor, each.outcome) == ("user", "alice", "done")
        assert (each.object_kind, each.workspace, each.address) == ("experiment", "Uncategorized", "127.0.0.1")
        assert each.changes["state"]["old"] == "QUEUED"
    assert [each.credential for each in killed[::2]] == ["admin token", "session of Determined's client"]
    assert killed[0].request_id == "kill-it"
    made = await records(bench, 3, action="experiment.create")
    assert [each.object_id for each in made] == [str(number) for number in numbers]


async def test_old_and_new_values_of_what_was_changed(bench: Bench) -> None:
    await call(bench.alice.create_workspace, "lab")
    await call(bench.alice.create_project, "lab", "vision")
    experiment = await call(bench.create, IN_VISION + "resources: {priority: 30}\n")
    await call(bench.alice.update_experiment, experiment.id, priority=10)
    await call(bench.alice.edit_experiment, experiment.id, name="renamed", add_labels=["best"])
    await call(bench.alice.pause_experiment, experiment.id)
    admin = admin_of(bench)
    await call(admin.create_user, "dave", PASSWORD, display_name="Dave")
    await call(admin.edit_user, "dave", display_name="David", is_admin=True)
    token, _ = await call(admin.create_token, "ci", "dave", request_id="make-it")
    await call(admin.revoke_token, token.id)
    await call(admin.deactivate_user, "dave")

    async def of(action: str) -> AuditRecord:
        return (await records(bench, 1, action=action))[0]

    assert (await of("experiment.set_resources")).changes == {"priority": {"old": 30, "new": 10}}
    edited = await of("experiment.edit")
    assert edited.changes["name"]["new"] == "renamed"
    assert edited.changes["labels"] == {"old": [], "new": ["best"]}
    assert (edited.workspace, (await of("project.create")).workspace) == ("lab", "lab")
    assert (await of("experiment.pause")).changes["state"]["old"] == "QUEUED"
    assert (await of("user.create")).changes["password"] == {"new": "set"}
    assert (await of("user.edit")).changes == {
        "display_name": {"old": "Dave", "new": "David"}, "is_admin": {"old": False, "new": True},
    }  # fmt: skip
    assert (await of("user.deactivate")).changes == {"is_active": {"old": True, "new": False}}
    made = await of("token.create")
    assert (made.object_id, made.changes["owner"], made.actor) == (str(token.id), {"new": "dave"}, "admin")
    # Whoever sends this id again gets the token again.
    assert made.request_id.startswith("sha256:")
    assert (await of("token.revoke")).changes["owner"] == {"old": "dave"}


async def test_quotas_have_their_old_and_new_limits(bench: Bench) -> None:
    admin = admin_of(bench)
    await call(bench.alice.create_workspace, "lab")
    await call(admin.set_quota, "workspace", "lab", max_slots=4)
    async with http(bench) as client:
        answer = await client.put("/api/v1/quotas/workspace/lab", json={"maxSlots": -1, "slotHours": 500})
        assert answer.status_code == 200, answer.text
    await call(admin.remove_quota, "workspace", "lab")
    await call(admin.create_user, "dave", PASSWORD)
    await call(admin.set_quota, "user", "dave", max_slots=2)
    assert await refusal(bench.bob.set_quota, "user", "bob", max_slots=-1) == "auth.not_admin"
    assert await refusal(admin.set_quota, "workspace", "no-such", max_slots=1) == "workspace.not_found"
    found = await records(bench, 6, action="quota")
    assert [(each.action, each.object_id, each.workspace, each.outcome, each.changes) for each in found] == [
        ("quota.set", "workspace/lab", "lab", "done", {"max_slots": {"old": None, "new": 4}}),
        (
            "quota.set", "workspace/lab", "lab", "done",
            {"max_slots": {"old": 4, "new": None}, "slot_hours": {"old": None, "new": "500.0"}},
        ),
        ("quota.remove", "workspace/lab", "lab", "done", {"slot_hours": {"old": "500.0"}}),
        ("quota.set", "user/dave", "", "done", {"max_slots": {"old": None, "new": 2}}),
        ("quota.set", "user/bob", "", "auth.not_admin", {}),
        ("quota.set", "workspace/no-such", "no-such", "workspace.not_found", {"max_slots": {"old": None, "new": 1}}),
    ]  # fmt: skip
    assert len(await records(bench, 3, object="quota/workspace/lab")) == 3


async def test_a_bulk_change_leaves_a_record_for_each_experiment_and_its_preview_none(bench: Bench) -> None:
    numbers = [(await call(bench.create, CONFIG)).id for _ in range(2)]
    async with http(bench, USER_TOKEN) as client:
        order = {"action": "KILL", "ids": [*numbers, 999]}
        assert (await client.post("/api/v1/bulk/experiments", json={**order, "dryRun": True})).status_code == 200
        assert (await client.post("/api/v1/bulk/experiments", json=order)).status_code == 200
    killed = await records(bench, 3, action="experiment.kill")
    assert sorted((each.object_id, each.outcome) for each in killed) == [
        *((str(number), "done") for number in numbers), ("999", "experiment.not_found"),
    ]  # fmt: skip
    assert (await records(bench, 5, object="experiment"))[-1].action == "experiment.kill"


async def test_a_deletion_of_many_checkpoints_that_is_refused_leaves_one_record(bench: Bench) -> None:
    async with http(bench, USER_TOKEN) as client:

        async def delete(ids: list[str]) -> int:
            return (await client.request("DELETE", "/api/v1/checkpoints", json={"checkpointUuids": ids})).status_code

        assert await delete([f"c{number}" for number in range(20_000)]) == 400
        assert await delete([f"c{number % 50}" for number in range(1000)]) == 404
    many, unknown = await records(bench, 2, action="checkpoint.delete")
    assert (many.outcome, unknown.outcome) == ("checkpoint.too_many", "checkpoint.not_found")
    assert [each.object_id for each in (many, unknown)] == ["c0", "c0"]
    assert [each.changes["num_objects"]["new"] for each in (many, unknown)] == [20_000, 50]
    assert unknown.changes["objects"]["new"][-2:] == ["c19", "... 30 more"]


async def test_a_repeated_request_is_done_once(bench: Bench) -> None:
    first, again = [await call(bench.alice.create_experiment, CONFIG, bench.code, request_id="same") for _ in range(2)]
    assert first.experiment.id == again.experiment.id
    made = await records(bench, 2, action="experiment.create")
    assert [(each.outcome, each.request_id) for each in made] == [("done", "same"), ("repeated", "same")]


async def test_refused_attempts_leave_records_with_their_codes(bench: Bench) -> None:
    experiment = await call(bench.create, CONFIG)
    assert await refusal(bench.bob.delete_experiment, experiment.id) == "auth.not_owner"
    assert await refusal(bench.bob.create_user, "eve", PASSWORD) == "auth.not_admin"
    assert await refusal(bench.bob.list_audit) == "auth.not_admin"
    assert await refusal(bench.bob.kill_experiment, 999) == "experiment.not_found"
    async with http(bench, BOB_TOKEN) as client:
        assert (await client.patch("/api/v1/users/1", json={"admin": True})).status_code in (403, 404)
        assert (await client.post("/api/v1/users", json={"user": 5})).status_code == 400
        assert (await client.get("/api/v1/audit")).status_code == 403
    runner = Client(bench.process.addresses["grpc"], allocation_token(CLUSTER_TOKEN, "1.1.1"), retry_seconds=0)
    bench.stack.callback(runner.close)
    assert await refusal(runner.kill_experiment, experiment.id) == "auth.forbidden"
    failed = [*await records(bench, 7, outcome="failed", user="bob"), *await records(bench, 1, user="1.1.1")]
    shown = [(each.actor, each.action, each.object_id, each.outcome) for each in failed]
    assert shown[0] == ("bob", "experiment.delete", str(experiment.id), "auth.not_owner")
    assert shown[1][:2] == ("bob", "user.create")
    assert shown[2] == ("bob", "call.read", "ListAudit", "auth.not_admin")
    assert shown[3] == ("bob", "experiment.kill", "999", "experiment.not_found")
    assert shown[5] == ("bob", "user.create", "", "request.invalid")
    assert shown[6] == ("bob", "call.read", "GET /api/v1/audit", "auth.not_admin")
    assert shown[7] == ("1.1.1", "experiment.kill", str(experiment.id), "auth.forbidden")
    assert failed[7].credential == "allocation token"
    # Reading that is allowed leaves nothing.
    await call(bench.bob.list_users)
    await call(bench.bob.get_experiment, experiment.id)
    assert len(await records(bench, 7, outcome="failed", user="bob")) == 7


async def test_logins_and_logouts_leave_records_and_a_wrong_name_is_not_repeated(bench: Bench) -> None:
    nobody = Client(bench.process.addresses["grpc"], "-", retry_seconds=0)
    bench.stack.callback(nobody.close)
    session = await call(nobody.log_in, "bob", BOB_TOKEN)
    bob = Client(bench.process.addresses["grpc"], session.token, retry_seconds=0)
    bench.stack.callback(bob.close)
    await call(bob.log_out)
    assert await refusal(nobody.log_in, "bob", "wrong-password") == "auth.wrong_password"
    assert await refusal(nobody.log_in, PASSWORD, "bob") == "auth.wrong_password"
    async with http(bench, "") as client:
        body = {"username": "bob", "password": BOB_TOKEN}
        answer = await client.post("/api/v1/session", json=body, headers={"X-Gangline-Page": "1"})
        assert answer.status_code == 200
    shown = [
        (each.actor, each.action, each.object_id, each.outcome, each.surface)
        for each in await records(bench, 5, action="session")
    ]
    assert shown == [
        ("bob", "session.login", "bob", "done", "grpc"),
        ("bob", "session.logout", "bob", "done", "grpc"),
        ("", "session.login", "bob", "auth.wrong_password", "grpc"),
        ("", "session.login", "", "auth.wrong_password", "grpc"),
        ("bob", "session.login", "bob", "done", "http"),
    ]


async def test_unknown_tokens_leave_a_bounded_number_of_records(bench: Bench) -> None:
    stranger = Client(bench.process.addresses["grpc"], "a-token-of-nobody", retry_seconds=0)
    bench.stack.callback(stranger.close)
    for _ in range(OF_ADDRESSES.of_one):
        assert await refusal(stranger.list_users) == "auth.wrong_token"
    async with http(bench, "another-token-of-nobody") as client:
        for _ in range(10):
            assert (await client.post("/api/v1/experiments/7/kill")).status_code == 401
    found = await records(bench, OF_ADDRESSES.of_one, action="call.unknown_token")
    assert {(each.actor_kind, each.outcome) for each in found} == {("anonymous", "auth.wrong_token")}
    # The bench itself may have called before the gateway knew its users.
    assert "ListUsers" in {each.object_id for each in found} <= {"ListUsers", "ListWorkspaces", "ListAudit"}


async def test_no_secret_gets_into_the_log(bench: Bench) -> None:
    """Plants secrets wherever a caller can give one, and looks for them in everything that the gateway keeps of it."""
    planted = [PASSWORD, NEW_PASSWORD, "planted-variable", "planted-storage-key", "planted-metadata", "planted-setting"]
    admin = admin_of(bench)
    storage = "{type: s3, bucket: b, access_key: planted-storage-key, secret_key: planted-storage-key}"
    config = CONFIG + "environment: {environment_variables: [API_KEY=planted-variable]}\n"
    await call(admin.create_workspace, "lab")
    await refusal(admin.create_workspace, "lab2", checkpoint_storage=storage + "}")
    async with http(bench) as client:
        body = {"name": "lab3", "checkpointStorage": {"access_key": "planted-storage-key"}}
        await client.post("/api/v1/workspaces", json=body)
        await client.post("/api/v1/experiments", json={"config": config + "bad: planted-setting", "activate": False})
        await client.post("/api/v1/tasks", json={"kind": "COMMAND", "config": "{x: planted-setting"})
        await client.patch("/api/v1/experiments/1", json={"name": 5, "notes": ["planted-setting"]})
        await client.post("/api/v1/users", json={"user": {"username": "eve"}, "password": PASSWORD})
        await client.post("/api/v1/session/keys")
    await call(admin.set_template, "base", "environment: {environment_variables: [KEY=planted-variable]}\n")
    experiment = (await call(admin.create_experiment, config, bench.code, is_paused=True)).experiment
    await call(admin.kill_experiment, experiment.id)
    await call(admin.create_model, "m", metadata={"key": "planted-metadata"})
    await call(admin.create_user, "dave", PASSWORD)
    await call(admin.change_password, NEW_PASSWORD, "dave")
    session = await call(admin.log_in, "dave", NEW_PASSWORD)
    _, secret = await call(admin.create_token, "ci", "dave")
    key = (await call(admin.create_key)).key
    planted += [session.token, secret, key, ADMIN_TOKEN, CLUSTER_TOKEN]
    await refusal(admin.log_in, "dave", "planted-setting")
    await refusal(admin.log_in, "planted-setting", "x")
    planted += [hash_password(PASSWORD), hash_password(NEW_PASSWORD), hash_token(ADMIN_TOKEN), hash_token(secret)]
    planted += [hash_token(session.token), hash_token(key), "scrypt$"]
    stranger = Client(bench.process.addresses["grpc"], "planted-metadata-token", retry_seconds=0)
    bench.stack.callback(stranger.close)
    await refusal(stranger.list_users)
    await records(bench, 1, object="call/ListUsers")
    os.kill(bench.process.process.pid, signal.SIGTERM)  # type: ignore[union-attr]  # it runs
    await asyncio.to_thread(bench.process.process.wait, 20)  # type: ignore[union-attr]
    with closing(sqlite3.connect(bench.folder / "gateway" / "gateway.db")) as database:
        rows = database.execute("SELECT * FROM audit").fetchall()
    text = json.dumps(rows)
    assert len(rows) > 15
    assert [word for word in planted if word in text] == []


async def test_only_administrators_read_it_with_the_same_filters_everywhere(bench: Bench) -> None:
    await call(bench.alice.create_workspace, "=cmd()")
    await records(bench, 1, action="workspace.create")
    async with http(bench) as client:
        page = (await client.get("/api/v1/audit", params={"user": "alice", "object": "workspace"})).json()
        assert [(each["action"], each["workspace"]) for each in page["records"]] == [("workspace.create", "=cmd()")]
        assert page["records"][0]["changes"] == {"name": {"new": "=cmd()"}}
        # Calls that the bench repeats until its leader serves have failed too, so the filter names the user.
        failed = {"outcome": "failed", "user": "alice"}
        for wanted in ({"user": "bob"}, failed, {"since": "2999-01-01T00:00:00Z"}, {"address": "::9"}):
            assert (await client.get("/api/v1/audit", params=wanted)).json()["records"] == []
        assert (await client.get("/api/v1/audit", params={"limit": 1001})).status_code == 400
        assert (await client.get("/api/v1/audit", params={"before": "x"})).json()["code"] == "audit.place"
        answer = await client.get("/api/v1/audit.csv", params={"action": "workspace"})
        rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
        assert (answer.headers["content-type"], len(rows)) == ("text/csv; charset=utf-8", 1)
        assert (rows[0]["actor"], rows[0]["workspace"]) == ("alice", "'=cmd()")
    async with http(bench, BOB_TOKEN) as client:
        assert (await client.get("/api/v1/audit.csv")).status_code == 403


async def test_changes_go_on_while_the_database_is_locked_and_are_recorded_later(bench: Bench) -> None:
    path = bench.folder / "gateway" / "gateway.db"
    await call(bench.create, CONFIG)
    await records(bench, 1, action="experiment.create")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        started = asyncio.get_running_loop().time()
        for _ in range(3):
            await call(bench.create, CONFIG)
        assert asyncio.get_running_loop().time() - started < 8
        database.execute("COMMIT")
    made = await records(bench, 4, action="experiment.create")
    assert [each.object_id for each in made] == ["1", "2", "3", "4"]


async def test_a_gateway_that_is_stopped_writes_its_buffer(bench: Bench) -> None:
    await call(bench.create, CONFIG)
    os.kill(bench.process.process.pid, signal.SIGTERM)  # type: ignore[union-attr]  # it runs
    assert await asyncio.to_thread(bench.process.process.wait, 20) == 0  # type: ignore[union-attr]
    with closing(sqlite3.connect(bench.folder / "gateway" / "gateway.db")) as database:
        rows = database.execute("SELECT object_id FROM audit WHERE action = 'experiment.create'").fetchall()
    assert rows == [("1",)]
