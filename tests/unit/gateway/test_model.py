"""Records as JSON and as messages: every field of a full record arrives, and empty ones are null or absent."""

from __future__ import annotations

import json

from gangline.domain.allocation import Allocation, ExitReport, Member, Reason, Request, Timeline
from gangline.domain.experiment import Experiment, Project, ProjectDefaults, Trial, Workspace
from gangline.domain.history import LogLine, MetricsPoint, ProgressPoint
from gangline.domain.resource import Cluster, EtcdHealth, ServiceInstance
from gangline.domain.state import ExitKind, Outcome, ReasonCode, State
from gangline.domain.task import Task
from gangline.domain.view import ClusterView, ExperimentView, ProjectView, TrialView, WorkspaceView
from gangline.protocol import wire
from gangline.v1 import ingest_pb2
from services.gateway.http import artifact, fusion, log_model, model, project, queue_model, usage, user
from services.gateway.http.answer import Answer
from services.gateway.mirror.ingest_record import IngestRecord
from services.gateway.rpc.ingest_service import records_from_proto

MODULES = (model, log_model, queue_model, fusion, artifact, project, usage, user)
EXIT = ExitReport(
    "a1", ExitKind.CONFIGURATION_ERROR, "use less", 1, 1, None, 5.0, 6.0, ("line",), error_code="parallelism.model"
)
TRIAL = Trial(
    "7.1", 7, 1, '{"lr": 0.1}', 3, State.TERMINAL, Outcome.FAILED, "failed", 1, 2, "c1", 100, '{"loss": 0.5}', 1.0, 9.0,
    Timeline(queued_at=1.0), EXIT,
)  # fmt: skip
ALLOCATION = Allocation("7.1.2", "7.1", 7, 2, 1, "default", (Member("a1", 0, ("a1/0",)),), State.STOPPING, (EXIT,))
REASON = Reason(ReasonCode.NO_CAPACITY, "needs 2", "one more is free", ("8.1",), 12.0)
PROGRESS, TRAINING = ProgressPoint(5, 10, 3.5), MetricsPoint("training", 5, {"loss": 1.5})
EXPERIMENT = Experiment(7, "n", "alice", '{"name": "n"}', "ab", State.TERMINAL, Outcome.FAILED, "why", "r", 1.0, 9.0)


def as_json(answer: Answer) -> dict[str, object]:
    document = json.loads(answer.model_dump_json(by_alias=True))
    assert isinstance(document, dict)
    return document


def test_full_view_keeps_everything_in_both_forms() -> None:
    view = ExperimentView(EXPERIMENT, (TrialView(TRIAL, ALLOCATION, REASON, PROGRESS, TRAINING),))
    document = model.ExperimentView.model_validate(view).model_dump(mode="json", by_alias=True)
    trial = document["trials"][0]
    assert document["experiment"]["endTime"] == "1970-01-01T00:00:09Z"
    assert document["experiment"]["config"] == {"name": "n"}
    assert trial["trial"]["hparams"] == {"lr": 0.1}
    assert trial["trial"]["totalBatchesProcessed"] == 100
    failure = trial["trial"]["lastFailure"]
    assert (failure["lastLines"], failure["errorCode"]) == (["line"], "parallelism.model")
    assert trial["allocation"]["members"] == [{"agentId": "a1", "nodeRank": 0, "slotIds": ["a1/0"]}]
    assert trial["reason"]["wouldStartIf"] == "one more is free"
    message = wire.to_proto(view)
    assert wire.from_proto(Trial, message.trials[0].trial) == TRIAL
    assert wire.from_proto(Allocation, message.trials[0].allocation) == ALLOCATION
    assert message.trials[0].progress.samples_per_second == 3.5
    assert not message.trials[0].HasField("validation")


def test_what_has_not_happened_is_null_and_absent() -> None:
    view = TrialView(Trial("7.1", 7, 1))
    document = as_json(model.TrialView.model_validate(view))
    assert document["allocation"] is None
    assert document["reason"] is None
    trial = document["trial"]
    assert isinstance(trial, dict)
    assert (trial["startTime"], trial["endTime"], trial["outcome"], trial["latestValidation"]) == (None,) * 4
    message = wire.to_proto(ExperimentView(EXPERIMENT, (view,))).trials[0]
    assert not any(message.HasField(name) for name in ("allocation", "reason", "progress", "training"))


