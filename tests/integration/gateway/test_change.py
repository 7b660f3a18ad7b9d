"""Pausing, activating, canceling, killing a trial and previewing, through both surfaces of a gateway."""

from __future__ import annotations

import json

import grpc
import pytest

from gangline.domain.search import Search
from gangline.protocol import rpc, wire
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import types_pb2
from services.common import keys
from services.common.etcd import EtcdClient, Put
from tests.integration.gateway.test_experiment import create
from tests.support.gateway import CONFIG, Client
from tests.support.stand_in_leader import StandInLeader


@pytest.mark.parametrize(
    ("verb", "action", "state"),
    [
        ("pause", types_pb2.EXPERIMENT_ACTION_PAUSE, "PAUSED"),
        ("activate", types_pb2.EXPERIMENT_ACTION_ACTIVATE, "QUEUED"),
        ("cancel", types_pb2.EXPERIMENT_ACTION_CANCEL, "STOPPING"),
    ],
)
async def test_change_is_readable_at_once_on_both_surfaces(
    client: Client, leader: StandInLeader, verb: str, action: types_pb2.ExperimentAction.ValueType, state: str
) -> None:
    first, second = await create(client, "r1"), await create(client, "r2")
    request = pb.UpdateExperimentRequest(request_id="c1", experiment_id=first.id, action=action)
    changed = (await client.gateway.UpdateExperiment(request, metadata=client.metadata)).experiment
    assert (types_pb2.State.Name(changed.state), changed.reason) == (f"STATE_{state}", f"{state.lower()} by alice")
    answer = await client.http.post(f"/api/v1/experiments/{second.id}/{verb}")
    assert answer.json()["experiment"]["state"] == state
    shown = (await client.http.get(f"/api/v1/experiments/{second.id}")).json()
    assert shown["experiment"]["state"] == state
    assert (shown["reason"] or {}).get("code") == ("PAUSED" if verb == "pause" else None)


async def test_a_trial_is_killed_on_both_surfaces(client: Client, leader: StandInLeader) -> None:
    first, second = await create(client, "r1"), await create(client, "r2")
    request = pb.KillTrialRequest(request_id="k1", trial_id=f"{first.id}.1")
    killed = (await client.gateway.KillTrial(request, metadata=client.metadata)).trial
    assert (killed.outcome, killed.reason) == (types_pb2.OUTCOME_CANCELED, "killed by alice")
    answer = await client.http.post(f"/api/v1/trials/{second.id}.1/kill")
    assert answer.json()["trial"]["outcome"] == "CANCELED"
    missing = await client.http.post("/api/v1/trials/99.1/kill")
    assert (missing.status_code, missing.json()["code"]) == (404, "trial.not_found")


async def test_a_trial_is_traced_on_both_surfaces(client: Client, leader: StandInLeader) -> None:
    trial_id = f"{(await create(client)).id}.1"
    request = pb.GatewayServiceProfileTrialRequest(request_id="p1", trial_id=trial_id, batches=3)
    order = (await client.gateway.ProfileTrial(request, metadata=client.metadata)).order
    assert (order.trial_id, order.allocation_id, order.batches) == (trial_id, f"{trial_id}.1", 3)
    answer = await client.http.post(f"/api/v1/trials/{trial_id}/profile", json={"batches": 4})
    assert answer.json() == {
        "order": {
            "trialId": trial_id,
            "allocationId": f"{trial_id}.1",
            "batches": 4,
            "tensorboardUrl": f"/storage/tensorboard/{trial_id}",
        }
    }
    assert (await client.http.post(f"/api/v1/trials/{trial_id}/profile", json={})).json()["order"]["batches"] == 10
    assert [(trace_order.batches, trace_order.user) for trace_order in leader.trace_orders] == [
        (3, "alice"),
        (4, "alice"),
        (10, "alice"),
    ]
    missing = await client.http.post("/api/v1/trials/99.1/profile", json={})
    assert (missing.status_code, missing.json()["code"]) == (404, "trial.not_found")


@pytest.mark.parametrize("batches", [0, -1, 51, 10**12])
async def test_a_trace_of_too_few_or_many_batches_is_refused_in_one_line(
    client: Client, leader: StandInLeader, batches: int
) -> None:
    answer = await client.http.post("/api/v1/trials/1.1/profile", json={"batches": batches})
    assert (answer.status_code, answer.json()["code"]) == (400, "trace.batches")
    assert answer.json()["detail"] == f"a trace has 1 to 50 batches, not {batches}"
    assert not leader.trace_orders


async def test_change_without_request_id_or_action_is_refused(client: Client, leader: StandInLeader) -> None:
    created = await create(client)
    wrong = [
        pb.UpdateExperimentRequest(experiment_id=created.id, action=types_pb2.EXPERIMENT_ACTION_PAUSE),
        pb.UpdateExperimentRequest(experiment_id=created.id, request_id="c1"),
    ]
    codes = []
    for request in wrong:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await client.gateway.UpdateExperiment(request, metadata=client.metadata)
        codes.append(rpc.error_of(failure.value, "the gateway").code)
    assert codes == ["request.no_id", "request.one_change"]


async def test_search_is_previewed_on_both_surfaces(client: Client, leader: StandInLeader) -> None:
    request = pb.GatewayServicePreviewSearchRequest(config_json=json.dumps(CONFIG), limit=2)
    preview = (await client.gateway.PreviewSearch(request, metadata=client.metadata)).preview
    assert (preview.num_trials, list(preview.hyperparameters_json)) == (9, ['{"x": 0}', '{"x": 1}'])
    answer = await client.http.post("/api/v1/preview-hp-search", json={"config": CONFIG, "limit": 1})
    assert answer.json() == {
        "searcher": "grid", "seed": 7, "numTrials": 9, "maxConcurrentTrials": 2, "hparams": [{"x": 0}],
        "unit": "", "brackets": [], "minTotal": 0, "expectedTotal": 0, "maxTotal": 0,
        "slotsPerTrial": 0, "paceTrialId": "", "secondsPerUnit": 0.0,
    }  # fmt: skip
    wrong = await client.http.post("/api/v1/preview-hp-search", json={"config": "name: x"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "config.missing_key")


async def test_a_search_that_waits_for_its_trials_says_so(
    client: Client, leader: StandInLeader, etcd: EtcdClient
) -> None:
    created = await create(client)
    search = Search(created.id, seed=7, num_events=1, num_wanted=1, num_planned=9)
    await etcd.commit([Put(keys.search(created.id), wire.encode(search))])

    async def look() -> pb.ExperimentView:
        request = pb.GetExperimentRequest(experiment_id=created.id)
        view = (await client.gateway.GetExperiment(request, metadata=client.metadata)).view
        assert isinstance(view, pb.ExperimentView)
        return view

    async for message in client.gateway.WatchExperiment(
        pb.WatchExperimentRequest(experiment_id=created.id), metadata=client.metadata
    ):
        if message.view.HasField("search"):
            break
    view = await look()
    assert view.reason.code == types_pb2.REASON_CODE_SEARCH_WAITING
    assert view.reason.message == "1 of 9 trials are made, 1 at a time"
    assert list(view.reason.blocking_ids) == [f"{created.id}.1"]
