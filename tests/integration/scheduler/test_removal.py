"""Archiving and deleting experiments through a real scheduler and a real gateway, over a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gangline.client import Client as Session
from gangline.domain.state import DeletionStage, ExitKind, State
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2, scheduler_pb2
from services.common import keys
from services.common.etcd import Delete
from tests.integration.scheduler.conftest import Bench
from tests.support.ended_experiment import count_rows, fill_history, list_files, list_keys, make_files, put_experiment
from tests.support.gateway import Client, GatewayProcess, add_user
from tests.support.scheduler import config_json
from tests.support.wait import until_async

SECONDS = 30.0
BOB_TOKEN = "token-of-bob-in-the-tests"


@pytest_asyncio.fixture
async def gateway(bench: Bench) -> AsyncIterator[GatewayProcess]:
    await add_user(bench.etcd)
    process = GatewayProcess(bench.directory, bench.settings.endpoints[0])
    yield process
    if process.process is not None:
        await process.end()


@pytest_asyncio.fixture
async def client(bench: Bench, gateway: GatewayProcess) -> AsyncIterator[Client]:
    """Of a gateway beside a leader."""
    await bench.scheduler()
    await gateway.start()
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    yield client
    await client.close()


async def _ids(client: Client, **query: Any) -> list[int]:
    answer = await client.http.get("/api/v1/experiments", params=query)
    return [experiment["id"] for experiment in answer.json()["experiments"]]


async def _delete(client: Client, experiment_id: int) -> tuple[int, dict[str, Any]]:
    answer = await client.http.delete(f"/api/v1/experiments/{experiment_id}")
    return answer.status_code, answer.json()


async def _gone(bench: Bench, experiment_id: int) -> None:
    async def is_gone() -> bool:
        return await list_keys(bench.etcd, experiment_id) == []

    await until_async(is_gone, f"the end of experiment {experiment_id}", SECONDS)


async def test_an_archived_experiment_leaves_the_list_and_nothing_else_changes(bench: Bench, client: Client) -> None:
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json(), owner="alice")
    [spec] = await agent.started()
    refused = await client.http.post("/api/v1/experiments/1/archive")
    assert (refused.status_code, refused.json()["code"]) == (409, "experiment.not_ended")
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    before = await bench.eventually(lambda: bench.experiment(1), lambda record: record.state is State.TERMINAL)
    for _ in range(2):
        answer = await client.http.post("/api/v1/experiments/1/archive")
        assert (answer.status_code, answer.json()["experiment"]["archived"]) == (200, True)
    assert await _ids(client) == [1]
    assert await _ids(client, archived=True) == [1]
    assert await _ids(client, archived=False) == []
    request = pb.ListExperimentsRequest(archived=False)
    assert not (await client.gateway.ListExperiments(request, metadata=client.metadata)).experiments
    shown = (await client.http.get("/api/v1/experiments/1")).json()["experiment"]
    assert (shown["archived"], shown["outcome"]) == (True, "COMPLETED")
    answer = await client.http.post("/api/v1/experiments/1/unarchive")
    assert answer.json()["experiment"]["archived"] is False
    assert await bench.experiment(1) == before
    assert await _ids(client, archived=False) == [1]


async def test_a_deleted_experiment_leaves_nothing_behind(bench: Bench, gateway: GatewayProcess) -> None:
    """Files, history and records go, of this experiment only. Its id is never given out again."""
    storage, database = bench.directory / "storage", bench.directory / "gateway.db"
    await put_experiment(bench.etcd, storage, 7, "a", num_checkpoints=40)
    await put_experiment(bench.etcd, storage, 71, "b")
    others = [path for path in list_files(storage) if "71" in path or path.startswith("code/b")]
    await bench.scheduler()
    await gateway.start()
    fill_history(database, 7, num_lines=4500)
    fill_history(database, 71)
    kept_rows = count_rows(database, 71)
    kept_keys = await list_keys(bench.etcd, 71)
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    status, answer = await _delete(client, 7)
    assert (status, answer["experiment"]["isDeleting"]) == (200, True)
    await _gone(bench, 7)
    assert list_files(storage) == others
    assert sorted(path.name for path in (storage / "tensorboard").iterdir()) == ["71.1", "71.2", "71.3"]
    assert count_rows(database, 7) == {}
    assert count_rows(database, 71) == kept_rows
    assert await list_keys(bench.etcd, 71) == kept_keys

    async def is_unknown() -> bool:
        return (await client.http.get("/api/v1/experiments/7")).status_code == 404

    await until_async(is_unknown, "the gateway not finding it", SECONDS)
    assert await _ids(client) == [71]
    assert await _delete(client, 7) == (200, {"experiment": None})
    never = await _delete(client, 72)
    assert (never[0], never[1]["code"]) == (404, "experiment.not_found")
    # A runner that was away delivers what it has left.
    batch = ingest_pb2.IngestRequest(spool_id="7.1.1/0", trial_id="7.1")
    batch.records.add(sequence=6, at=1.0).log.text = "late"
    stream = client.ingest.Ingest(iter([batch]), metadata=client.runner_metadata("7.1.1"))
    [settled] = [response async for response in stream]
    assert (settled.stored_sequence, settled.over_reason) == (6, "experiment 7 is deleted")
    assert count_rows(database, 7) == {}
    assert (await bench.caller.submit(config_json())).experiment.id == 72
    await client.close()


async def test_code_that_another_experiment_uses_stays(bench: Bench, gateway: GatewayProcess) -> None:
    storage = bench.directory / "storage"
    await put_experiment(bench.etcd, storage, 7, "a")
    await put_experiment(bench.etcd, storage, 8, "a")
    await bench.scheduler()
    await gateway.start()
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    await _delete(client, 7)
    await _gone(bench, 7)
    archive = storage / "code" / f"{'a' * 64}.tar.gz"
    assert archive.exists()
    await _delete(client, 8)
    await _gone(bench, 8)
    assert list_files(storage) == []
    await client.close()


async def test_only_the_owner_and_administrators_delete(bench: Bench, gateway: GatewayProcess) -> None:
    await put_experiment(bench.etcd, bench.directory / "storage", 7, "a")
    await put_experiment(bench.etcd, bench.directory / "storage", 8, "a")
    await add_user(bench.etcd, "bob", BOB_TOKEN)
    await add_user(bench.etcd, "root", "token-of-root", is_admin=True)
    await bench.scheduler()
    await gateway.start()
    before = await list_keys(bench.etcd, 7)
    addresses = gateway.addresses["grpc"], gateway.addresses["http"]
    bob, alice, root = (Client(*addresses, token) for token in (BOB_TOKEN, Client.token, "token-of-root"))
    status, answer = await _delete(bob, 7)
    assert (status, answer["code"]) == (403, "auth.not_owner")
    assert answer["detail"] == "bob may not delete experiment 7: only alice and administrators may; ask one of them"
    assert await list_keys(bench.etcd, 7) == before
    assert (await _delete(alice, 7))[0] == 200
    assert (await _delete(root, 8))[0] == 200
    for experiment_id in (7, 8):
        await _gone(bench, experiment_id)
    for client in (bob, alice, root):
        await client.close()


async def test_a_storage_that_is_away_makes_the_deletion_wait_and_say_so(bench: Bench, gateway: GatewayProcess) -> None:
    """Meanwhile no part of the experiment is shown as if it were whole."""
    storage = bench.directory / "storage"
    await put_experiment(bench.etcd, storage, 7, "a", num_checkpoints=0)
    await bench.scheduler()
    await gateway.start()
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    away = _take_away(storage, "tensorboard")
    await _delete(client, 7)

    async def says_so() -> str:
        answer = await client.http.get("/api/v1/experiments/7")
        assert (answer.status_code, answer.json()["code"]) == (409, "experiment.deleting")
        return answer.json()["detail"] if "Not a directory" in answer.json()["detail"] else ""

    detail = await until_async(says_so, "the reason of the wait", SECONDS)
    assert detail.startswith("experiment 7 is being deleted, which is tried again until it works: ")
    for path in ("trials/7.1", "experiments/7/logs", "experiments/7/checkpoints", "experiments/7/trials"):
        assert (await client.http.get(f"/api/v1/{path}")).json()["code"] == "experiment.deleting"
    assert (await client.http.post("/api/v1/experiments/7/archive")).json()["code"] == "experiment.deleting"
    [listed] = (await client.http.get("/api/v1/experiments")).json()["experiments"]
    assert (listed["id"], listed["isDeleting"]) == (7, True)
    assert len(await list_keys(bench.etcd, 7)) > 1
    _bring_back(storage, away, "tensorboard")
    await _gone(bench, 7)
    assert list_files(storage) == []
    await client.close()


@pytest.mark.parametrize("is_code_left", [False, True])
async def test_a_deletion_outlives_the_death_of_leader_and_gateway(
    bench: Bench, gateway: GatewayProcess, is_code_left: bool
) -> None:
    """Both are killed in the middle: while checkpoints are left, or while only the code is left."""
    storage = bench.directory / "storage"
    await put_experiment(bench.etcd, storage, 7, "a", num_checkpoints=50)
    leader = await bench.scheduler("s1")
    await gateway.start()
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    fill_history(bench.directory / "gateway.db", 7)
    blocked = storage / ("code" if is_code_left else "checkpoints")
    away = _take_away(storage, blocked.name)
    await _delete(client, 7)

    async def is_waiting() -> bool:
        num_left = len(await list_keys(bench.etcd, 7))
        return num_left == 1 if is_code_left else "trying again" in gateway.output()

    await until_async(is_waiting, "a deletion that waits", SECONDS)
    await gateway.end()
    leader.end()
    _bring_back(storage, away, blocked.name)
    assert await list_keys(bench.etcd, 7), "the record goes last"
    await bench.scheduler("s2")
    await gateway.start()
    await _gone(bench, 7)
    assert list_files(storage) == []
    assert count_rows(bench.directory / "gateway.db", 7) == {}
    await client.close()


@pytest.mark.parametrize("stage", list(DeletionStage))
async def test_leader_and_gateway_that_start_continue_each_stage(
    bench: Bench, gateway: GatewayProcess, stage: DeletionStage
) -> None:
    """Nothing is marked yet, as by a leader that died after it had accepted the deletion."""
    storage = bench.directory / "storage"
    num_checkpoints = 40 if stage is DeletionStage.FILES else 0
    await put_experiment(bench.etcd, storage, 7, "a", num_checkpoints=num_checkpoints, deletion=stage)
    if stage is DeletionStage.CODE:
        others = [key for key in await list_keys(bench.etcd, 7) if key != keys.experiment(7)]
        await bench.etcd.commit([Delete(key) for key in others])
    await bench.scheduler()
    await gateway.start()
    await _gone(bench, 7)
    left = list_files(storage)
    assert left == [] if stage is DeletionStage.FILES else not any(path.startswith("code/") for path in left)


async def test_gateway_killed_again_and_again_finishes(bench: Bench, gateway: GatewayProcess) -> None:
    storage = bench.directory / "storage"
    await put_experiment(bench.etcd, storage, 7, "a", num_checkpoints=60)
    await bench.scheduler()
    await gateway.start()
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    await _delete(client, 7)
    await client.close()
    left = 62
    while await list_keys(bench.etcd, 7):
        now = len(list((storage / "checkpoints").iterdir()))
        if now <= left - 20:
            left = now
            await gateway.end()
            await gateway.start()
    assert list_files(storage) == []


async def test_code_of_a_deleted_experiment_is_uploaded_again(bench: Bench, client: Client) -> None:
    """A submit right after the deletion does not rely on the archive that was there before."""
    storage = bench.directory / "storage"
    agent = await bench.agent("a1")
    submitted = await bench.caller.submit(config_json(), owner="alice")
    [spec] = await agent.started()
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    make_files(storage, 1, "0", [])
    await bench.eventually(lambda: bench.experiment(1), lambda record: record.state is State.TERMINAL)
    body = {"config": {"name": "n", "entrypoint": "python3 t.py", "searcher": {"name": "single", "metric": "x"}}}
    body |= {"codeSha256": submitted.experiment.code_sha256}  # type: ignore[dict-item]
    await _delete(client, 1)
    await _gone(bench, 1)
    refused = await client.http.post("/api/v1/experiments", json=body)
    assert (refused.status_code, refused.json()["code"]) == (404, "code.not_uploaded")


async def test_a_submit_that_left_a_gateway_before_the_deletion_ended_makes_no_experiment(
    bench: Bench, client: Client
) -> None:
    """Its gateway found the code in the storage. The submit reaches the leader after the code was deleted."""
    agent = await bench.agent("a1")
    submitted = await bench.caller.submit(config_json(), owner="alice")
    [spec] = await agent.started()
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    make_files(bench.directory / "storage", 1, "0", [])
    await bench.eventually(lambda: bench.experiment(1), lambda record: record.state is State.TERMINAL)
    await _delete(client, 1)
    await _gone(bench, 1)
    late = scheduler_pb2.SubmitExperimentRequest(
        request_id="late",
        owner="alice",
        config_json=config_json(),
        code_sha256=submitted.experiment.code_sha256,
        num_deleted_experiments=0,
    )
    [result] = await bench.caller.submit_group(late)
    assert result.error.code == "code.deleting"
    assert await list_keys(bench.etcd, 2) == []
    late.num_deleted_experiments = 1
    [result] = await bench.caller.submit_group(late)
    assert result.created.experiment.id == 2


async def test_an_experiment_created_right_after_a_deletion_has_its_code(bench: Bench, client: Client) -> None:
    """The same code is uploaded and submitted while gateways delete it, ten times."""
    code = bench.directory / "own"
    code.mkdir()
    (code / "train.py").write_text("pass\n")
    config = "name: again\nentrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"

    def create_and_delete() -> None:
        with Session(client.grpc_address, client.token, retry_seconds=20) as session:
            for number in range(1, 11):
                created = session.create_experiment(config, code).experiment
                archive = bench.directory / "storage" / "code" / f"{created.code_sha256}.tar.gz"
                assert created.id == number
                assert archive.exists(), f"experiment {number} has no code"
                session.kill_experiment(number)
                session.delete_experiment(number)

    await asyncio.to_thread(create_and_delete)
    for number in range(1, 11):
        await _gone(bench, number)
    assert list_files(bench.directory / "storage") == []


def _take_away(storage: Path, name: str) -> Path:
    """Puts a file in the place of the folder, so that each access to it fails."""
    away = storage.with_name("away")
    (storage / name).rename(away)
    (storage / name).write_text("")
    return away


def _bring_back(storage: Path, away: Path, name: str) -> None:
    (storage / name).unlink()
    away.rename(storage / name)
