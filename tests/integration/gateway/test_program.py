"""`gangline-gateway` as a real process: killed while it ingests, stopped in order, started where it cannot run,
and over an etcd that goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.resource import ServiceInstance
from gangline.domain.state import State
from gangline.domain.storage.storage_fault import MARKER_FILE
from gangline.protocol import rpc, wire
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2
from services.common import keys
from services.common.etcd import EtcdClient, Put
from tests.support.etcd import EtcdServer
from tests.support.forked_service import load_services
from tests.support.gateway import CONFIG, Client, GatewayProcess, add_user, pack, sha256
from tests.support.wait import until, until_async, within

NUM_RECORDS = 3000
NUM_KILLS = 4


@pytest_asyncio.fixture
async def gateway(etcd: EtcdClient, etcd_server: EtcdServer, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Not started yet. Experiment 7 is there."""
    await add_user(etcd)
    await put_experiment(etcd)
    gateway = GatewayProcess(tmp_path, etcd_server.address)
    yield gateway
    if gateway.process is not None and gateway.process.poll() is None:
        await gateway.end()


async def put_experiment(etcd: EtcdClient) -> None:
    experiment = Experiment(7, "digits", "alice", "{}", "a" * 64, State.RUNNING)
    trial = Trial("7.1", 7, 1, state=State.RUNNING)
    await etcd.commit([Put(keys.experiment(7), wire.encode(experiment)), Put(keys.trial("7.1"), wire.encode(trial))])


class Spool:
    """A runner's spool: it keeps records until they are acknowledged, and sends from the first unacknowledged one."""

    def __init__(self, spool_id: str) -> None:
        self.spool_id = spool_id
        self.acknowledged = 0
        self.num_streams = 0

    async def deliver(self, client: Client) -> None:
        """Ends when everything is acknowledged. Raises AioRpcError when the gateway goes."""
        self.num_streams += 1
        stream = client.ingest.Ingest(
            self._requests(), metadata=client.runner_metadata(self.spool_id.partition("/")[0])
        )
        async for answer in stream:
            assert answer.stored_sequence >= self.acknowledged
            self.acknowledged = answer.stored_sequence

    async def _requests(self) -> AsyncIterator[Any]:
        first = self.acknowledged + 1
        while first <= NUM_RECORDS:
            last = min(first + random.randrange(20), NUM_RECORDS)
            records = [
                ingest_pb2.IngestRecord(
                    sequence=number,
                    at=1.0,
                    log=ingest_pb2.LogLine(agent_id="a1", stream="stdout", text=f"{self.spool_id} {number}"),
                )
                for number in range(first, last + 1)
            ]
            yield ingest_pb2.IngestRequest(spool_id=self.spool_id, trial_id="7.1", records=records)
            first = last + 1


async def deliver_through_outages(spool: Spool, addresses: dict[str, Any]) -> None:
    while spool.acknowledged < NUM_RECORDS:
        client = Client(addresses["grpc"], addresses["http"])
        with contextlib.suppress(grpc.aio.AioRpcError):
            await spool.deliver(client)
        await client.close()


async def test_records_survive_kills_of_the_gateway_exactly_once(gateway: GatewayProcess) -> None:
    """No loss: whatever was acknowledged is there. No duplicates: whatever was sent again is there once."""
    await gateway.start()
    spools = [Spool("7.1.1/0"), Spool("7.1.1/1"), Spool("7.1.2/0")]
    delivering = [asyncio.create_task(deliver_through_outages(spool, gateway.addresses)) for spool in spools]
    for kill in range(1, NUM_KILLS + 1):
        goal = NUM_RECORDS * kill // (NUM_KILLS + 2)

        async def has_come_far(goal: int = goal) -> bool:
            return max(spool.acknowledged for spool in spools) >= goal

        await until_async(has_come_far, f"{goal} records being acknowledged", 60)
        assert not all(task.done() for task in delivering), "the kill must hit in the middle"
        await gateway.end(signal.SIGKILL)
        await gateway.start()
    await within(60, asyncio.gather(*delivering))
    assert all(spool.num_streams > 1 for spool in spools)
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    pages = client.gateway.StreamLogs(pb.StreamLogsRequest(experiment_id=7), metadata=client.metadata)
    texts = [log.line.text async for page in pages for log in page.logs]
    await client.close()
    for spool in spools:
        own = [text for text in texts if text.startswith(spool.spool_id + " ")]
        assert own == [f"{spool.spool_id} {number}" for number in range(1, NUM_RECORDS + 1)]


