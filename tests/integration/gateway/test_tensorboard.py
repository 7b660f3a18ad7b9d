"""The TensorBoard files of trials, fetched through a real gateway: only what is new, and nothing else."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from gangline.v1 import gateway_pb2 as pb
from services.common.etcd import EtcdClient
from tests.support.gateway import Client, put_trials

EVENTS = "7.1/events.out.tfevents.1.host"


@pytest.fixture
async def folder(client: Client, etcd: EtcdClient, tmp_path: Path) -> Path:
    """The folder of TensorBoard files in the storage; experiment 7 has the trials 7.1 and 7.2, each with a file."""
    trials = await put_trials(client, etcd)
    folder = tmp_path / "storage" / "tensorboard"
    for trial in trials:
        (folder / trial.id).mkdir(parents=True)
        (folder / trial.id / "events.out.tfevents.1.host").write_bytes(b"first ")
    return folder


async def _fetch(client: Client, trial_id: str = "", **num_bytes: int) -> list[tuple[str, int, bytes]]:
    """path, offset and content of each file. num_bytes: what the caller has of EVENTS and of its trace."""
    request = pb.DownloadTensorboardRequest(experiment_id=7, trial_id=trial_id, num_bytes_by_path=num_bytes)
    files: list[tuple[str, int, bytes]] = []
    async for message in client.gateway.DownloadTensorboard(request, metadata=client.metadata):
        if message.path:
            files.append((message.path, message.offset, message.chunk))
        else:
            path, offset, content = files[-1]
            files[-1] = (path, offset, content + message.chunk)
    return files


async def test_all_trials_or_one(client: Client, folder: Path) -> None:
    assert [path for path, _, _ in await _fetch(client)] == [EVENTS, EVENTS.replace("7.1", "7.2")]
    assert await _fetch(client, "7.1") == [(EVENTS, 0, b"first ")]


async def test_only_what_was_appended_is_sent_again(client: Client, folder: Path) -> None:
    large = b"second" * 500_000
    with (folder / EVENTS).open("ab") as file:
        file.write(large)
    assert await _fetch(client, "7.1", **{EVENTS: 6}) == [(EVENTS, 6, large)]
    assert await _fetch(client, "7.1", **{EVENTS: 6 + len(large)}) == []
    # The storage has less than the caller: the file was written anew.
    (folder / EVENTS).write_bytes(b"new")
    assert await _fetch(client, "7.1", **{EVENTS: 6}) == [(EVENTS, 0, b"new")]


async def test_a_file_that_is_no_event_file_is_sent_whole(client: Client, folder: Path) -> None:
    trace = "7.1/rank1/batches_1_to_2.pt.trace.json"
    (folder / trace).parent.mkdir()
    (folder / trace).write_bytes(b"{}")
    (folder / "7.1" / "empty").touch()
    have = {EVENTS: 6, trace: 1}
    assert await _fetch(client, "7.1", **have) == [("7.1/empty", 0, b""), (trace, 0, b"{}")]


async def test_links_lead_nowhere(client: Client, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("token")
    (folder / "7.1" / "link.tfevents").symlink_to(tmp_path / "secret")
    (folder / "7.1" / "outside").symlink_to(tmp_path)
    assert [path for path, _, _ in await _fetch(client, "7.1")] == [EVENTS]


@pytest.mark.parametrize(
    ("experiment_id", "trial_id", "status", "words"),
    [
        (9, "", grpc.StatusCode.NOT_FOUND, "there is no experiment 9"),
        (7, "7.9", grpc.StatusCode.NOT_FOUND, "there is no trial 7.9"),
        (7, "8.1", grpc.StatusCode.INVALID_ARGUMENT, "trial 8.1 is not one of experiment 7"),
        (7, "../..", grpc.StatusCode.INVALID_ARGUMENT, "'../..'"),
    ],
)
async def test_what_is_not_there_is_refused(
    client: Client, folder: Path, *, experiment_id: int, trial_id: str, status: grpc.StatusCode, words: str
) -> None:
    request = pb.DownloadTensorboardRequest(experiment_id=experiment_id, trial_id=trial_id)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in client.gateway.DownloadTensorboard(request, metadata=client.metadata):
            pass
    assert caught.value.code() is status
    assert words in str(caught.value.details())