def test_a_cluster_that_no_scheduler_has_led_is_null() -> None:
    leader = ServiceInstance("s1", "scheduler", "h:1")
    led = ClusterView(Cluster(3, "c", 1.0), "0.1", leader, (leader,), 1, 2, 3, 4, EtcdHealth())
    assert as_json(model.ClusterView.model_validate(led))["cluster"] == {"id": "c", "schemaVersion": 3}
    fresh = ClusterView(Cluster(0, "", 0.0), "0.1", None, (), 0, 0, 0, 0, EtcdHealth())
    assert as_json(model.ClusterView.model_validate(fresh))["cluster"] is None


def test_waiting_task_carries_request_and_reason() -> None:
    task = Task(TRIAL, "digits", request=Request("7.1", 7, "default", 2, submitted_at=1.0), reason=REASON)
    document = as_json(model.Task.model_validate(task))
    assert document["request"] == {"pool": "default", "slots": 2, "priority": 42, "submittedAt": "1970-01-01T00:00:01Z"}
    assert wire.to_proto(task).reason.blocking_ids == ["8.1"]


def test_rank_zero_differs_from_no_rank() -> None:
    messages = [
        ingest_pb2.IngestRecord(sequence=1, log=ingest_pb2.LogLine(rank=0, stream="stdout", text="a")),
        ingest_pb2.IngestRecord(sequence=2, log=ingest_pb2.LogLine(stream="runner", text="b")),
    ]
    records = records_from_proto(messages)
    assert records == (
        IngestRecord(1, 0.0, LogLine(0, "", "stdout", "a")),
        IngestRecord(2, 0.0, LogLine(None, "", "runner", "b")),
    )


def test_workspaces_and_projects_show_what_their_records_and_views_have() -> None:
    defaults = ProjectDefaults("gpus", '{"type": "shared_fs"}', "base")
    workspace = WorkspaceView(Workspace(1, "lab", "ann", 1.0, defaults=defaults), 2, 3)
    assert as_json(project.Workspace.model_validate(workspace)) == {
        "id": 1, "name": "lab", "username": "ann", "archived": False, "numProjects": 2, "numExperiments": 3,
        "defaultComputePool": "gpus", "checkpointStorageConfig": {"type": "shared_fs"}, "defaultTemplate": "base",
        "createdAt": "1970-01-01T00:00:01Z", "immutable": True,
    }  # fmt: skip
    inside = ProjectView(Project(4, 5, "vision", "cats", "bea"), "lab", 6, 7, workspace_archived=True)
    assert as_json(project.Project.model_validate(inside)) == {
        "id": 4, "name": "vision", "workspaceId": 5, "workspaceName": "lab", "description": "cats", "username": "bea",
        "archived": True, "numExperiments": 6, "numActiveExperiments": 7, "defaultResourcePool": "",
        "checkpointStorageConfig": None, "defaultTemplate": "", "createdAt": None, "immutable": False,
    }  # fmt: skip


def test_no_two_fields_of_an_answer_show_the_same_attribute() -> None:
    answers = [answer for part in MODULES for answer in vars(part).values()]
    shown = [each for each in answers if isinstance(each, type) and issubclass(each, Answer) and each.shown_record]
    sources = {
        answer.__name__: [str(field.validation_alias or name) for name, field in answer.model_fields.items()]
        for answer in shown
    }
    assert len(sources) > 40
    assert {name for name, used in sources.items() if len(used) > len(set(used))} == set()


def test_a_record_that_waits_in_the_spool_of_an_earlier_version_is_read() -> None:
    stored = (
        "080711000000000000f83f222e0a0a76616c69646174696f6e100a1a0f0a046c6f737311000000000000e03f220d"
        "7b226e6f7465223a202278227d"
    )
    message = ingest_pb2.IngestRecord.FromString(bytes.fromhex(stored))
    point = MetricsPoint("validation", 10, {"loss": 0.5}, '{"note": "x"}')
    assert records_from_proto([message]) == (IngestRecord(7, 1.5, point),)
    # What a later version spools, an earlier one reads.
    assert message.SerializeToString(deterministic=True).hex() == stored
