"""Submits that come as a group or in a burst: each is unique and durable, whatever happens to the others and to the
leader."""

from __future__ import annotations

import asyncio
import re
import time
import uuid

import grpc.aio
import httpx
import pytest

from gangline.config.layer.secret import mask_secrets
from gangline.domain.experiment import Experiment
from gangline.errors import Effect, ErrorKind, GanglineError
from gangline.protocol import rpc, wire
from gangline.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2
from services.common import keys
from services.common.etcd import Delete, EtcdSettings
from services.scheduler.service.submitting import MAX_GROUP
from tests.integration.scheduler.conftest import Bench
from tests.support.proxy import Proxy
from tests.support.scheduler import CLUSTER_TOKEN, Caller, SchedulerProcess, config_json
from tests.support.wait import until, until_async, within

Request = scheduler_pb2.SubmitExperimentRequest


def _request(config: str | None = None, request_id: str | None = None, owner: str = "ann") -> Request:
    return Request(
        request_id=uuid.uuid4().hex if request_id is None else request_id,
        owner=owner,
        config_json=config or config_json(),
        code_sha256="0" * 64,
    )


async def _stored(bench: Bench) -> dict[str, tuple[Experiment, int]]:
    """Returns the content of etcd by request id: each experiment and the revision that wrote it."""
    listing = await bench.etcd.list(keys.EXPERIMENTS)
    experiments = [(wire.decode(Experiment, item.value), item.create_revision) for item in listing.items]
    assert len({experiment.request_id for experiment, _ in experiments}) == len(experiments)
    return {experiment.request_id: (experiment, revision) for experiment, revision in experiments}


async def test_a_bad_submit_of_a_group_fails_alone_and_the_others_keep_their_order(bench: Bench) -> None:
    await bench.scheduler()
    await bench.agent("a1")
    good = [_request(config_json(slots=1 + number % 2)) for number in range(6)]
    bad = {
        "config.missing_key": _request('{"name": "x"}'),
        "pool.not_found": _request(config_json(resources={"resource_pool": "none"})),
        "request.never_fits": _request(config_json(slots=64)),
        "request.no_id": _request(request_id=""),
    }
    group = [*good[:3], *bad.values(), *good[3:]]
    results = await bench.caller.submit_group(*group)
    assert [result.HasField("error") for result in results] == [False] * 3 + [True] * 4 + [False] * 3
    errors = [rpc.error_in(result.error, result.status) for result in results[3:7]]
    assert [error.code for error in errors] == list(bad)
    assert {error.kind for error in errors} <= {ErrorKind.INVALID, ErrorKind.NOT_FOUND}
    assert {error.effect for error in errors} == {Effect.NONE}
    created = [result.created.experiment for result in results if result.HasField("created")]
    assert [experiment.id for experiment in created] == [1, 2, 3, 4, 5, 6]
    assert [experiment.request_id for experiment in created] == [request.request_id for request in good]
    stored = await _stored(bench)
    assert {request_id: experiment.id for request_id, (experiment, _) in stored.items()} == {
        experiment.request_id: experiment.id for experiment in created
    }
    # All were written by one transaction, and none was answered with an older revision.
    assert len({revision for _, revision in stored.values()}) == 1
    assert {result.created.revision for result in results if result.HasField("created")} == {
        stored[good[0].request_id][1]
    }


