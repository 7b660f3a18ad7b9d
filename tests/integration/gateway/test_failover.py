"""Two real gateways on one etcd and one PostgreSQL: clients go on at the other one when one dies, hangs or stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import pytest_asyncio

from gangline.client import Client as UserClient
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import Outcome, State
from gangline.errors import GanglineError
from gangline.protocol import wire
from gangline.v1 import ingest_pb2, scheduler_pb2
from services.common import keys
from services.common.etcd import EtcdClient, Put
from tests.support.etcd import EtcdServer
from tests.support.gateway import CLUSTER_TOKEN, USER_TOKEN, Client, GatewayProcess, add_user, mount_storage
from tests.support.proxy import Proxy
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until, until_async, within

T = TypeVar("T")
CONFIG = "entrypoint: model_def:Digits\nsearcher: {name: single, metric: loss, max_length: 10}\n"
COMMAND = str(Path(sys.executable).with_name("gangline"))
# The keepalive ends the calls at a process that hangs after 8 s; the rest is for a machine under load.
LEFT_SECONDS = 8.0 + 4.0
# Death, a hang that leaves the connection open, and an orderly stop.
FAULTS = [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM]


class SlowLeader(StandInLeader):
    """Answers the first submission only when `may_answer` is set; it has made the experiment before."""

    def __init__(self, etcd: EtcdClient) -> None:
        super().__init__(etcd, CLUSTER_TOKEN)
        self.has_made = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def _submit(self, request: scheduler_pb2.SubmitExperimentRequest) -> Any:
        answer = await super()._submit(request)
        if not self.has_made.is_set():
            self.has_made.set()
            await self.may_answer.wait()
        return answer


@dataclass
class Gateways:
    """Several gateways of one cluster."""

    processes: dict[str, GatewayProcess]  # by the address of their gRPC
    proxy: Proxy  # proxy between the second one and etcd

    @property
    def addresses(self) -> list[str]:
        return list(self.processes)

    def connect(self, *addresses: str, retry_seconds: float | None = None) -> UserClient:
        """A client that begins with the first of these addresses; default: all."""
        client = UserClient(",".join(addresses or self.addresses), USER_TOKEN, retry_seconds=retry_seconds)
        connection = client._connection
        first = (addresses or tuple(self.addresses))[0]
        connection.gateways.sort(key=lambda gateway: not gateway.target.endswith(first))
        connection.chosen = connection.current = connection.gateways[0]
        return client

    async def break_(self, address: str, fault: int) -> None:
        process = self.processes[address].process
        assert process is not None
        process.send_signal(fault)
        if fault == signal.SIGKILL:
            await asyncio.to_thread(process.wait, 10)

    async def deliver(self, address: str, first: int, last: int) -> None:
        """Stores the lines "line FIRST" to "line LAST" of trial 7.1 through this gateway."""
        client = Client(address, self.processes[address].addresses["http"])
        records = [
            ingest_pb2.IngestRecord(
                sequence=number,
                at=1.0,
                log=ingest_pb2.LogLine(rank=0, agent_id="a1", stream="stdout", text=f"line {number}"),
            )
            for number in range(first, last + 1)
        ]
        request = ingest_pb2.IngestRequest(spool_id="7.1.1/0", trial_id="7.1", records=records)
        stream = client.ingest.Ingest(iter([request]), metadata=client.runner_metadata("7.1.1"))
        assert [answer.stored_sequence async for answer in stream] == [last]
        await client.close()

    async def followed(self) -> str:
        """Returns the address of the gateway that has a follower. A gateway may be dead, but none may hang."""

        async def find() -> str | None:
            for address, gateway in self.processes.items():
                client = Client(address, gateway.addresses["http"])
                with contextlib.suppress(httpx.ConnectError):
                    if "gangline_gateway_followers 1.0" in (await client.http.get("/metrics")).text:
                        return address
                await client.close()
            return None

        return await until_async(find, "a follower at a gateway")

    def other(self, address: str) -> str:
        return next(each for each in self.addresses if each != address)


@pytest_asyncio.fixture
async def slow_leader(etcd: EtcdClient) -> AsyncIterator[SlowLeader]:
    leader = SlowLeader(etcd)
    await leader.start()
    yield leader
    leader.may_answer.set()
    await leader.stop()


@pytest_asyncio.fixture
async def gateways(
    etcd: EtcdClient, etcd_server: EtcdServer, tmp_path: Path, postgres_url: str
) -> AsyncIterator[Gateways]:
    """Experiment 7 with trial 7.1 is there, both RUNNING."""
    await add_user(etcd)
    experiment = Experiment(7, "digits", "alice", "{}", "a" * 64, State.RUNNING)
    trial = Trial("7.1", 7, 1, state=State.RUNNING)
    await etcd.commit([Put(keys.experiment(7), wire.encode(experiment)), Put(keys.trial("7.1"), wire.encode(trial))])
    mount_storage(tmp_path / "storage")
    shared = {"storage-url": str(tmp_path / "storage"), "database-url": postgres_url}
    async with Proxy(etcd_server.address) as proxy, contextlib.AsyncExitStack() as stack:
        processes = {}
        for name, etcd_address in (("a", etcd_server.address), ("b", proxy.address)):
            (tmp_path / name).mkdir()
            gateway = GatewayProcess(tmp_path / name, etcd_address, **shared)
            stack.push_async_callback(_end, gateway)
            await gateway.start()
            processes[gateway.addresses["grpc"]] = gateway
        yield Gateways(processes, proxy)


async def _end(gateway: GatewayProcess) -> None:
    if gateway.process is not None and gateway.process.poll() is None:
        await gateway.end()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "model_def.py").write_text("class Digits(Base):\n    pass\n")
    return folder


class Follower:
    """`gangline experiment logs -f 7 --json` as a process."""

    def __init__(self, addresses: list[str], home: Path, retry_seconds: float = 10) -> None:
        self._environment = {
            **os.environ,
            "GANGLINE_HOME": str(home),
            "GANGLINE_GATEWAY": " , ".join(addresses),
            "GANGLINE_TOKEN": USER_TOKEN,
            "GANGLINE_RETRY_SECONDS": str(retry_seconds),
        }
        self.texts: list[str] = []
        self.error = ""
        self.status: int | None = None

    async def run(self) -> None:
        process = await asyncio.create_subprocess_exec(
            COMMAND, "experiment", "logs", "-f", "7", "--json",
            env=self._environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async for line in process.stdout:
                self.texts.append(json.loads(line)["text"])
            self.error = (await process.stderr.read()).decode()
            self.status = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def wait_for(self, last: int, seconds: float = 30.0) -> None:
        await until(lambda: f"line {last}" in self.texts, f"line {last} at the follower", seconds)


@contextlib.asynccontextmanager
async def following(follower: Follower) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(follower.run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def in_thread(function: Callable[..., T], *arguments: Any, seconds: float = 60) -> T:
    return await within(seconds, asyncio.to_thread(function, *arguments))


@pytest.mark.parametrize("fault", FAULTS)
async def test_followed_logs_go_on_at_the_other_gateway_with_each_line_once(
    gateways: Gateways, leader: StandInLeader, tmp_path: Path, fault: int
) -> None:
    follower = Follower(gateways.addresses, tmp_path / "home")
    async with following(follower) as task:
        # More lines than one page has.
        await gateways.deliver(gateways.addresses[0], 1, 700)
        await follower.wait_for(700)
        used = await gateways.followed()
        other = gateways.other(used)
        await gateways.deliver(other, 701, 720)
        await gateways.break_(used, fault)
        broken_at = time.monotonic()
        await gateways.deliver(other, 721, 750)
        await follower.wait_for(750)
        assert time.monotonic() - broken_at < LEFT_SECONDS
        await gateways.deliver(other, 751, 760)
        await leader.end(7, Outcome.COMPLETED)
        await within(30, task)
    assert (follower.status, follower.error) == (0, "")
    assert follower.texts == [f"line {number}" for number in range(1, 761)]


@pytest.mark.parametrize("fault", FAULTS)
async def test_create_whose_gateway_breaks_makes_one_experiment(
    gateways: Gateways, slow_leader: SlowLeader, etcd: EtcdClient, code: Path, fault: int
) -> None:
    first, second = gateways.addresses
    with gateways.connect(first, second) as client:
        creating = asyncio.create_task(in_thread(client.create_experiment, CONFIG, code))
        await within(20, slow_leader.has_made.wait())
        await gateways.break_(first, fault)
        broken_at = time.monotonic()
        created = await creating
        assert time.monotonic() - broken_at < LEFT_SECONDS
        view = await in_thread(client.get_experiment, created.experiment.id)
    assert view.experiment.request_id == created.experiment.request_id
    listing = await etcd.list(keys.EXPERIMENTS)
    ids = {wire.decode(Experiment, item.value).id for item in listing.items}
    assert ids == {7, created.experiment.id}
    assert len({request.request_id for request in slow_leader.submissions}) == 1
    assert len(slow_leader.submissions) >= 2


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_follower_that_loses_all_gateways_names_the_way_back(
    gateways: Gateways, tmp_path: Path, fault: int
) -> None:
    follower = Follower(gateways.addresses, tmp_path / "home", retry_seconds=2)
    async with following(follower) as task:
        await gateways.deliver(gateways.addresses[0], 1, 3)
        await follower.wait_for(3)
        for address in gateways.addresses:
            await gateways.break_(address, fault)
        await within(30, task)
    first, second = gateways.addresses
    assert follower.status == 1
    assert re.fullmatch(
        rf"error: the gateways at {first}, {second} have not answered for \d+ s; experiment 7 goes on without them; "
        r"come back with: gangline experiment logs -f 7\n",
        follower.error,
    ), follower.error
    assert follower.texts == ["line 1", "line 2", "line 3"]


async def test_experiment_that_was_just_created_is_there_at_a_gateway_that_lags(
    gateways: Gateways, leader: StandInLeader, code: Path
) -> None:
    first, second = gateways.addresses
    gateways.proxy.delay_seconds = 0.3
    with gateways.connect(first) as client, gateways.connect(second) as lagging:
        # The first call does not measure how long the connection takes.
        await in_thread(lagging.get_experiment, 7)
        created = await in_thread(client.create_experiment, CONFIG, code)
        number = created.experiment.id
        assert (await in_thread(lagging.get_experiment, number)).experiment.id == number
        created = await in_thread(client.create_experiment, CONFIG, code)
        assert await in_thread(lambda: list(lagging.stream_logs(created.experiment.id))) == []
        created = await in_thread(client.create_experiment, CONFIG, code)
        http = Client(second, gateways.processes[second].addresses["http"])
        assert (await http.http.get(f"/api/v1/experiments/{created.experiment.id}")).status_code == 200
        await http.close()
        with pytest.raises(GanglineError) as caught:
            await in_thread(lagging.get_experiment, 1234)
        assert caught.value.code == "experiment.not_found"


async def test_gateway_that_is_cut_off_from_etcd_sends_clients_to_the_other(
    gateways: Gateways, leader: StandInLeader, code: Path
) -> None:
    first, second = gateways.addresses
    gateways.proxy.is_holding_answers = True
    with (
        gateways.connect(first) as client,
        gateways.connect(second, retry_seconds=0) as cut_off,
        gateways.connect(second, first) as both,
    ):
        number = (await in_thread(client.create_experiment, CONFIG, code)).experiment.id
        with pytest.raises(GanglineError) as caught:
            await in_thread(cut_off.get_experiment, number)
        assert caught.value.code == "gateway.behind"
        # What it has read before is still shown.
        assert (await in_thread(cut_off.get_experiment, 7)).experiment.id == 7
        assert (await in_thread(both.get_experiment, number)).experiment.id == number


async def test_read_after_a_change_is_not_older_at_the_next_gateway(gateways: Gateways, leader: StandInLeader) -> None:
    first, second = gateways.addresses
    gateways.proxy.delay_seconds = 0.3
    with gateways.connect(first, second) as client:
        await in_thread(client.get_experiment, 7)
        assert (await in_thread(client.pause_experiment, 7)).state is State.PAUSED
        await gateways.break_(first, signal.SIGKILL)
        assert (await in_thread(client.get_experiment, 7)).experiment.state is State.PAUSED
        assert [each.state for each in await in_thread(client.list_experiments)] == [State.PAUSED]


async def test_watch_goes_on_at_the_other_gateway(gateways: Gateways, leader: StandInLeader) -> None:
    with gateways.connect() as client:
        views = client.watch_experiment(7)
        states = [(await in_thread(next, views)).experiment.state]
        used = await gateways.followed()
        await gateways.break_(used, signal.SIGKILL)
        waiting = asyncio.create_task(in_thread(next, views))
        assert await gateways.followed() == gateways.other(used)
        await leader.end(7, Outcome.COMPLETED)
        states.append((await waiting).experiment.state)
        assert states == [State.RUNNING, State.TERMINAL]
