"""Code archives and checkpoints through a gateway: what is kept, what is refused, and that nothing stays behind."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline.domain.allocation import Allocation, Member
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.resource import Agent, Slot
from gangline.domain.state import State
from gangline.protocol import rpc, wire
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings, Put
from services.gateway.program import run_gateway
from tests.support.gateway import CONFIG, Client, add_user, pack, settings_in, sha256
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until_async

ARCHIVE = pack({"model_def.py": b"x = 1\n" * 500_000, "data.bin": bytes(range(256)) * 9000})


def stored(folder: Path) -> list[str]:
    return [path.name for path in (folder / "storage" / "code").glob("*")]


async def upload(client: Client, announced: str, *chunks: bytes) -> Any:
    requests = [pb.UploadCodeRequest(code_sha256=announced), *(pb.UploadCodeRequest(chunk=chunk) for chunk in chunks)]
    return await client.gateway.UploadCode(iter(requests), metadata=client.metadata)


async def test_uploaded_code_reaches_the_runner_unchanged(client: Client, etcd: EtcdClient, tmp_path: Path) -> None:
    name = sha256(ARCHIVE)
    await upload(client, name, ARCHIVE[:1000], ARCHIVE[1000:])
    await upload(client, name, ARCHIVE)
    assert stored(tmp_path) == [f"{name}.tar.gz"]
    fetching = client.ingest.FetchCode(
        ingest_pb2.FetchCodeRequest(code_sha256=name), metadata=client.runner_metadata("7.1.1")
    )
    # The runner may be quicker than the gateway's mirror.
    await etcd.commit([Put(keys.experiment(7), wire.encode(Experiment(7, "n", "alice", "{}", name)))])
    assert b"".join([answer.chunk async for answer in fetching]) == ARCHIVE


async def test_runner_may_not_fetch_the_code_of_others(client: Client, etcd: EtcdClient) -> None:
    await upload(client, sha256(ARCHIVE), ARCHIVE)
    await etcd.commit([Put(keys.experiment(7), wire.encode(Experiment(7, "n", "alice", "{}", "b" * 64)))])
    answers = client.ingest.FetchCode(
        ingest_pb2.FetchCodeRequest(code_sha256=sha256(ARCHIVE)), metadata=client.runner_metadata("7.1.1")
    )
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        [answer async for answer in answers]
    assert failure.value.code() is grpc.StatusCode.PERMISSION_DENIED


def submit_of(code_sha256: str, forked_from: int = 0) -> pb.CreateExperimentRequest:
    return pb.CreateExperimentRequest(
        request_id=uuid.uuid4().hex, config_json=json.dumps(CONFIG), code_sha256=code_sha256, forked_from=forked_from
    )


async def refusal(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return rpc.error_of(failure.value, "").code


async def test_code_of_another_user_is_submitted_only_by_who_has_its_content(
    client: Client, etcd: EtcdClient, etcd_settings: EtcdSettings, leader: StandInLeader, tmp_path: Path
) -> None:
    """bob knows the sha256 of alice's code, as all views show it."""
    name = sha256(ARCHIVE)
    await upload(client, name, ARCHIVE)
    created = await client.gateway.CreateExperiment(submit_of(name), metadata=client.metadata)
    parent_id = created.experiment.id
    await add_user(etcd, "bob", "token-of-bob")
    async with run_gateway(settings_in(tmp_path, etcd_settings)) as addresses:
        # Another gateway over the same storage remembers nothing.
        bob, alice = Client(addresses.grpc, addresses.http, "token-of-bob"), Client(addresses.grpc, addresses.http)
        await until_async(lambda: has(bob, f"/api/v1/experiments/{parent_id}"), "the gateway seeing the experiment")
        submit = bob.gateway.CreateExperiment
        assert await refusal(submit(submit_of(name), metadata=bob.metadata)) == "code.not_uploaded"
        assert await refusal(submit(submit_of(name, parent_id), metadata=bob.metadata)) == "auth.not_owner"
        # To announce the archive is not to have it.
        assert await refusal(upload(bob, name)) == "code.wrong_sha256"
        assert await refusal(submit(submit_of(name), metadata=bob.metadata)) == "code.not_uploaded"
        forked = await alice.gateway.CreateExperiment(submit_of(name, parent_id), metadata=alice.metadata)
        assert forked.experiment.owner == "alice"
        await upload(bob, name, ARCHIVE)
        own = await submit(submit_of(name), metadata=bob.metadata)
        assert (own.experiment.owner, own.experiment.code_sha256) == ("bob", name)
        assert stored(tmp_path) == [f"{name}.tar.gz"], "equal archives are stored once"
        await bob.close()
        await alice.close()
    # The first gateway has bob's right from the storage.
    again = Client(client.grpc_address, client.http_address, "token-of-bob")
    assert (await again.gateway.CreateExperiment(submit_of(name), metadata=again.metadata)).experiment.owner == "bob"
    await again.close()