async def test_a_repeated_group_makes_nothing_new(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    group = [_request() for _ in range(5)]
    first = await bench.caller.submit_group(*group)
    scheduler.end()
    await scheduler.start()
    again = await bench.caller.submit_group(*group[::-1], _request())
    assert [result.created.experiment.id for result in first] == [1, 2, 3, 4, 5]
    assert [result.created.experiment.id for result in again] == [5, 4, 3, 2, 1, 6]


async def test_a_request_id_that_a_group_holds_twice_makes_one_experiment(bench: Bench) -> None:
    await bench.scheduler()
    twin, other = _request(request_id="twin"), _request(config_json(name="another"), request_id="twin")
    results = await bench.caller.submit_group(twin, twin, other, _request())
    assert [result.created.experiment.id for result in results] == [1, 1, 0, 2]
    assert results[2].error.code == "request.reused"
    assert len(await _stored(bench)) == 2


async def test_a_group_beyond_the_limit_is_refused_whole(bench: Bench) -> None:
    await bench.scheduler()
    with pytest.raises(GanglineError) as caught:
        await bench.caller.submit_group(*(_request() for _ in range(MAX_GROUP + 1)))
    assert caught.value.code == "request.too_many"
    assert await _stored(bench) == {}


@pytest.mark.parametrize("is_written", [True, False])
async def test_a_leader_that_is_deposed_in_the_middle_of_a_group_answers_none_of_it(
    bench: Bench, is_written: bool
) -> None:
    """Its transaction reaches etcd before or after another leads. The next leader makes one experiment of each
    submit, or finds it."""
    async with Proxy(bench.settings.endpoints[0]) as proxy:
        first = SchedulerProcess(bench.directory, EtcdSettings(endpoints=(proxy.address,)), "s1")
        bench.schedulers.append(first)
        await first.start()
        second = await bench.scheduler("s2")
        group = [_request() for _ in range(6)]
        if is_written:
            proxy.hold_after = keys.EXPERIMENTS.encode()
        else:
            proxy.is_holding_requests = True
        submitting = asyncio.create_task(Caller(first).submit_group(*group))
        if is_written:
            await until(lambda: proxy.is_holding_answers, "the transaction being sent")

            async def is_stored() -> bool:
                return len(await _stored(bench)) == len(group)

            await until_async(is_stored, "the transaction being applied")
        else:
            await until(lambda: keys.EXPERIMENTS.encode() in b"".join(proxy.held), "the transaction being sent")
        await bench.etcd.commit([Delete(keys.LEADER)])
        with pytest.raises(GanglineError) as caught:
            await within(15, submitting)
        assert caught.value.effect is Effect.UNKNOWN
        if not is_written:
            await proxy.release(len(proxy.held))
        results = await until_async(lambda: _submit_when_it_leads(second, group), "the second scheduler leading", 20)
        stored = await _stored(bench)
        assert [result.created.experiment.id for result in results] == [1, 2, 3, 4, 5, 6]
        assert list(stored) == [request.request_id for request in group]
        revision_of_answers = results[0].created.revision
        assert all((revision < revision_of_answers) == is_written for _, revision in stored.values())


async def _submit_when_it_leads(
    scheduler: SchedulerProcess, group: list[Request]
) -> list[scheduler_pb2.SubmitResult] | None:
    """None while it stands by."""
    try:
        return await Caller(scheduler).submit_group(*group)
    except GanglineError as error:
        if error.code != "scheduler.not_leader":
            raise
        return None


async def _num_plans(scheduler: SchedulerProcess) -> int:
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://{scheduler.metrics_address}/metrics")).text
    match = re.search(r'^gangline_scheduler_cycle_seconds_count\{phase="plan"\} (\S+)$', text, re.MULTILINE)
    assert match
    return int(float(match[1]))


async def test_a_burst_into_a_full_pool_does_not_plan_for_each_submit(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1", slots=1)
    await bench.caller.submit(config_json())
    await agent.started()
    async with grpc.aio.insecure_channel(scheduler.address, options=rpc.CHANNEL_OPTIONS) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        metadata = rpc.token_metadata(CLUSTER_TOKEN)
        num_before, began_at = await _num_plans(scheduler), time.monotonic()
        for _ in range(200):
            await stub.SubmitExperiment(_request(), metadata=metadata, timeout=10)
        num_plans, seconds = await _num_plans(scheduler) - num_before, time.monotonic() - began_at
    # Ten a second, and those that the first allocation's start has brought about.
    assert num_plans <= seconds * 10 + 5
    pending = await bench.caller.list_pending()
    assert len(pending) == 200
    assert {item.reason.code for item in pending} <= {
        types_pb2.REASON_CODE_NO_CAPACITY,
        types_pb2.REASON_CODE_BEHIND_RESERVATION,
    }


async def test_a_request_for_which_a_slot_is_free_starts_though_others_wait(bench: Bench) -> None:
    """A gang that does not fit waits. A request that fits beside it is planned at once, not in the next lazy cycle."""
    await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    await bench.caller.submit(config_json(slots=1))
    await agent.started()
    await bench.caller.submit(config_json(slots=2))
    await bench.caller.submit(config_json(slots=1))
    specs = await agent.started(2)
    assert {spec.allocation.id for spec in specs} == {"1.1.1", "3.1.1"}


async def test_a_masked_value_stands_for_a_secret_of_ones_own_experiment_alone(bench: Bench) -> None:
    await bench.scheduler()
    await bench.agent("a1")
    secret = config_json(data={"db": {"password": "s3cr3t"}, "DATABASE_URL": "postgres://u:s3cr3t@db/x"})
    parent = (await bench.caller.submit_group(_request(secret, "parent")))[0].created.experiment
    assert parent.config_json == secret
    masked = mask_secrets(secret)
    assert "s3cr3t" not in masked
    fork = _request(masked, "fork")
    fork.forked_from = parent.id
    stolen = _request(masked, "stolen", owner="bob")
    stolen.forked_from = parent.id
    results = await bench.caller.submit_group(fork, stolen, _request(masked, "alone"))
    assert results[0].created.experiment.config_json == secret
    assert [result.error.code for result in results[1:]] == ["config.masked"] * 2
    again = await bench.caller.submit_group(fork)
    assert again[0].created.experiment.id == results[0].created.experiment.id
