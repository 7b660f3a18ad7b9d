"""The queue through both surfaces of a gateway: places, explanations, resources and order, snapshots."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from gangline.domain.allocation import Allocation, Member, Request
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.explanation import Explanation
from gangline.domain.state import State
from gangline.protocol import rpc, wire
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2, types_pb2
from services.common import keys
from services.common.etcd import EtcdClient, Put
from services.gateway.http import queue_model
from tests.integration.gateway.test_experiment import create
from tests.support.gateway import Client
from tests.support.stand_in_leader import DEFAULT_PRIORITIES, StandInLeader
from tests.support.wait import until_async

REASON = "needs 2 slots; 1 is free"


async def put_running(etcd: EtcdClient, number: int, pool: str, resources: dict[str, Any]) -> None:
    """Experiment `number` with one trial that runs on agent a1."""
    config = json.dumps({"resources": resources})
    experiment = Experiment(number, "digits", "alice", config, "", State.RUNNING, created_at=1.0)
    trial = Trial(f"{number}.1", number, 1, state=State.RUNNING, created_at=1.0)
    allocation = Allocation(
        f"{number}.1.1", trial.id, number, 1, 1, pool, (Member("a1", 0, ("a1/0",)),), State.RUNNING, created_at=2.0
    )
    await etcd.commit(
        [
            Put(keys.experiment(number), wire.encode(experiment)),
            Put(keys.trial(trial.id), wire.encode(trial)),
            Put(keys.allocation(allocation.id), wire.encode(allocation)),
        ]
    )


async def put_waiting(etcd: EtcdClient, number: int, pool: str, priority: int, state: State = State.QUEUED) -> None:
    experiment = Experiment(number, f"e{number}", "alice", '{"resources": {"weight": 2}}', "", state, created_at=5.0)
    trial = Trial(f"{number}.1", number, 1, created_at=5.0)
    request = Request(trial.id, number, pool, 2, priority, submitted_at=5.0)
    await etcd.commit(
        [
            Put(keys.experiment(number), wire.encode(experiment)),
            Put(keys.trial(trial.id), wire.encode(trial)),
            Put(keys.request(trial.id), wire.encode(request)),
        ]
    )


@pytest.fixture
async def queue(client: Client, leader: StandInLeader, etcd: EtcdClient) -> Client:
    """7 runs; 8 and 9 wait in its pool, in this order, and 91 in another one."""
    await put_running(etcd, 7, "default", {"priority": 30})
    for number, pool in ((8, "default"), (9, "default"), (91, "other")):
        await put_waiting(etcd, number, pool, 50)

    async def is_seen() -> bool:
        jobs = (await client.http.get("/api/v1/job-queues")).json()["jobs"]
        return len(jobs) == 4 and all(job["reason"] for job in jobs[1:])

    await until_async(is_seen, "the gateway seeing all jobs")
    return client


async def test_tasks_have_their_owner_and_those_that_run_their_progress(queue: Client) -> None:
    progress = ingest_pb2.ProgressPoint(batches_completed=30, batches_total=120, samples_per_second=8.0)
    record = ingest_pb2.IngestRecord(sequence=1, at=3.0, progress=progress)
    request = ingest_pb2.IngestRequest(spool_id="7.1.1/0", trial_id="7.1", records=[record])
    [_] = [answer async for answer in queue.ingest.Ingest(iter([request]), metadata=queue.runner_metadata("7.1.1"))]
    listed = await queue.gateway.ListTasks(pb.ListTasksRequest(), metadata=queue.metadata)
    assert [task.owner for task in listed.tasks] == ["alice"] * 4
    assert listed.tasks[0].progress == progress
    assert not any(task.HasField("progress") for task in listed.tasks[1:])
    tasks = (await queue.http.get("/api/v1/tasks")).json()["tasks"]
    assert tasks[0]["progress"] == {"batchesCompleted": 30, "batchesTotal": 120, "samplesPerSecond": 8.0}
    assert (tasks[0]["owner"], tasks[1]["progress"]) == ("alice", None)


async def test_places_count_within_each_pool(queue: Client) -> None:
    listed = await queue.gateway.ListTasks(pb.ListTasksRequest(), metadata=queue.metadata)
    assert [(task.trial.id, task.queue_place) for task in listed.tasks] == [
        ("7.1", 0), ("8.1", 1), ("9.1", 2), ("91.1", 1),
    ]  # fmt: skip
    assert [(task.priority, task.weight) for task in listed.tasks] == [(30, 1.0), (50, 2.0), (50, 2.0), (50, 2.0)]
    own = await queue.gateway.ListTasks(pb.ListTasksRequest(experiment_id=9), metadata=queue.metadata)
    assert [(task.trial.id, task.queue_place) for task in own.tasks] == [("9.1", 2)]
    tasks = (await queue.http.get("/api/v1/tasks?experimentId=9")).json()["tasks"]
    assert [task["queuePlace"] for task in tasks] == [2]
    assert (await queue.http.get("/api/v1/tasks?experimentId=99")).json()["code"] == "experiment.not_found"


async def test_a_paused_trial_is_shown_as_paused_and_has_no_place(queue: Client, etcd: EtcdClient) -> None:
    await put_waiting(etcd, 8, "default", 50, State.PAUSED)

    async def tasks() -> list[tuple[str, str, int]]:
        shown = (await queue.http.get("/api/v1/tasks")).json()["tasks"]
        return [(task["trial"]["id"], task["trial"]["state"], task["queuePlace"]) for task in shown]

    expected = [("7.1", "RUNNING", 0), ("9.1", "QUEUED", 1), ("91.1", "QUEUED", 1), ("8.1", "PAUSED", 0)]

    async def is_seen() -> bool:
        return await tasks() == expected

    await until_async(is_seen, "the gateway seeing the pause")
    listed = await queue.gateway.ListTasks(pb.ListTasksRequest(), metadata=queue.metadata)
    assert [(task.trial.id, task.queue_place) for task in listed.tasks] == [(id_, place) for id_, _, place in expected]
    jobs = (await queue.http.get("/api/v1/job-queues?resourcePool=default")).json()["jobs"]
    assert [(job["trialId"], job["summary"]["state"], job["queuePlace"]) for job in jobs][1:] == [
        ("9.1", "QUEUED", 1), ("8.1", "PAUSED", 0),
    ]  # fmt: skip
    explained = (await queue.http.get("/api/v1/jobs/8.1/explanation")).json()["tasks"][0]["task"]
    assert (explained["trial"]["state"], explained["queuePlace"]) == ("PAUSED", 0)
    [view] = (await queue.http.get("/api/v1/experiments/8")).json()["trials"]
    assert (view["trial"]["state"], view["reason"]["code"]) == ("PAUSED", "PAUSED")
    [view] = (await queue.http.get("/api/v1/experiments/8/trials")).json()["trials"]
    assert view["trial"]["state"] == "PAUSED"
    view = (await queue.http.get("/api/v1/trials/8.1")).json()
    assert view["trial"]["state"] == "PAUSED"
    assert (await queue.http.get("/api/v1/cluster")).json()["numPending"] == 2


async def test_the_pools_priority_holds_for_what_runs_without_one(queue: Client, etcd: EtcdClient) -> None:
    await put_running(etcd, 5, "default", {})
    await put_running(etcd, 6, "gone", {})

    async def listed() -> dict[str, int | None]:
        tasks = (await queue.http.get("/api/v1/tasks")).json()["tasks"]
        return {task["trial"]["id"]: task["priority"] for task in tasks}

    async def is_seen() -> bool:
        return {"5.1", "6.1"} <= (await listed()).keys()

    await until_async(is_seen, "the gateway seeing both")
    priority_by_trial_id = await listed()
    assert (priority_by_trial_id["5.1"], priority_by_trial_id["6.1"], priority_by_trial_id["7.1"]) == (
        DEFAULT_PRIORITIES["default"],
        None,
        30,
    )


async def test_jobs_of_one_pool_as_determined_names_them(queue: Client) -> None:
    running, first, second = (await queue.http.get("/api/v1/job-queues?resourcePool=default")).json()["jobs"]
    assert (running["summary"], running["allocatedSlots"]) == ({"state": "RUNNING", "jobsAhead": 0}, 1)
    assert (first["summary"], first["requestedSlots"]) == ({"state": "QUEUED", "jobsAhead": 0}, 2)
    assert (second["summary"]["jobsAhead"], second["queuePlace"], second["reason"]["message"]) == (1, 2, REASON)
    assert (second["jobId"], second["trialId"], second["resourcePool"], second["priority"]) == (
        "9", "9.1", "default", 50,
    )  # fmt: skip
    assert second["submissionTime"] == "1970-01-01T00:00:05Z"
    assert second["etaTime"] is None


async def test_explanation_of_an_experiment_and_of_a_trial(queue: Client) -> None:
    for job_id in ("8", "8.1"):
        explanation = (await queue.http.get(f"/api/v1/jobs/{job_id}/explanation")).json()
        [explained] = explanation["tasks"]
        assert (explanation["experiment"]["id"], explanation["reason"], explained["blockers"]) == (8, None, [])
        assert explained["task"]["reason"]["message"] == REASON
        answer = await queue.gateway.ExplainJob(pb.ExplainJobRequest(job_id=job_id), metadata=queue.metadata)
        both = wire.from_proto(Explanation, answer.explanation)
        assert queue_model.Explanation.model_validate(both).model_dump(mode="json", by_alias=True) == explanation
    running = (await queue.http.get("/api/v1/jobs/7/explanation")).json()["tasks"][0]["task"]
    assert running["allocation"]["members"][0]["agentId"] == "a1"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/jobs/seven/explanation", 400, "id.job"),
        ("/api/v1/jobs/99/explanation", 404, "experiment.not_found"),
        ("/api/v1/jobs/8.9/explanation", 404, "trial.not_found"),
    ],
)
async def test_explanation_of_what_is_not_there(queue: Client, path: str, status: int, code: str) -> None:
    answer = await queue.http.get(path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_resources_change_live_on_both_surfaces(client: Client, leader: StandInLeader) -> None:
    created = await create(client)
    request = pb.UpdateExperimentRequest(
        request_id="u1", experiment_id=created.id, resources=types_pb2.ResourceChange(priority=7)
    )
    changed = (await client.gateway.UpdateExperiment(request, metadata=client.metadata)).experiment
    assert json.loads(changed.config_json)["resources"]["priority"] == 7
    body = {"resources": {"maxSlots": 4, "weight": 0.5}}
    answer = await client.http.patch(f"/api/v1/experiments/{created.id}", json=body)
    assert answer.status_code == 200, answer.text
    assert leader.experiment_changes[-1].user == "alice"
    assert leader.experiment_changes[-1].resources.when_free is False
    shown = (await client.http.get(f"/api/v1/experiments/{created.id}")).json()["experiment"]["config"]["resources"]
    assert (shown["priority"], shown["max_slots"], shown["weight"]) == (7, 4, 0.5)
    body = {"resources": {"maxSlots": 2, "whenFree": True}}
    answer = await client.http.patch(f"/api/v1/experiments/{created.id}", json=body)
    assert answer.status_code == 200, answer.text
    assert leader.experiment_changes[-1].resources == types_pb2.ResourceChange(max_slots=2, when_free=True)


async def test_queue_is_reordered_on_both_surfaces(client: Client, leader: StandInLeader) -> None:
    first, second = await create(client, "r1"), await create(client, "r2")
    move = types_pb2.QueueMove(anchor_experiment_id=first.id)
    request = pb.UpdateExperimentRequest(request_id="m1", experiment_id=second.id, move=move)
    moved = (await client.gateway.UpdateExperiment(request, metadata=client.metadata)).experiment
    assert moved.queue_position == first.id - 0.5
    updates = [
        {"jobId": str(second.id), "behindOf": str(first.id)},
        {"jobId": str(second.id), "aheadOf": first.id},
        {"jobId": str(first.id), "priority": 3},
        {"jobId": str(first.id), "weight": 2},
    ]
    answer = await client.http.post("/api/v1/job-queues", json={"updates": updates})
    assert [experiment["id"] for experiment in answer.json()["experiments"]] == [second.id, second.id, 1, 1]
    assert [change.move.is_behind for change in leader.experiment_changes[1:3]] == [True, False]
    assert answer.json()["experiments"][-1]["config"]["resources"] == {"priority": 3, "weight": 2.0}


async def test_exactly_one_change_is_asked_for(client: Client, leader: StandInLeader) -> None:
    created = await create(client)
    both = pb.UpdateExperimentRequest(
        request_id="c1",
        experiment_id=created.id,
        action=types_pb2.EXPERIMENT_ACTION_PAUSE,
        move=types_pb2.QueueMove(anchor_experiment_id=1),
    )
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await client.gateway.UpdateExperiment(both, metadata=client.metadata)
    error = rpc.error_of(failure.value, "the gateway")
    assert error.code == "request.one_change"
    assert error.message == "give exactly one of action, resources, move, texts and retention; there are 2 of them"


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "detail"),
    [
        ("PATCH", "experiments/1", {"resources": {"priority": 0}}, "resources.priority", "priority 0 is out of range"),
        ("PATCH", "experiments/1", {"resources": {"weight": -1}}, "resources.weight", "weight -1 is out of range"),
        ("PATCH", "experiments/1", {"resources": {}}, "resources.nothing", "nothing is to be changed"),
        (
            "PATCH",
            "experiments/1",
            {"resources": {"slots": 1}},
            "request.invalid",
            "body.resources.slots: unknown",
        ),
        ("PATCH", "experiments/99", {"resources": {"weight": 1}}, "experiment.not_found", "there is no"),
        ("POST", "job-queues", {"updates": []}, "request.invalid", "body.updates: "),
        ("POST", "job-queues", {"updates": [{"jobId": "1"}]}, "request.invalid", "give exactly one of priority"),
        ("POST", "job-queues", {"updates": [{"jobId": "x", "priority": 1}]}, "request.invalid", "body.updates.0.jobId"),
        ("POST", "job-queues", {"updates": [{"jobId": "1", "aheadOf": "99"}]}, "experiment.not_found", "there is no"),
        (
            "POST",
            "job-queues",
            {"updates": [{"jobId": "1", "aheadOf": "2", "behindOf": "3"}]},
            "request.invalid",
            "give exactly one of priority",
        ),
    ],
)
async def test_a_wrong_change_is_a_problem_document(
    client: Client, leader: StandInLeader, *, method: str, path: str, body: object, code: str, detail: str
) -> None:
    await create(client)
    answer = await client.http.request(method, f"/api/v1/{path}", json=body)
    assert (answer.json()["code"], answer.headers["content-type"]) == (code, "application/problem+json")
    assert detail in answer.json()["detail"]


async def test_snapshot_comes_from_the_leader_as_it_is(client: Client, leader: StandInLeader) -> None:
    request = pb.GatewayServiceGetSnapshotRequest(pool="gpu")
    assert (await client.gateway.GetSnapshot(request, metadata=client.metadata)).snapshot_json == '{"pool": "gpu"}'
    answer = await client.http.get("/api/v1/snapshot?pool=gpu")
    assert (answer.json(), answer.headers["content-type"]) == ({"pool": "gpu"}, "application/json")


@pytest.mark.usefixtures("short_patience")
async def test_without_a_leader_jobs_have_no_place_and_a_snapshot_is_refused(
    queue: Client, leader: StandInLeader
) -> None:
    await leader.resign()

    async def is_noticed() -> bool:
        jobs = (await queue.http.get("/api/v1/job-queues")).json()["jobs"]
        return all(job["queuePlace"] == 0 and job["reason"] is None for job in jobs)

    await until_async(is_noticed, "the reasons being gone")
    assert (await queue.http.get("/api/v1/snapshot")).json()["code"] == "gateway.no_leader"
