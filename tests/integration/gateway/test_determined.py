"""The surface for Determined's client, without that client: sessions, and requests that it would never make."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gangline.domain.experiment import Checkpoint, Experiment, RetentionChange, Trial
from gangline.domain.state import State
from gangline.protocol import wire
from services.common import keys
from services.common.access.security import as_password, hash_token, session_token
from services.common.etcd import EtcdClient, Put
from services.gateway.determined import agent, checkpoint, experiment, project, retention, trial, user
from services.gateway.determined import token as access_token
from tests.integration.gateway.test_queue import put_waiting
from tests.support.gateway import CLUSTER_TOKEN, NO_TLS, USER_TOKEN, Client, add_user
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until_async

LOGIN = "/api/v1/auth/login"
LOGIN_SHA256 = hash_token(as_password(USER_TOKEN))
CONFIG = "name: lab\nentrypoint: python3 train.py\nsearcher: {name: single, metric: loss, max_length: {batches: 5}}\n"
TABLES = (user.ROUTES, experiment.ROUTES, trial.ROUTES, checkpoint.ROUTES, agent.ROUTES, project.ROUTES,
          retention.ROUTES, access_token.ROUTES)  # fmt: skip


def credentials(name: str = "alice", token: str = USER_TOKEN) -> dict[str, str]:
    return {"username": name, "password": as_password(token)}


def bearing(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def sentence(answer: httpx.Response) -> str:
    """The one line that Determined's client shows."""
    message = str(answer.json()["error"]["message"])
    assert message
    assert "\n" not in message
    return message


@pytest_asyncio.fixture
async def nobody(client: Client) -> AsyncIterator[httpx.AsyncClient]:
    """A caller without a token."""
    async with httpx.AsyncClient(base_url=f"http://{client.http_address}", timeout=20, verify=NO_TLS) as http:
        yield http