async def test_sigterm_ends_followers_presence_and_the_process(gateway: GatewayProcess, etcd: EtcdClient) -> None:
    await gateway.start()
    assert len((await etcd.list(keys.alive("gateway", ""))).items) == 1
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    following = client.gateway.StreamLogs(pb.StreamLogsRequest(experiment_id=7, follow=True), metadata=client.metadata)
    sse = asyncio.create_task(client.http.get("/api/v1/experiments/7/logs?follow=true"))
    reading = asyncio.create_task(following.read())

    async def has_followers() -> bool:
        return "gangline_gateway_followers 2.0" in (await client.http.get("/metrics")).text

    await until_async(has_followers, "both followers being there")
    assert await within(15, gateway.end(signal.SIGTERM)) == 0
    assert (await etcd.list(keys.alive("gateway", ""))).items == ()
    assert (await within(5, sse)).status_code == 200
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await within(5, reading)
    assert rpc.error_of(failure.value, "").code == "gateway.stopping"
    await client.close()
    assert "Traceback" not in gateway.output()


async def refused(gateway: GatewayProcess, **flags: str) -> tuple[int, str]:
    """Its exit code and the one line that it says to a person."""
    gateway.flags |= flags
    process = gateway.launch()
    exit_code = await within(60, asyncio.to_thread(process.wait))
    lines = [line for line in gateway.output().splitlines() if not line.startswith("{")]
    assert len(lines) == 1, gateway.output()
    return exit_code, lines[0].removeprefix("gangline-gateway: ")