async def test_http_takes_a_raw_archive(client: Client, tmp_path: Path) -> None:
    answer = await client.http.put(f"/api/v1/code/{sha256(ARCHIVE)}", content=ARCHIVE)
    assert answer.json() == {"codeSha256": sha256(ARCHIVE)}
    assert stored(tmp_path) == [f"{sha256(ARCHIVE)}.tar.gz"]


@pytest.mark.parametrize(
    ("make", "code", "part"),
    [
        (lambda: ARCHIVE[:-20], "code.corrupt", "damaged"),
        (lambda: b"hello", "code.corrupt", "no gzipped tar"),
        (lambda: pack({"../up": b"x"}), "code.unsafe_path", "../up"),
        (lambda: pack({"big": bytes(96 << 20)}), "code.too_big", "at most 95 MB"),
    ],
    ids=["truncated", "no archive", "path outside", "too large"],
)
async def test_refused_archives_leave_nothing_behind(
    client: Client, tmp_path: Path, make: Callable[[], bytes], code: str, part: str
) -> None:
    content = make()
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await upload(client, sha256(content), content)
    error = rpc.error_of(failure.value, "")
    assert error.code == code
    assert part in error.message
    assert "\n" not in error.message
    answer = await client.http.put(f"/api/v1/code/{sha256(content)}", content=content)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert stored(tmp_path) == []


async def test_upload_that_does_not_match_its_sha256_is_refused(client: Client, tmp_path: Path) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await upload(client, "c" * 64, ARCHIVE)
    assert rpc.error_of(failure.value, "").code == "code.wrong_sha256"
    assert stored(tmp_path) == []


@pytest.fixture
async def checkpoint(client: Client, etcd: EtcdClient, tmp_path: Path) -> Checkpoint:
    folder = tmp_path / "storage" / "checkpoints" / "c1"
    (folder / "sub").mkdir(parents=True)
    contents = {"empty": b"", "model.pt": bytes(range(256)) * 8192 + b"end", "sub/meta.json": b"{}"}
    for path, content in contents.items():
        (folder / path).write_bytes(content)
    sizes = {path: len(content) for path, content in contents.items()}
    (folder / "metadata.json").write_bytes(b'{"manifest": {}}')
    checkpoint = Checkpoint("c1", "7.1", 7, 100, str(folder), sizes, '{"steps": 100}', 1.0)
    await etcd.commit(
        [
            Put(keys.experiment(7), wire.encode(Experiment(7, "n", "alice", "{}", "b" * 64))),
            Put(keys.checkpoint("c1"), wire.encode(checkpoint)),
        ]
    )
    await until_async(lambda: has(client, "/api/v1/checkpoints/c1"), "the gateway seeing the checkpoint")
    return checkpoint


async def has(client: Client, path: str) -> bool:
    return (await client.http.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("experiment_id", "checkpoint_id", "expected"),
    [(0, "c1", ["c1"]), (7, "c1", ["c1"]), (8, "c1", []), (0, "c2", ["c2"]), (7, "c3", []), (7, "", ["c1"])],
)
@pytest.mark.usefixtures("checkpoint")
async def test_one_checkpoint_is_listed_alone(
    client: Client, etcd: EtcdClient, experiment_id: int, checkpoint_id: str, expected: list[str]
) -> None:
    other = Experiment(8, "n", "alice", "{}", "b" * 64)
    await etcd.commit(
        [
            Put(keys.experiment(8), wire.encode(other)),
            Put(keys.checkpoint("c2"), wire.encode(Checkpoint("c2", "8.1", 8, 100, "/nowhere"))),
        ]
    )
    await until_async(lambda: has(client, "/api/v1/checkpoints/c2"), "the gateway seeing the other checkpoint")
    request = pb.ListCheckpointsRequest(experiment_id=experiment_id, checkpoint_id=checkpoint_id)
    listed = await client.gateway.ListCheckpoints(request, metadata=client.metadata)
    assert [each.id for each in listed.checkpoints] == expected


