"""Imports through a gateway: the files and their record, or neither; a lost answer; the same content twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline.domain.experiment import Checkpoint
from gangline.errors import conflict, unavailable
from gangline.protocol import rpc, wire
from gangline.v1 import gateway_pb2 as pb
from services.common import keys
from services.common.etcd import EtcdClient
from tests.support.gateway import Client, add_user
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until

_CONTENT = {"a.bin": b"x" * 70_000, "sub/b": b"second"}


async def _messages(name: str = "mine", content: dict[str, bytes] = _CONTENT) -> AsyncIterator[Any]:
    files = [
        pb.ImportedFile(path=path, bytes=len(text), sha256=hashlib.sha256(text).hexdigest())
        for path, text in content.items()
    ]
    metadata = json.dumps({"steps_completed": 8})
    yield pb.ImportCheckpointRequest(request_id="r1", name=name, metadata_json=metadata, files=files)
    for text in content.values():
        yield pb.ImportCheckpointRequest(chunk=text)


async def _import(client: Client, messages: AsyncIterator[Any] | None = None) -> tuple[Checkpoint, bool]:
    answer = await client.gateway.ImportCheckpoint(messages or _messages(), metadata=client.metadata)
    return wire.from_proto(Checkpoint, answer.checkpoint), answer.is_new


async def _code_of(client: Client, messages: AsyncIterator[Any]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _import(client, messages)
    return rpc.error_of(caught.value, "").code


def _names(storage: Path) -> list[str]:
    folder = storage / "checkpoints"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


async def test_stored_listed_and_imported_once(client: Client, leader: StandInLeader, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    checkpoint, is_new = await _import(client)
    assert (is_new, checkpoint.imported_as, checkpoint.batches_completed) == (True, "mine", 8)
    assert (checkpoint.trial_id, checkpoint.experiment_id) == ("", 0)
    assert (storage / "checkpoints" / checkpoint.id / "sub" / "b").read_bytes() == b"second"
    again, is_new = await _import(client, _messages("other name"))
    assert (again.id, again.imported_as, is_new) == (checkpoint.id, "mine", False)
    assert _names(storage) == [checkpoint.id]
    listed = (await client.http.get("/api/v1/checkpoints")).json()["checkpoints"]
    assert [(each["id"], each["importedAs"], each["totalBatches"]) for each in listed] == [(checkpoint.id, "mine", 8)]


async def test_only_its_owner_and_administrators_delete_it(
    client: Client, etcd: EtcdClient, leader: StandInLeader
) -> None:
    checkpoint, _ = await _import(client)
    assert checkpoint.owner == "alice"
    await add_user(etcd, "bob", "token-of-bob-in-the-tests")
    request = pb.DeleteCheckpointsRequest(request_id="r2", checkpoint_ids=[checkpoint.id])
    bob = (("authorization", "Bearer token-of-bob-in-the-tests"),)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.gateway.DeleteCheckpoints(request, metadata=bob)
    assert rpc.error_of(caught.value, "").code == "auth.not_owner"
    assert leader.checkpoint_deletions == []


async def test_refused_record_removes_the_files(client: Client, leader: StandInLeader, tmp_path: Path) -> None:
    leader.import_failure = conflict("checkpoint.deleting", "it is being deleted")
    assert await _code_of(client, _messages()) == "checkpoint.deleting"
    assert _names(tmp_path / "storage") == []


@pytest.mark.usefixtures("short_patience")
async def test_lost_answer_keeps_the_files_and_a_repetition_finds_them(
    client: Client, leader: StandInLeader, etcd: EtcdClient, tmp_path: Path
) -> None:
    """The record may have been made, so its files must stay."""
    leader.import_failure = unavailable("rpc.unreachable", "the answer is lost")
    with pytest.raises(grpc.aio.AioRpcError):
        await _import(client)
    names = _names(tmp_path / "storage")
    assert len(names) == 1
    assert not (await etcd.list(keys.CHECKPOINTS)).items
    leader.import_failure = None
    checkpoint, is_new = await _import(client)
    assert ([checkpoint.id], is_new) == (names, True)


async def test_client_that_goes_away_leaves_nothing(client: Client, leader: StandInLeader, tmp_path: Path) -> None:
    storage, has_gone = tmp_path / "storage", asyncio.Event()

    async def half() -> AsyncIterator[Any]:
        messages = _messages()
        yield await anext(messages)
        yield await anext(messages)
        await has_gone.wait()

    call = client.gateway.ImportCheckpoint(half(), metadata=client.metadata)
    await until(lambda: len(_names(storage)) == 1, "the first file", 20)
    call.cancel()
    await until(lambda: _names(storage) == [], "the removal of the half import", 20)
    has_gone.set()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ({"../a": b"x"}, "checkpoint.path"),
        ({"metadata.json": b"{}"}, "checkpoint.path"),
        ({"/a": b""}, "checkpoint.path"),
    ],
)
async def test_hostile_paths(
    client: Client, leader: StandInLeader, tmp_path: Path, content: dict[str, bytes], code: str
) -> None:
    assert await _code_of(client, _messages(content=content)) == code
    assert _names(tmp_path / "storage") == []


async def test_lying_client(client: Client, leader: StandInLeader, tmp_path: Path) -> None:
    async def other_content() -> AsyncIterator[Any]:
        messages = _messages()
        yield await anext(messages)
        yield pb.ImportCheckpointRequest(chunk=b"y" * 70_000)

    async def nothing() -> AsyncIterator[Any]:
        for each in list[Any]():
            yield each

    assert await _code_of(client, other_content()) == "checkpoint.upload"
    assert await _code_of(client, nothing()) == "checkpoint.upload"
    assert _names(tmp_path / "storage") == []
