"""The client's calls and results when a user inspects and changes a queue and its agents."""

from __future__ import annotations

import grpc
import pytest

from gangline.client import Client, TraceOrder
from gangline.domain.state import Availability, ReasonCode
from gangline.errors import GanglineError
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import types_pb2
from tests.support.stand_in_gateway import StandInGateway
from tests.support.view import make_agent_view, make_allocation, make_experiment, make_trial


@pytest.fixture
def queue(gateway: StandInGateway) -> StandInGateway:
    """Experiment 1 runs, experiment 2 waits for it."""
    reason = types_pb2.Reason(code=types_pb2.REASON_CODE_NO_CAPACITY, message="m", blocking_ids=["1.1.1"], eta_at=5.0)
    request = types_pb2.Request(trial_id="2.1", experiment_id=2, pool="default", slots=2)
    waiting = make_trial("QUEUED", id="2.1", experiment_id=2)
    gateway.experiments = {1: make_experiment(), 2: make_experiment("QUEUED", id=2, name="big")}
    gateway.views[2] = [pb.ExperimentView(experiment=gateway.experiments[2], trials=[pb.TrialView(trial=waiting)])]
    gateway.tasks = [
        pb.Task(trial=make_trial(), experiment_name="digits", allocation=make_allocation(("a1", 2)), weight=1),
        pb.Task(
            trial=waiting, experiment_name="big", request=request, reason=reason, queue_place=3, priority=7, weight=0.5
        ),
    ]
    gateway.agents = [make_agent_view()]
    return gateway


def test_tasks_carry_their_place_and_are_filtered(client: Client, queue: StandInGateway) -> None:
    running, waiting = client.list_tasks()
    assert (running.queue_place, running.priority, running.weight) == (0, None, 1.0)
    assert (waiting.queue_place, waiting.priority, waiting.weight) == (3, 7, 0.5)
    assert (waiting.num_slots, waiting.pool, running.num_slots) == (2, "default", 2)
    assert [task.trial.id for task in client.list_tasks(2)] == ["2.1"]


@pytest.mark.parametrize("job_id", [2, "2", "2.1"])
def test_explain_joins_the_reason_with_what_it_names(client: Client, queue: StandInGateway, job_id: int | str) -> None:
    explanation = client.explain(job_id)
    [explained] = explanation.tasks
    assert explanation.experiment.id == 2
    assert explained.task.reason is not None
    assert (explained.task.reason.code, explained.task.reason.eta_at) == (ReasonCode.NO_CAPACITY, 5.0)
    assert [blocker.kind for blocker in explained.blockers] == ["allocation"]
    assert queue.calls == ["ExplainJob"]


def test_an_older_gateway_explains_nothing(
    client: Client, queue: StandInGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: StandInGateway, request: pb.ExplainJobRequest, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    queue.stop()
    monkeypatch.setattr(StandInGateway, "ExplainJob", refuse)
    queue.start(queue.address)
    with pytest.raises(GanglineError, match="too old to explain a job; upgrade it") as caught:
        client.explain(2)
    assert caught.value.code == "job.unexplained"


def test_resources_and_places_are_sent_as_they_were_said(client: Client, queue: StandInGateway) -> None:
    client.update_experiment(2, priority=1, request_id="u1")
    client.update_experiment(2, weight=0.0)
    client.move_experiment(2, ahead_of=1)
    client.move_experiment(2, behind=1)
    priority, weight, ahead, behind = queue.updates
    assert priority.request_id == "u1"
    assert priority.resources == types_pb2.ResourceChange(priority=1)
    assert weight.resources == types_pb2.ResourceChange(weight=0.0)
    assert (ahead.move.anchor_experiment_id, ahead.move.is_behind) == (1, False)
    assert (behind.move.anchor_experiment_id, behind.move.is_behind) == (1, True)
    assert not any(sent.action for sent in queue.updates)


def test_nonsense_is_not_sent(client: Client, queue: StandInGateway) -> None:
    codes = []
    for call in (
        lambda: client.update_experiment(2),
        lambda: client.update_experiment(2, priority=100),
        lambda: client.move_experiment(2),
        lambda: client.move_experiment(2, ahead_of=1, behind=1),
        lambda: client.explain("x"),
    ):
        with pytest.raises(GanglineError) as caught:
            call()
        codes.append(caught.value.code)
    assert codes == ["resources.nothing", "resources.priority", "queue.one_place", "queue.one_place", "id.job"]
    assert queue.calls == []


def test_agents_and_slots_are_taken_out_and_back(client: Client, queue: StandInGateway) -> None:
    assert client.drain_agent("a1").availability is Availability.DRAINING
    assert client.disable_agent("a1").availability is Availability.DISABLED
    assert client.enable_agent("a1").availability is Availability.ENABLED
    agent = client.drain_agent("a1", ["a1/1"])
    assert [slot.availability for slot in agent.slots] == [Availability.ENABLED, Availability.DRAINING]
    assert client.list_agents()[0].agent == agent


def test_snapshot(client: Client, queue: StandInGateway) -> None:
    queue.snapshot_json = '{"agents": []}'
    assert client.get_snapshot() == client.get_snapshot("default") == queue.snapshot_json
    with pytest.raises(GanglineError, match="no pool 'other'"):
        client.get_snapshot("other")


def test_a_trace_is_ordered_and_says_where_it_will_lie(client: Client, gateway: StandInGateway) -> None:
    order = client.profile_trial("7.1", request_id="p1")
    assert order == TraceOrder("7.1", "7.1.1", 10, "file:///storage/tensorboard/7.1")
    assert client.profile_trial("7.1", 50).batches == 50
    assert [(trace_order.batches, trace_order.request_id == "p1") for trace_order in gateway.trace_orders] == [
        (10, True),
        (50, False),
    ]
    for batches in (0, 51, 10**12):
        with pytest.raises(GanglineError, match=f"a trace has 1 to 50 batches, not {batches}"):
            client.profile_trial("7.1", batches)
    assert len(gateway.trace_orders) == 2
