"""Records as JSON and as messages: every field of a full record arrives, and empty ones are null or absent."""

from __future__ import annotations

import json

from gangline.domain.allocation import Allocation, ExitReport, Member, Reason, Request, Timeline
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.history import LogLine, MetricsPoint, ProgressPoint
from gangline.domain.resource import Cluster, EtcdHealth, ServiceInstance
from gangline.domain.state import ExitKind, Outcome, ReasonCode, State
from gangline.domain.task import Task
from gangline.domain.view import ClusterView, ExperimentView, TrialView
from gangline.protocol import wire
from gangline.v1 import ingest_pb2
from services.gateway.http import model
from services.gateway.http.answer import Answer
from services.gateway.mirror.ingest_record import IngestRecord
from services.gateway.rpc import mapping

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
    records = mapping.records_from_proto(messages)
    assert records == (
        IngestRecord(1, 0.0, LogLine(0, "", "stdout", "a")),
        IngestRecord(2, 0.0, LogLine(None, "", "runner", "b")),
    )