@pytest_asyncio.fixture
async def session(nobody: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    answer = await nobody.post(LOGIN, json=credentials())
    assert answer.status_code == 200, answer.text
    async with httpx.AsyncClient(
        base_url=nobody.base_url, headers=bearing(answer.json()["token"]), timeout=20, verify=NO_TLS
    ) as http:
        yield http


async def test_a_login_opens_a_session_that_is_of_its_user(
    nobody: httpx.AsyncClient, session: httpx.AsyncClient
) -> None:
    cluster = (await nobody.get("/info")).json()
    assert re.fullmatch(r"0\.38\.\d+", cluster["version"])
    assert (await nobody.get("/api/v1/master")).json()["clusterId"] == cluster["cluster_id"]
    me = (await session.get("/api/v1/me")).json()["user"]
    assert (me["username"], me["admin"]) == ("alice", False)
    assert (await session.get(f"/api/v1/users/{me['id']}")).json()["user"] == me
    # Our own API is where it was, for our own tokens and without one.
    assert (await nobody.get("/api/v1/experiments")).status_code == 401
    assert "nextId" not in (await session.get("/api/v1/experiments")).json()


@pytest.mark.parametrize(
    "body",
    [
        credentials(token="another-token"),
        credentials(name="nobody"),
        {"username": "alice", "password": USER_TOKEN},
        {"username": "alice", "password": hash_token(USER_TOKEN)},
        {"username": "alice", "password": LOGIN_SHA256},
        {"username": "alice", "password": ""},
        {"username": "", "password": ""},
        {},
        None,
    ],
)
async def test_a_wrong_password_opens_none(nobody: httpx.AsyncClient, body: Any) -> None:
    answer = await nobody.post(LOGIN, json=body)
    assert answer.status_code == 403, "Determined's client takes 403 for a wrong password"
    assert "the password is wrong" in sentence(answer)


async def test_a_session_that_has_ended_or_is_forged_is_refused(
    nobody: httpx.AsyncClient, session: httpx.AsyncClient, etcd: EtcdClient
) -> None:
    soon = int(time.time()) + 100
    real = session.headers["authorization"].removeprefix("Bearer ")
    forged = [
        session_token("another-cluster-token", "alice", LOGIN_SHA256, soon),
        session_token(CLUSTER_TOKEN, "alice", LOGIN_SHA256, int(time.time()) - 1),
        session_token(CLUSTER_TOKEN, "bob", "", soon),
        real.replace("alice", "admin"),
        real.replace(real.split(":")[1], str(soon + 10**6)),
        real[:-1],
        "session:",
        "session:::",
        f"session:{soon}:alice:",
        f"session:{'9' * 5000}:alice:x",
        f"session:²:alice:{'0' * 64}",
    ]
    for token in forged:
        answer = await nobody.get("/api/v1/me", headers={b"Authorization": f"Bearer {token}".encode()})
        assert answer.status_code == 401, token
        assert "log in again" in sentence(answer)
    assert (await session.get("/api/v1/me")).status_code == 200
    # A session ends with the token with which it was opened.
    await add_user(etcd, token="a-new-token-of-alice")
    deadline = time.monotonic() + 20
    while (await session.get("/api/v1/me")).status_code == 200:
        assert time.monotonic() < deadline, "the session outlives its user's token"
        await asyncio.sleep(0.05)
    assert (await nobody.post(LOGIN, json=credentials())).status_code == 403


async def test_a_session_of_another_gateway_holds_here(nobody: httpx.AsyncClient) -> None:
    token = session_token(CLUSTER_TOKEN, "alice", LOGIN_SHA256, int(time.time()) + 100)
    assert (await nobody.get("/api/v1/me", headers=bearing(token))).json()["user"]["username"] == "alice"


async def test_code_is_created_as_files_and_comes_back(leader: StandInLeader, session: httpx.AsyncClient) -> None:
    file = {"path": "train.py", "type": 48, "content": "cHJpbnQoKQ==", "mode": 420, "uid": 0, "unknown": None}
    body = {"config": CONFIG, "modelDefinition": [file], "activate": True, "template": None, "unknown": {}}
    answer = await session.post("/api/v1/experiments", content=json.dumps(body), headers={"Content-Type": ""})
    assert answer.status_code == 200, answer.text
    created = answer.json()["experiment"]
    assert (created["username"], created["state"]) == ("alice", "STATE_QUEUED")
    assert (created["config"]["name"], created["config"]["searcher"]["max_length"]) == ("lab", {"batches": 5})
    code = (await session.get(f"/api/v1/experiments/{created['id']}/model_def")).json()
    assert code["b64Tgz"]


@pytest.mark.parametrize("path", ["../train.py", "/etc/train.py", "a/../../train.py", "a\0b", "x" * 5000])
async def test_hostile_code_is_refused_and_makes_no_experiment(
    leader: StandInLeader, session: httpx.AsyncClient, path: str
) -> None:
    file = {"path": path, "type": 48, "content": "", "mode": 420}
    answer = await session.post("/api/v1/experiments", json={"config": CONFIG, "modelDefinition": [file]})
    assert answer.status_code == 400, answer.text
    assert sentence(answer)
    assert leader.submissions == []


async def test_a_body_of_unknown_length_is_refused_unread(session: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"{}"

    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        answer = await session.request(method, "/api/v1/experiments/1/labels/x", content=chunks())
        assert (answer.status_code, "Content-Length" in sentence(answer)) == (400, True), method
    answer = await session.post(LOGIN, content=b" " * ((1 << 20) + 1))
    assert (answer.status_code, "send less" in sentence(answer)) == (400, True)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[1]",
        b'"x"',
        b"5",
        b"\xff",
        b"[" * 100_000,
        b'{"x": 1e999}',
        b'{"config": 5}',
        b'{"config": "a: [',
        b"null",
    ],
)
async def test_no_call_breaks_over_what_it_is_sent(
    leader: StandInLeader, session: httpx.AsyncClient, body: bytes
) -> None:
    """Every call of the tables, with ids that no object has."""
    part = re.compile(r"\{(\w+)\}")
    for method, path, _ in (row for table in TABLES for row in table):
        for value in ("0", "-1", "99999999999999999999", "x", "%00", "7.1", "%F0%9F%92%A9"):
            if body != b"null" and value != "0":
                continue
            place = part.sub(value, path)
            sent = None if method == "GET" else body
            answer = await session.request(method, place, content=sent, params={"limit": value, "offset": value})
            if answer.status_code >= 400:
                sentence(answer)
                # The leader of this test does not know every call.
                assert answer.json()["error"]["code"] != "http.internal", (method, place, answer.text)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/v1/tensorboards"), ("GET", "/api/v1/model/x"), ("PUT", "/api/v1/me"), ("GET", "/x")],
)
async def test_a_call_that_is_not_there_says_what_there_is(session: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await session.request(method, path)
    assert answer.status_code == 404
    assert sentence(answer).startswith("Gangline has no")


async def test_what_an_experiment_keeps_is_previewed_and_set(
    leader: StandInLeader, etcd: EtcdClient, session: httpx.AsyncClient
) -> None:
    saved = Checkpoint(
        "c1", "7.1", 7, 5, "/s", {"weights": 3}, created_at=1.0, metadata_json='{"validation_metrics": {"loss": 0.5}}'
    )
    config = '{"searcher": {"metric": "loss"}}'
    records = [Put(keys.trial(f"7.{number}"), wire.encode(Trial(f"7.{number}", 7, number))) for number in (1, 2)]
    records += [
        Put(keys.experiment(7), wire.encode(Experiment(7, "n", "alice", config, "b" * 64))),
        Put(keys.checkpoint("c1"), wire.encode(saved)),
    ]
    await etcd.commit(records)

    async def is_there() -> bool:
        return (await session.get("/api/v1/checkpoints/c1")).status_code == 200

    await until_async(is_there, "the checkpoint at the gateway")
    policy = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 1}
    preview = (await session.get("/experiments/7/preview_gc", params=policy)).json()
    [checkpoint] = preview["checkpoints"]
    assert (preview["metric_name"], checkpoint["TrialID"], checkpoint["step"]) == ("loss", 700001, {"validation": True})
    assert (checkpoint["ValidationMetrics"], set(checkpoint["Resources"])) == ({"loss": 0.5}, {"weights"})
    body = {"id": 7, "checkpointStorage": {"saveTrialBest": 0, "saveTrialLatest": None}}
    patched = (await session.patch("/api/v1/experiments/7", json=body)).json()["experiment"]
    assert patched["config"]["checkpoint_storage"]["save_trial_best"] == 0
    days = {"experimentId": 7, "numDays": 30}
    assert (await session.put("/api/v1/experiments/7/retain_logs", json=days)).json() == {}
    [*_, change] = leader.experiment_changes
    assert wire.from_proto(RetentionChange, change.retention) == RetentionChange(log_retention_days=30)
    refused = await session.put("/api/v1/trials/700001/retain_logs", json={"trialId": 700001, "numDays": 30})
    assert "det experiment set log-retention 7 --days N" in sentence(refused)
    for bad in ({"checkpointStorage": [1]}, {"checkpointStorage": {"saveTrialBest": "x"}}):
        assert (await session.patch("/api/v1/experiments/7", json=bad)).status_code == 400


async def test_a_paused_experiment_has_no_jobs_ahead_and_holds_no_slots(
    session: httpx.AsyncClient, leader: StandInLeader, etcd: EtcdClient
) -> None:
    await put_waiting(etcd, 8, "default", 50)
    await put_waiting(etcd, 9, "default", 50, State.PAUSED)

    async def is_there() -> bool:
        return (await session.get("/api/v1/experiments/9")).status_code == 200

    await until_async(is_there, "the experiment at the gateway")
    paused = (await session.get("/api/v1/experiments/9")).json()
    assert paused["jobSummary"] == {"state": "STATE_QUEUED", "jobsAhead": 0}
    [trial_record] = (await session.get("/api/v1/experiments/9/trials")).json()["trials"]
    assert trial_record["state"] == "STATE_PAUSED"
