"""Experiments through both surfaces of a gateway, over a real etcd and a stand-in leader."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline.domain.state import Outcome
from gangline.protocol import rpc
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import types_pb2
from services.gateway.leader import leader_client as leader_module
from services.gateway.usecase.shared import stored_code as code_module
from tests.support.gateway import CONFIG, Client, pack, sha256
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import within

ARCHIVE = pack({"model_def.py": b"class Digits: ...\n"})


def code_of(failure: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> str:
    return rpc.error_of(failure.value, "the gateway").code


async def upload(client: Client, archive: bytes = ARCHIVE, announced: str | None = None) -> str:
    def requests() -> Any:
        yield pb.UploadCodeRequest(code_sha256=announced or sha256(archive), chunk=archive[:10])
        yield pb.UploadCodeRequest(chunk=archive[10:])

    answer = await client.gateway.UploadCode(requests(), metadata=client.metadata)
    return str(answer.code_sha256)


async def create(client: Client, request_id: str = "r1") -> types_pb2.Experiment:
    request = pb.CreateExperimentRequest(
        request_id=request_id, config_json=json.dumps(CONFIG), code_sha256=await upload(client)
    )
    answer = await client.gateway.CreateExperiment(request, metadata=client.metadata)
    assert isinstance(answer.experiment, types_pb2.Experiment)
    return answer.experiment


async def test_created_experiment_is_readable_at_once_on_both_surfaces(client: Client, leader: StandInLeader) -> None:
    created = await create(client)
    view = (await client.gateway.GetExperiment(pb.GetExperimentRequest(experiment_id=created.id), metadata=client.metadata)).view  # fmt: skip # noqa: E501  one expression
    answer = (await client.http.get(f"/api/v1/experiments/{created.id}")).json()
    assert view.experiment == created
    assert created.owner == answer["experiment"]["username"] == "alice"
    assert answer["experiment"]["config"]["entrypoint"] == CONFIG["entrypoint"]
    assert view.trials[0].reason.message == answer["trials"][0]["reason"]["message"] == "needs 2 slots; 1 is free"


async def test_retry_with_the_same_request_id_creates_nothing(client: Client, leader: StandInLeader) -> None:
    first, again, other = await create(client, "r1"), await create(client, "r1"), await create(client, "r2")
    listed = await client.gateway.ListExperiments(pb.ListExperimentsRequest(), metadata=client.metadata)
    assert first.id == again.id != other.id
    assert [experiment.id for experiment in listed.experiments] == [other.id, first.id]
    progress = [(entry.experiment_id, entry.num_trials_ended, entry.num_trials_planned) for entry in listed.progress]
    assert progress == [(other.id, 0, 1), (first.id, 0, 1)]


async def test_http_takes_an_idempotency_key(client: Client, leader: StandInLeader) -> None:
    body = {"config": CONFIG, "codeSha256": await upload(client)}
    posts = [
        await client.http.post("/api/v1/experiments", json=body, headers={"Idempotency-Key": key})
        for key in ("k1", "k1", "k2")
    ]
    ids = [answer.json()["experiment"]["id"] for answer in posts]
    assert ids[0] == ids[1] != ids[2]
    assert [submission.request_id for submission in leader.submissions] == ["k1", "k1", "k2"]

    both = await client.http.post(
        "/api/v1/experiments", json=body | {"requestId": "another"}, headers={"Idempotency-Key": "k1"}
    )
    assert (both.status_code, both.json()["code"], both.json()["effect"]) == (400, "request.two_ids", "none")
    long = await client.http.post("/api/v1/experiments", json=body | {"requestId": "x" * 201})
    assert (long.status_code, long.json()["code"]) == (400, "request.long_id")


async def test_http_finds_what_a_request_has_made(client: Client, leader: StandInLeader) -> None:
    created = await create(client, "r1")
    listed = await client.http.get("/api/v1/experiments", params={"requestId": "r1"})
    assert [experiment["id"] for experiment in listed.json()["experiments"]] == [created.id]
    none = await client.http.get("/api/v1/experiments", params={"requestId": "r2"})
    assert (none.status_code, none.json()["code"]) == (404, "request.not_found")


@pytest.mark.usefixtures("short_patience")
async def test_http_says_what_is_known_of_a_failed_change(
    client: Client, leader: StandInLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "TRY_SECONDS", 0.1)
    body = {"config": CONFIG, "codeSha256": await upload(client)}
    leader.is_quiet = True
    lost = await client.http.post("/api/v1/experiments", json=body, timeout=30)
    problem, request_id = lost.json(), leader.submissions[-1].request_id
    assert (problem["effect"], problem["requestId"]) == ("unknown", request_id)
    assert problem["detail"].startswith("it is not known whether this was done: the leading scheduler at ")
    assert problem["detail"].endswith(f"send it again with the requestId {request_id}, so that nothing is done twice")
    leader.is_quiet = False
    again = await client.http.post("/api/v1/experiments", json=body | {"requestId": request_id})
    assert again.status_code == 200

    await leader.resign()
    killed = await client.http.post("/api/v1/experiments/1/kill", timeout=30)
    assert (killed.status_code, killed.json()["effect"]) == (503, "none")
    assert killed.json()["detail"].startswith("nothing was changed: no scheduler leads")
    ready = await client.http.get("/readyz", headers={"Authorization": ""})
    assert (ready.status_code, ready.json()["status"]) == (503, "unready")
    assert ready.json()["problem"].startswith("no scheduler leads")
    healthy = await client.http.get("/healthz")
    assert (healthy.status_code, healthy.json()["etcd"]["isAvailable"]) == (200, True)


async def test_http_creates_from_yaml_and_archive_in_one_request(client: Client, leader: StandInLeader) -> None:
    body = {"config": "name: digits\nentrypoint: model_def:Digits\nsearcher: {name: single, metric: loss, max_length: {batches: 3}}\nhyperparameters: {global_batch_size: 4}\n", "codeArchive": base64.b64encode(ARCHIVE).decode(), "requestId": "r9"}  # fmt: skip # noqa: E501  a YAML document
    answer = await client.http.post("/api/v1/experiments", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["experiment"]["codeSha256"] == sha256(ARCHIVE)
    assert "a warning of the scheduler" in answer.json()["warnings"]
    assert leader.submissions[-1].request_id == "r9"


async def test_http_refuses_an_unknown_key_with_path_and_nearest(client: Client, leader: StandInLeader) -> None:
    body = {"config": {**CONFIG, "sercher": {}}, "codeSha256": sha256(ARCHIVE)}
    answer = await client.http.post("/api/v1/experiments", json=body)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "config.unknown_key"
    assert "sercher" in answer.json()["detail"]
    assert "searcher" in answer.json()["detail"]
    assert leader.submissions == []


async def test_code_must_be_uploaded_first(client: Client, leader: StandInLeader) -> None:
    request = pb.CreateExperimentRequest(request_id="r", config_json=json.dumps(CONFIG), code_sha256="a" * 64)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await client.gateway.CreateExperiment(request, metadata=client.metadata)
    assert code_of(failure) == "code.not_uploaded"


async def test_code_that_is_gone_is_noticed_again_soon_after_a_submit(
    client: Client, leader: StandInLeader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(client, "r1")
    monkeypatch.setattr(code_module, "STORED_SECONDS", 0.0)
    (tmp_path / "storage" / "code" / f"{sha256(ARCHIVE)}.tar.gz").unlink()
    request = pb.CreateExperimentRequest(request_id="r2", config_json=json.dumps(CONFIG), code_sha256=sha256(ARCHIVE))
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await client.gateway.CreateExperiment(request, metadata=client.metadata)
    assert code_of(failure) == "code.not_uploaded"


async def test_change_without_request_id_is_refused(client: Client, leader: StandInLeader) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await client.gateway.KillExperiment(pb.KillExperimentRequest(experiment_id=1), metadata=client.metadata)
    assert code_of(failure) == "request.no_id"


async def test_watch_shows_each_change_and_ends_with_the_experiment(client: Client, leader: StandInLeader) -> None:
    created = await create(client)
    watching = aiter(
        client.gateway.WatchExperiment(pb.WatchExperimentRequest(experiment_id=created.id), metadata=client.metadata)
    )
    first = await within(10, anext(watching))
    assert first.view.experiment.state == types_pb2.STATE_QUEUED
    request = pb.KillExperimentRequest(request_id="k", experiment_id=created.id)
    killed = await client.gateway.KillExperiment(request, metadata=client.metadata)
    assert killed.experiment.reason == "killed by alice"
    later = [answer async for answer in watching]
    assert later[-1].view.experiment.outcome == types_pb2.OUTCOME_CANCELED
    assert later[-1].view.trials[0].trial.state == types_pb2.STATE_TERMINAL


async def test_http_events_end_with_the_experiment(client: Client, leader: StandInLeader) -> None:
    created = await create(client)
    events = []
    async with client.http.stream("GET", f"/api/v1/experiments/{created.id}/events") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("event: "):
                events.append(line.removeprefix("event: "))
                if len(events) == 1:
                    await leader.end(created.id, Outcome.COMPLETED)
    assert events[0] == "experiment"
    assert events[-1] == "end"


async def test_unknown_experiment_is_one_line_on_both_surfaces(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await client.gateway.GetExperiment(pb.GetExperimentRequest(experiment_id=77), metadata=client.metadata)
    answer = await client.http.get("/api/v1/experiments/77/logs?follow=true")
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND
    assert (answer.status_code, answer.json()["code"]) == (404, "experiment.not_found")
    assert answer.json()["detail"] == failure.value.details()


async def test_reasons_are_fetched_once_for_many_views(client: Client, leader: StandInLeader) -> None:
    created = await create(client)
    before = leader.num_pending_calls
    for _ in range(5):
        await client.http.get(f"/api/v1/experiments/{created.id}")
    assert leader.num_pending_calls - before <= 2


@pytest.mark.parametrize("body", [{"config": {}}, {"config": {}, "codeSha256": "a", "codeArchive": "b"}])
async def test_http_wants_code_exactly_once(client: Client, body: dict[str, Any]) -> None:
    answer = await client.http.post("/api/v1/experiments", json={**body, "config": CONFIG})
    assert (answer.status_code, answer.json()["code"]) == (400, "code.one_of")


async def test_http_creates_paused_changes_texts_and_lists_by_them(client: Client, leader: StandInLeader) -> None:
    body = {"config": CONFIG, "codeSha256": await upload(client), "activate": False, "requestId": "p1"}
    number = (await client.http.post("/api/v1/experiments", json=body)).json()["experiment"]["id"]
    assert leader.submissions[-1].paused
    path = f"/api/v1/experiments/{number}"
    for labels in (["night", "gpu"], ["gpu"], ["gpu"], [], []):
        answer = await client.http.patch(path, json={"labels": labels})
        assert (answer.status_code, answer.json()["experiment"]["labels"]) == (200, sorted(labels))
    answer = await client.http.patch(path, json={"labels": ["gpu"], "notes": "seen", "name": "better"})
    experiment = answer.json()["experiment"]
    assert (experiment["labels"], experiment["notes"], experiment["name"]) == (["gpu"], "seen", "better")
    for query, is_listed in (("labels=gpu", True), ("labels=gpu&labels=x", False), ("users=alice&name=BETT", True), ("states=TERMINAL", False)):  # fmt: skip # noqa: E501  a table
        listed = (await client.http.get(f"/api/v1/experiments?{query}")).json()["experiments"]
        assert [entry["id"] for entry in listed] == ([number] if is_listed else [])
    for bad in ({}, {"name": "x", "resources": {"priority": 3}}, {"name": "two\nlines"}, {"labels": [""]}):
        assert (await client.http.patch(path, json=bad)).status_code == 400
    assert (await client.http.get("/api/v1/experiments?states=DONE")).status_code == 400


async def test_pages_of_lists(client: Client, leader: StandInLeader) -> None:
    ids = [(await create(client, f"r{number}")).id for number in range(3)]
    for query, shown, start, end in [
        ("", ids[::-1], 0, 3),
        ("?offset=1&limit=1", [ids[1]], 1, 2),
        ("?offset=2", [ids[0]], 2, 3),
        ("?offset=9&limit=2", [], 3, 3),
    ]:
        answer = (await client.http.get(f"/api/v1/experiments{query}")).json()
        assert [experiment["id"] for experiment in answer["experiments"]] == shown
        page = answer["pagination"]
        assert (page["startIndex"], page["endIndex"], page["total"]) == (start, end, 3)
    trials = (await client.http.get(f"/api/v1/experiments/{ids[0]}/trials?limit=1")).json()
    assert [view["trial"]["id"] for view in trials["trials"]] == [f"{ids[0]}.1"]
    assert trials["pagination"] == {"offset": 0, "limit": 1, "startIndex": 0, "endIndex": 1, "total": 1}
    behind = (await client.http.get(f"/api/v1/experiments/{ids[0]}/trials?offset=1")).json()
    assert (behind["trials"], behind["pagination"]["total"]) == ([], 1)
    checkpoints = (await client.http.get(f"/api/v1/experiments/{ids[0]}/checkpoints?limit=5")).json()
    assert (checkpoints["checkpoints"], checkpoints["pagination"]["total"]) == ([], 0)
    refused = await client.http.get("/api/v1/experiments?offset=-1")
    assert (refused.status_code, refused.json()["code"]) == (400, "request.invalid")
