"""Every record of the domain meets its message, and a full view of each kind survives the way there and back."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import is_dataclass
from typing import Any

import pytest

from gangline.domain import allocation, experiment, explanation, fusion, history, resource, search, task, trace, view
from gangline.domain.state import ReasonCode, State
from gangline.protocol import wire
from gangline.v1 import gateway_pb2, ingest_pb2, types_pb2

MODULES = (allocation, experiment, explanation, fusion, history, resource, search, task, trace, view)
# Groups fields of a TrialView for the HTTP API and crosses no wire.
WITHOUT_MESSAGE = {history.Newest}
RECORDS = [
    record
    for module in MODULES
    for _, record in inspect.getmembers(module, is_dataclass)
    if isinstance(record, type) and record.__module__ == module.__name__ and record not in WITHOUT_MESSAGE
]

EXPERIMENT = experiment.Experiment(7, "n", "alice", "{}", "ab", State.RUNNING)
TRIAL = experiment.Trial("7.1", 7, 1, state=State.RUNNING)
ALLOCATION = allocation.Allocation("7.1.2", "7.1", 7, 2, 1, "default", (allocation.Member("a1", 0, ("a1/0",)),))
REASON = allocation.Reason(ReasonCode.NO_CAPACITY, "needs 2", "one more is free", ("8.1",), 12.0)
POINT = history.MetricsPoint("training", 5, {"loss": 1.5})
TRIAL_VIEW = view.TrialView(TRIAL, ALLOCATION, REASON, history.ProgressPoint(5, 10, 3.5), POINT, POINT)
GATEWAY = resource.ServiceInstance("g1", "gateway", "h:1", "h:2", "h:3", 1.0)
TASK = task.Task(TRIAL, "n", ALLOCATION, allocation.Request("7.1", 7, "default", 2), REASON, 3, 42, 0.5)

VIEWS = [
    TRIAL_VIEW,
    view.ExperimentView(EXPERIMENT, (TRIAL_VIEW,), search.Search(7, 3, 1, 2, 4), REASON),
    view.AgentView(resource.Agent("a1", slots=(resource.Slot("a1/0"),)), {"a1/0": "7.1.2"}),
    view.ClusterView(
        resource.Cluster(3, "c", 1.0),
        "0.1",
        GATEWAY,
        (GATEWAY,),
        1,
        4,
        2,
        3,
        resource.EtcdHealth(False, 3, 1, "p", 2.0),
    ),
    TASK,
    explanation.Explanation(
        EXPERIMENT, REASON, (explanation.TaskExplanation(TASK, (explanation.Blocker("a1", "agent", "is away"),)),)
    ),
    history.StoredLog(9, "7.1", 2.0, history.LogLine(0, "a1", "stdout", "text")),
    history.StoredLog(9, "7.1", 2.0, history.LogLine(None, "a1", "runner", "text")),
    history.StoredMetrics(9, "7.1", 2.0, POINT),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_of_a_record_has_one_in_its_message(record: type) -> None:
    wire.prepare(record)


@pytest.mark.parametrize("record", VIEWS, ids=lambda record: type(record).__name__)
def test_a_view_survives_the_way_there_and_back(record: Any) -> None:
    assert wire.decode(type(record), wire.encode(record)) == record


def test_a_rank_that_reports_metrics_loads_no_messages_of_the_gateway() -> None:
    report = "wire.to_proto(MetricsPoint('training', 1)); print('gangline.v1.gateway_pb2' in sys.modules)"
    program = f"import sys; from gangline.core.link import MetricsPoint, wire; {report}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_record_without_a_message_is_a_bug() -> None:
    with pytest.raises(LookupError, match="no message is called Newest"):
        wire.to_proto(history.Newest())


def test_a_view_has_the_message_that_the_gateway_sends() -> None:
    message = wire.to_proto(TRIAL_VIEW)
    assert isinstance(message, gateway_pb2.TrialView)
    assert message.progress == ingest_pb2.ProgressPoint(batches_completed=5, batches_total=10, samples_per_second=3.5)
    assert isinstance(wire.to_proto(VIEWS[3]), gateway_pb2.GetClusterResponse)


def test_an_absent_part_of_a_view_is_none() -> None:
    empty = gateway_pb2.GetClusterResponse(version="0.1")
    cluster = wire.from_proto(view.ClusterView, empty)
    assert (cluster.cluster, cluster.leader, cluster.etcd) == (resource.Cluster(0, "", 0.0), None, None)
    assert wire.from_proto(view.TrialView, gateway_pb2.TrialView(trial=wire.to_proto(TRIAL))) == view.TrialView(TRIAL)


def test_a_later_code_reaches_old_readers_as_a_general_one() -> None:
    reason = allocation.Reason(ReasonCode.AGENTS_DISABLED, "a1 is drained")
    message = wire.to_proto(reason)
    assert (message.code, message.exact_code) == (
        types_pb2.REASON_CODE_AGENTS_UNHEALTHY,
        types_pb2.REASON_CODE_AGENTS_DISABLED,
    )
    assert wire.from_proto(allocation.Reason, message) == reason
    # A reader of this version meets a code of the next one.
    message.exact_code = 999
    assert wire.from_proto(allocation.Reason, message).code is ReasonCode.AGENTS_UNHEALTHY


@pytest.mark.parametrize("code", ReasonCode)
def test_the_general_code_is_one_of_the_first_version(code: ReasonCode) -> None:
    message = wire.to_proto(allocation.Reason(code, "x"))
    assert message.code in {*range(1, 12), types_pb2.REASON_CODE_RUNS_SHRUNK}
    assert bool(message.exact_code) == (code.general is not code)
    assert wire.from_proto(allocation.Reason, message).code is code