@pytest.mark.parametrize("flag", ["grpc-listen", "http-listen"])
async def test_port_in_use(gateway: GatewayProcess, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        exit_code, line = await refused(gateway, **{flag: address})
    assert exit_code == 1
    assert line == f"cannot listen on {address}: the port is in use; stop what uses it or choose another with --{flag}"


@pytest.mark.parametrize(
    ("flag", "value", "exit_code", "parts"),
    [
        ("database-url", "sqlite:////nonexistent/history.db", 1, ("cannot open the database", "unable to open")),
        ("database-url", "mysql://host/x", 2, ("no support for a mysql database", "postgresql://")),
        ("storage-url", "/proc/nothing/here", 1, ("the storage /proc/nothing/here is away", "mount it again")),
        ("storage-url", "nope://bucket", 2, ("--storage-url nope://bucket cannot be opened",)),
        ("cluster-token-file", "/nonexistent/token", 2, ("/nonexistent/token",)),
    ],
)
async def test_what_is_missing_is_said_in_one_line(
    gateway: GatewayProcess, flag: str, value: str, exit_code: int, parts: tuple[str, ...]
) -> None:
    code, line = await refused(gateway, **{flag: value})
    assert code == exit_code
    assert all(part in line for part in parts), line


def unmount(folder: Path) -> None:
    """Leaves the empty mount point."""
    folder.rename(folder.with_name("aside"))
    folder.mkdir()


def mount_again(folder: Path) -> None:
    (folder / MARKER_FILE).unlink()
    # It fails where anything has been written into the mount point.
    folder.rmdir()
    folder.with_name("aside").rename(folder)


async def test_it_starts_without_its_storage_and_takes_no_other(gateway: GatewayProcess, etcd: EtcdClient) -> None:
    await gateway.start()
    await gateway.end(signal.SIGTERM)
    folder = Path(gateway.flags["storage-url"])
    marker = (folder / MARKER_FILE).read_text().strip()
    unmount(folder)
    await gateway.start()
    (alive,) = (await etcd.list(keys.alive("gateway", ""))).items
    assert wire.decode(ServiceInstance, alive.value).storage_marker == marker
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    archive = pack({"model_def.py": b"x"})
    place = f"/api/v1/code/{sha256(archive)}"
    assert (await client.http.get("/api/v1/experiments/7")).status_code == 200
    answer = await client.http.put(place, content=archive)
    assert (answer.status_code, answer.json()["code"]) == (503, "storage.away")
    assert f"{MARKER_FILE} is not in it" in answer.text
    (folder / MARKER_FILE).write_text("7e1a")
    answer = await client.http.put(place, content=archive)
    assert answer.status_code == 503
    assert f"has the id 7e1a, and the cluster's storage has the id {marker}" in answer.text
    mount_again(folder)
    assert (await client.http.put(place, content=archive)).status_code == 200
    await client.close()
    lines = [json.loads(line) for line in gateway.output().splitlines() if "starts without the storage" in line]
    assert [MARKER_FILE in line["reason"] for line in lines] == [True]


@pytest.mark.parametrize(
    ("flag", "value", "parts"),
    [
        ("database-url", "postgresql://me:hidden@127.0.0.1:9/x", ("the database", "me:***@127.0.0.1:9/x", "refused")),
        ("etcd-endpoints", "127.0.0.1:9", ("etcd", "no etcd answered within 1 s at 127.0.0.1:9; start etcd")),
    ],
)
async def test_it_waits_for_a_peer_that_is_away_says_so_and_can_be_stopped(
    gateway: GatewayProcess, flag: str, value: str, parts: tuple[str, ...]
) -> None:
    gateway.flags |= {flag: value, "etcd-deadline-seconds": "1"}
    await asyncio.to_thread(load_services)
    process = gateway.launch()
    await until(lambda: "waits for a peer" in gateway.output(), "the wait", 30)
    (line,) = [line for line in gateway.output().splitlines() if "waits for a peer" in line]
    assert all(part in line for part in parts), line
    assert "hidden" not in gateway.output()
    assert process.poll() is None
    assert await gateway.end(signal.SIGTERM) == 0
    assert "Traceback" not in gateway.output()


@pytest.mark.usefixtures("short_patience")
async def test_gateway_without_a_scheduler_reads_and_says_why_it_cannot_change(
    client: Client, etcd: EtcdClient
) -> None:
    await put_experiment(etcd)
    archive = pack({"model_def.py": b"x"})

    async def can_be_read() -> bool:
        return (await client.http.get("/api/v1/experiments/7")).status_code == 200

    await until_async(can_be_read, "the experiment")
    assert (await client.http.put(f"/api/v1/code/{sha256(archive)}", content=archive)).status_code == 200
    request = pb.CreateExperimentRequest(request_id="r", config_json=json.dumps(CONFIG), code_sha256=sha256(archive))
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await within(20, client.gateway.CreateExperiment(request, metadata=client.metadata))
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    assert rpc.error_of(failure.value, "").code == "gateway.no_leader"
    assert str(failure.value.details()).startswith("no scheduler leads this cluster")
    answer = await client.http.post("/api/v1/experiments/7/kill")
    assert (answer.status_code, answer.json()["code"]) == (503, "gateway.no_leader")


async def test_reads_work_while_etcd_is_away_and_catch_up_afterwards(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path / "etcd")
    gateway = GatewayProcess(tmp_path, server.address, **{"etcd-deadline-seconds": "1"})
    try:
        async with EtcdClient(server.settings) as etcd:
            await add_user(etcd)
            await put_experiment(etcd)
            # It starts before etcd is back.
            server.kill()
            starting = asyncio.create_task(gateway.start())
            await until(lambda: gateway.log.exists() and "waits for a peer" in gateway.output(), "the wait", 30)
            assert not starting.done()
            server.restart()
            await starting
            client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
            server.kill()
            assert (await client.http.get("/api/v1/experiments/7")).json()["experiment"]["state"] == "RUNNING"
            assert (await client.http.get("/healthz")).status_code == 200
            server.restart()
            paused = Experiment(7, "digits", "alice", "{}", "a" * 64, State.PAUSED)
            await etcd.commit([Put(keys.experiment(7), wire.encode(paused))])

            async def has_caught_up() -> bool:
                view = (await client.http.get("/api/v1/experiments/7")).json()
                return bool(view["experiment"]["state"] == "PAUSED")

            await until_async(has_caught_up, "the gateway seeing what was written after the restart", 30)
            await client.close()
    finally:
        await gateway.end()
        server.stop()
