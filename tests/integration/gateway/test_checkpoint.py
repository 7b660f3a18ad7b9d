"""Deleting checkpoints through both surfaces of a gateway, and what becomes of their files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.resource import Cluster
from gangline.domain.state import CheckpointState, Outcome, State
from gangline.domain.storage.partial import Writer, partial_name
from gangline.protocol import rpc, wire
from gangline.v1 import gateway_pb2 as pb
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings, Put
from tests.support.gateway import Client, GatewayProcess, add_user
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until, until_async

_TRIAL = Trial("7.1", 7, 1, state=State.TERMINAL, outcome=Outcome.COMPLETED, attempts=1, latest_checkpoint_id="c1")
SECONDS = 30.0


async def _save(
    etcd: EtcdClient, storage: Path, *names: str, state: CheckpointState = CheckpointState.COMPLETED
) -> None:
    """Folders in the storage, and their records, as they stand when the trial has ended."""
    checkpoints = [
        Checkpoint(name, "7.1", 7, 1, str(storage / "checkpoints" / name), {"weights": 1}, created_at=1.0, state=state)
        for name in names
    ]
    for checkpoint in checkpoints:
        folder = Path(checkpoint.url)
        await asyncio.to_thread(folder.mkdir, parents=True)
        (folder / "weights").write_text("w")
        (folder / "metadata.json").write_text("{}")
    await etcd.commit(
        [
            Put(keys.experiment(7), wire.encode(Experiment(7, "n", "alice", "{}", "b" * 64))),
            Put(keys.trial("7.1"), wire.encode(_TRIAL)),
            *(Put(keys.checkpoint(checkpoint.id), wire.encode(checkpoint)) for checkpoint in checkpoints),
        ]
    )


def _folders(storage: Path) -> list[str]:
    return sorted(path.name for path in (storage / "checkpoints").iterdir())


async def _seen(client: Client, *names: str) -> None:
    async def is_so() -> bool:
        checkpoints = (await client.http.get("/api/v1/checkpoints")).json()["checkpoints"]
        return sorted(checkpoint["id"] for checkpoint in checkpoints) == sorted(names)

    await until_async(is_so, f"the gateway showing {names}", SECONDS)


async def test_deleted_on_both_surfaces(
    client: Client, etcd: EtcdClient, leader: StandInLeader, tmp_path: Path
) -> None:
    storage = tmp_path / "storage"
    await _save(etcd, storage, "c1", "c2", "c3", "c4", "c5")
    await _seen(client, "c1", "c2", "c3", "c4", "c5")
    request = pb.DeleteCheckpointsRequest(request_id="d1", checkpoint_ids=["c1", "c2"])
    answer = await client.gateway.DeleteCheckpoints(request, metadata=client.metadata)
    assert {
        checkpoint.id: wire.from_proto(Checkpoint, checkpoint).state.value for checkpoint in answer.checkpoints
    } == {
        "c1": "DELETING",
        "c2": "DELETING",
    }
    single = (await client.http.delete("/api/v1/checkpoints/c3")).json()
    assert [(checkpoint["id"], checkpoint["state"]) for checkpoint in single["checkpoints"]] == [("c3", "DELETING")]
    body = {"checkpointUuids": ["c4"]}
    several = await client.http.request("DELETE", "/api/v1/checkpoints", json=body)
    assert [checkpoint["id"] for checkpoint in several.json()["checkpoints"]] == ["c4"]
    await _seen(client, "c5")
    assert _folders(storage) == ["c5"]
    asked = leader.checkpoint_deletions
    assert [(list(change.checkpoint_ids), change.user) for change in asked] == [
        (["c1", "c2"], "alice"), (["c3"], "alice"), (["c4"], "alice"),
    ]  # fmt: skip
    # An ended trial keeps the name of its checkpoint, but nobody is sent there.
    trial = (await client.http.get("/api/v1/experiments/7")).json()["trials"][0]["trial"]
    assert trial["latestCheckpointId"] == ""


async def test_a_policy_is_previewed_and_changed_by_its_owner(
    client: Client, etcd: EtcdClient, leader: StandInLeader, tmp_path: Path
) -> None:
    await _save(etcd, tmp_path / "storage", "c1", "c2")
    await _seen(client, "c1", "c2")
    preview = await client.http.get("/api/v1/experiments/7/preview-gc?saveTrialBest=0&saveTrialLatest=0")
    assert [each["id"] for each in preview.json()["checkpoints"]] == ["c1", "c2"], "and none that is not listed yet"
    request = pb.PreviewRetentionRequest(experiment_id=7)
    request.retention.save_trial_best = 0
    previewed = await client.gateway.PreviewRetention(request, metadata=client.metadata)
    assert [checkpoint.id for checkpoint in previewed.checkpoints] == ["c1", "c2"]
    body = {"checkpointStorage": {"saveTrialBest": 0}, "retentionPolicy": {"metricRetentionDays": 5}}
    changed = (await client.http.patch("/api/v1/experiments/7", json=body)).json()["experiment"]["config"]
    assert (changed["checkpoint_storage"], changed["retention_policy"]) == (
        {"save_trial_best": 0},
        {"metric_retention_days": 5},
    )
    kept = await client.http.put("/api/v1/experiments/7/retain_logs", json={"numDays": -1})
    assert kept.json()["experiment"]["config"]["retention_policy"]["log_retention_days"] == -1
    for bad, code in (
        ({"checkpointStorage": {}}, "retention.nothing"),
        ({"checkpointStorage": {"saveTrialBest": -1}}, "retention.checkpoints"),
        ({"checkpointStorage": {"saveTrialBest": 1}, "name": "x"}, "request.one_change"),
    ):
        assert (await client.http.patch("/api/v1/experiments/7", json=bad)).json()["code"] == code
    await etcd.commit([Put(keys.experiment(7), wire.encode(Experiment(7, "n", "bob", "{}", "b" * 64)))])

    async def is_refused() -> bool:
        answer = await client.http.patch("/api/v1/experiments/7", json=body)
        return bool(answer.status_code == 403 and answer.json()["code"] == "auth.not_owner")

    await until_async(is_refused, "the gateway knowing the new owner", SECONDS)


async def test_a_checkpoint_of_another_user_is_not_deleted(
    client: Client, etcd: EtcdClient, leader: StandInLeader, tmp_path: Path
) -> None:
    await _save(etcd, tmp_path / "storage", "c1")
    await add_user(etcd, "bob", "token-of-bob-in-the-tests")
    await _seen(client, "c1")
    bob = {"Authorization": "Bearer token-of-bob-in-the-tests"}
    for path, body in (("", {"checkpointUuids": ["c1"]}), ("/c1", None)):
        answer = await client.http.request("DELETE", f"/api/v1/checkpoints{path}", json=body, headers=bob)
        assert (answer.status_code, answer.json()["code"]) == (403, "auth.not_owner")
    assert leader.checkpoint_deletions == []


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("", {"checkpointUuids": []}, "checkpoint.none_named"),
        ("", {"uuids": ["x"]}, "request.invalid"),
        ("/none", None, "checkpoint.not_found"),
    ],
)
async def test_bad_deletions_are_refused(
    client: Client, leader: StandInLeader, path: str, body: object, code: str
) -> None:
    answer = await client.http.request("DELETE", f"/api/v1/checkpoints{path}", json=body)
    assert (answer.is_error, answer.json()["code"]) == (True, code)


async def test_deletion_without_a_request_id_is_refused(client: Client, leader: StandInLeader) -> None:
    request = pb.DeleteCheckpointsRequest(checkpoint_ids=["c1"])
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await client.gateway.DeleteCheckpoints(request, metadata=client.metadata)
    assert rpc.error_of(failure.value, "").code == "request.no_id"


async def test_what_is_being_deleted_is_not_handed_out(client: Client, etcd: EtcdClient, tmp_path: Path) -> None:
    """Without a leader, to whom it could be told, its record stays."""
    await _save(etcd, tmp_path / "storage", "c1", state=CheckpointState.DELETING)
    await _seen(client, "c1")
    answer = await client.http.get("/api/v1/checkpoints/c1/files/weights")
    assert (answer.status_code, answer.json()["code"]) == (409, "checkpoint.deleting")


async def test_killed_gateway_resumes(
    etcd: EtcdClient, etcd_settings: EtcdSettings, leader: StandInLeader, tmp_path: Path
) -> None:
    """The gateway has deleted files and not reported it. Files left by an attempt that ended meanwhile are deleted as
    well.
    """
    await add_user(etcd)
    await leader.resign()
    gateway = GatewayProcess(tmp_path, etcd_settings.endpoints[0])
    await gateway.start()
    storage = tmp_path / "storage"
    try:
        await etcd.commit([Put(keys.CLUSTER, wire.encode(Cluster(1, "c1", 1.0)))])
        await _save(etcd, storage, "c1", "c2", state=CheckpointState.DELETING)
        await until(lambda: _folders(storage) == [], "the deletion of the files", SECONDS)
        await gateway.end()
        assert len((await etcd.list(keys.CHECKPOINTS)).items) == 2
        (storage / "checkpoints" / partial_name(Writer("c1", "7.1.1"), "half") / "tensors").mkdir(parents=True)
        await leader.lead()
        await gateway.start()
        await until(lambda: _folders(storage) == [], "the sweep", SECONDS)

        async def is_told() -> bool:
            return not (await etcd.list(keys.CHECKPOINTS)).items

        await until_async(is_told, "the records being dropped", SECONDS)
    finally:
        await gateway.end()
    assert sorted(leader.deleted_checkpoint_ids) == ["c1", "c2"]


async def test_one_checkpoint_that_cannot_be_deleted_is_told_of_nobody(
    client: Client, etcd: EtcdClient, leader: StandInLeader, tmp_path: Path
) -> None:
    """A file stands where its folder should be moved to."""
    storage = tmp_path / "storage"
    (storage / "checkpoints").mkdir(parents=True, exist_ok=True)
    (storage / "checkpoints" / ".removed-c1").write_text("in the way")
    await _save(etcd, storage, "c1", "c2", state=CheckpointState.DELETING)
    await _seen(client, "c1")
    (storage / "checkpoints" / ".removed-c1").unlink()
    await _seen(client)
    assert _folders(storage) == []
