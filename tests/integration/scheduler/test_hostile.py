"""Requests that cost a scheduler more than they weigh, to a real one: it refuses them and goes on leading."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import grpc
import grpc.aio
import pytest

from gangline.domain.allocation import ExitReport
from gangline.domain.resource import Agent, Slot
from gangline.domain.state import ExitKind, State
from gangline.errors import GanglineError
from gangline.protocol import rpc, wire
from gangline.v1 import agent_pb2, agent_pb2_grpc
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import CLUSTER_TOKEN, config_json

RANGE = {"type": "int", "minval": 0, "maxval": 2_000_000_000, "count": 1_000_000_000}
GRID = {
    "entrypoint": "python3 train.py",
    "searcher": {"name": "grid", "metric": "loss"},
    "hyperparameters": {"x": RANGE},
}


async def test_large_configurations_are_refused_while_others_are_answered(bench: Bench) -> None:
    await bench.scheduler()
    many = json.dumps(json.loads(config_json()) | {"data": {"x": [1] * 60_000}})
    attacks = [*[json.dumps(GRID)] * 4, *[many] * 4, *["[" * 200_000] * 4]

    async def attack(text: str) -> str:
        with pytest.raises(GanglineError) as caught:
            await bench.caller.submit(text)
        return caught.value.code

    attacking = asyncio.gather(*map(attack, attacks))
    slowest = 0.0
    while not attacking.done():
        started = time.monotonic()
        assert await bench.caller.list_pending() == []
        slowest = max(slowest, time.monotonic() - started)
    assert await attacking == ["config.invalid_value"] * 4 + ["config.too_large"] * 8
    assert slowest < 2.0
    with pytest.raises(GanglineError, match="has 1000000000 points, and a search has at most 10000 trials"):
        await bench.caller.preview(json.dumps(GRID), 20)


async def test_hello_of_a_thousand_allocations_is_welcome(bench: Bench) -> None:
    """14 MB: each has ended with the longest message and all lines that are kept."""
    scheduler = await bench.scheduler()
    report = ExitReport("a1", ExitKind.USER_ERROR, "m" * 2000, last_lines=("l" * 500,) * 20)
    hello = agent_pb2.AgentHello(agent=wire.to_proto(Agent("a1", slots=(Slot("a1/0"),))))
    for number in range(1, 1001):
        status = hello.allocations.add(allocation_id=f"{number}.1.1", state=wire.enum_number(State.TERMINAL))
        status.exit.CopyFrom(wire.to_proto(report))
    assert hello.ByteSize() > 10 << 20
    async with grpc.aio.insecure_channel(scheduler.address, options=rpc.CHANNEL_OPTIONS) as channel:
        stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
        call = stub.Connect(metadata=rpc.token_metadata(CLUSTER_TOKEN), timeout=60)
        await call.write(agent_pb2.ConnectRequest(hello=hello))
        assert (await call.read()).HasField("welcome")
        forgotten = {(await call.read()).forget.allocation_id for _ in range(1000)}
        assert len(forgotten) == 1000


async def test_search_over_as_many_ranges_as_are_allowed_does_not_hold_up_the_leader(bench: Bench) -> None:
    await bench.scheduler()
    ranges = {f"h{number}": {"type": "double", "minval": 0.0, "maxval": 1.0} for number in range(200)}
    search = {"name": "random", "metric": "loss", "max_trials": 100, "max_concurrent_trials": 0}
    # The library that draws is loaded once.
    await bench.caller.submit(config_json(hyperparameters={"x": ranges["h0"]}))
    submitting = asyncio.create_task(bench.caller.submit(config_json(hyperparameters=ranges, searcher=search)))
    slowest = 0.0
    while not submitting.done() or len(await bench.caller.list_pending()) < 101:
        started = time.monotonic()
        await bench.caller.list_pending()
        slowest = max(slowest, time.monotonic() - started)
    assert slowest < 5.0