async def test_checkpoint_is_listed_and_downloaded_whole(client: Client, checkpoint: Checkpoint) -> None:
    listed = await client.gateway.ListCheckpoints(pb.ListCheckpointsRequest(experiment_id=7), metadata=client.metadata)
    assert [each.id for each in listed.checkpoints] == ["c1"]
    received: dict[str, bytes] = {}
    path = ""
    downloading = client.gateway.DownloadCheckpoint(
        pb.DownloadCheckpointRequest(checkpoint_id="c1"), metadata=client.metadata
    )
    async for answer in downloading:
        path = answer.path or path
        received[path] = received.get(path, b"") + answer.chunk
    assert list(received)[-1] == "metadata.json"
    assert received.pop("metadata.json") == b'{"manifest": {}}'
    assert {name: len(content) for name, content in received.items()} == dict(checkpoint.file_bytes)
    assert received["model.pt"].endswith(b"end")
    answer = await client.http.get("/api/v1/checkpoints/c1/files/sub/meta.json")
    assert answer.content == b"{}"
    described = (await client.http.get("/api/v1/experiments/7/checkpoints")).json()["checkpoints"][0]
    assert described["resources"]["model.pt"] == 8192 * 256 + 3
    assert described["metadata"] == {"steps": 100}


async def test_missing_file_is_an_error_not_a_short_download(client: Client, checkpoint: Checkpoint) -> None:
    Path(checkpoint.url, "model.pt").unlink()  # noqa: ASYNC240  a small local file
    answer = await client.http.get("/api/v1/checkpoints/c1/files/model.pt")
    assert (answer.status_code, answer.json()["code"]) == (404, "checkpoint.missing")


async def test_file_that_is_not_of_the_checkpoint_is_refused(client: Client, checkpoint: Checkpoint) -> None:
    answer = await client.http.get("/api/v1/checkpoints/c1/files/other")
    assert answer.json()["code"] == "checkpoint.no_file"


@pytest.mark.parametrize("url", ["{storage}/code", "{storage}/code/../code", "{storage}/checkpoints/c1"])
async def test_a_checkpoints_folder_is_its_own_and_no_other(
    client: Client, etcd: EtcdClient, checkpoint: Checkpoint, url: str
) -> None:
    """Everyone may download a checkpoint, and only the owner of an experiment its code."""
    storage = Path(checkpoint.url).parent.parent
    (storage / "code").mkdir(exist_ok=True)
    (storage / "code" / "model.pt").write_text("of another user")
    forged = Checkpoint("forged", "7.1", 7, 1, url.format(storage=storage), {"model.pt": 15}, "{}", 1.0)
    await etcd.commit([Put(keys.checkpoint("forged"), wire.encode(forged))])
    await until_async(lambda: has(client, "/api/v1/checkpoints/forged"), "the gateway seeing the checkpoint")
    answer = await client.http.get("/api/v1/checkpoints/forged/files/model.pt")
    code = "storage.elsewhere" if ".." in url else "checkpoint.place"
    assert (answer.status_code, answer.json()["code"]) == (409, code)


@pytest.mark.parametrize("name", ["outside", "link"])
async def test_checkpoint_outside_of_the_storage_is_not_read(
    client: Client, etcd: EtcdClient, checkpoint: Checkpoint, tmp_path: Path, name: str
) -> None:
    """A trial names its checkpoint's folder, so it must not be able to name any folder of the gateway's machine."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_text("secret")
    link = Path(checkpoint.url).parent / "link"
    link.symlink_to(secret)
    forged = Checkpoint(name, "7.1", 7, 1, str(secret if name == "outside" else link), {"file": 6}, "{}", 1.0)
    await etcd.commit([Put(keys.checkpoint(name), wire.encode(forged))])
    await until_async(lambda: has(client, f"/api/v1/checkpoints/{name}"), "the gateway seeing the checkpoint")
    answer = await client.http.get(f"/api/v1/checkpoints/{name}/files/file")
    assert (answer.status_code, answer.json()["code"]) == (409, "storage.elsewhere")


async def test_tasks_and_agents_name_who_holds_what(client: Client, etcd: EtcdClient) -> None:
    agent = Agent("a1", slots=(Slot("a1/0"), Slot("a1/1")))
    allocation = Allocation("7.1.1", "7.1", 7, 1, 1, "default", (Member("a1", 0, ("a1/1",)),), State.RUNNING)
    await etcd.commit(
        [
            Put(keys.experiment(7), wire.encode(Experiment(7, "digits", "alice", "{}", "b" * 64))),
            Put(keys.trial("7.1"), wire.encode(Trial("7.1", 7, 1, state=State.RUNNING))),
            Put(keys.agent("a1"), wire.encode(agent)),
            Put(keys.allocation("7.1.1"), wire.encode(allocation)),
        ]
    )
    await until_async(lambda: has(client, "/api/v1/agents/a1"), "the gateway seeing the agent")
    tasks = await client.gateway.ListTasks(pb.ListTasksRequest(), metadata=client.metadata)
    assert [(task.experiment_name, task.allocation.id) for task in tasks.tasks] == [("digits", "7.1.1")]
    view = (await client.http.get("/api/v1/agents")).json()["agents"][0]
    assert view["allocationIdBySlotId"] == {"a1/1": "7.1.1"}
    assert len(view["agent"]["slots"]) == 2
