"""The output of trials through a real gateway: a list, one file, and all of it; and nothing else of the storage."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest

from gangline.v1 import gateway_pb2 as pb
from services.common.etcd import EtcdClient
from tests.support.gateway import Client, put_trials

CONTENT = {"a b.csv": b"", "deep/er/model": b"m" * (3 << 20), "new\nline": b"n"}


@pytest.fixture
async def folder(client: Client, etcd: EtcdClient, tmp_path: Path) -> Path:
    """The output of trial 7.1; trial 7.2 has none."""
    await put_trials(client, etcd)
    folder = tmp_path / "storage/outputs/7.1"
    (folder / "deep/er").mkdir(parents=True)
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    # What a trial may leave there beside its output.
    (tmp_path / "secret").write_text("token")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    (folder / "deep/.partial-7.1.1-0a").write_text("half")
    (folder / os.fsdecode(b"\xff")).write_text("x")
    os.mkfifo(folder / "pipe")
    return folder


async def test_a_list_and_single_files(client: Client, folder: Path) -> None:
    answer = await client.http.get("/api/v1/trials/7.1/output")
    sizes = [{"path": path, "numBytes": len(content)} for path, content in CONTENT.items()]
    assert answer.json() == {"files": sizes}
    # A route's path has no newline; the stream of all files has that one.
    for path in ("a b.csv", "deep/er/model"):
        answer = await client.http.get(f"/api/v1/trials/7.1/output/{path}")
        assert (answer.status_code, answer.content) == (200, CONTENT[path])
    assert (await client.http.get("/api/v1/trials/7.2/output")).json() == {"files": []}


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("7.1/output/gone", "output.no_file"),
        ("7.1/output/deep/.partial-7.1.1-0a", "output.no_file"),
        ("7.1/output/..%2F..%2F..%2Fsecret", "output.no_file"),
        ("7.1/output/a%00b", "output.no_file"),
        ("7.1/output/link", "storage.elsewhere"),
        ("7.1/output/folder/secret", "storage.elsewhere"),
        ("7.1/output/pipe", "storage.elsewhere"),
        ("7.1/output/deep", "storage.elsewhere"),
        ("7.3/output", "trial.not_found"),
        ("7.3/output/a", "trial.not_found"),
    ],
)
async def test_nothing_else_is_handed_out(client: Client, folder: Path, path: str, code: str) -> None:
    answer = await client.http.get(f"/api/v1/trials/{path}")
    assert answer.json()["code"] == code


async def test_all_files_in_one_stream(client: Client, folder: Path) -> None:
    received: dict[str, bytes] = {}
    totals, path = [], ""
    request = pb.DownloadOutputRequest(trial_id="7.1")
    async for message in client.gateway.DownloadOutput(request, metadata=client.metadata):
        path = message.path or path
        received[path] = received.get(path, b"") + message.chunk
        totals.append(message.total_bytes)
    assert received == CONTENT
    assert (totals[0], set(totals[1:])) == (sum(map(len, CONTENT.values())), {0})


async def test_a_trial_without_output_is_told_so(client: Client, folder: Path) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=r"trial 7\.2 has no output") as failure:
        async for _ in client.gateway.DownloadOutput(
            pb.DownloadOutputRequest(trial_id="7.2"), metadata=client.metadata
        ):
            pass
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND
