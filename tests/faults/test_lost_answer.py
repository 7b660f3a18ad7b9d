"""Submits whose answer is lost: no quorum, a leader or a gateway that dies between the commit and the answer.

Three real etcd members, real schedulers and gateways, and the command line as a process, a fork of one that has
imported it. Whatever happens, the command says the truth, and the same command again leaves exactly one experiment.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from gangline.domain.experiment import Experiment
from gangline.protocol import wire
from services.common import keys
from services.common.election import BEAT_SECONDS
from services.common.etcd import EtcdClient, EtcdSettings
from tests.support import warm_program
from tests.support.etcd import EtcdCluster
from tests.support.gateway import GatewayProcess
from tests.support.proxy import Proxy
from tests.support.scheduler import ADMIN_TOKEN, SchedulerProcess
from tests.support.wait import until, until_async
from tests.support.warm_program import WarmPair

NAME = "the-only-one"
CONFIG = f"""name: {NAME}
entrypoint: python3 train.py
searcher: {{name: single, metric: loss}}
"""


@dataclass(frozen=True, slots=True)
class Ran:
    status: int
    out: str
    err: str
    seconds: float


@dataclass
class Bench:
    """A control plane over three members of etcd. code: a folder with an experiment. retry_seconds: for how long a
    command repeats what may still be done; None for its default."""

    folder: Path
    members: EtcdCluster
    stack: AsyncExitStack
    gateways: list[GatewayProcess] = field(default_factory=list)
    schedulers: list[SchedulerProcess] = field(default_factory=list)
    retry_seconds: float | None = None

    @property
    def code(self) -> Path:
        return self.folder / "code"

    async def scheduler(self, name: str, settings: EtcdSettings) -> SchedulerProcess:
        process = SchedulerProcess(self.folder, settings, name)
        self.stack.callback(process.end)
        self.schedulers.append(process)
        return await process.start()

    async def gateway(self, name: str) -> GatewayProcess:
        folder = self.folder / name
        folder.mkdir()
        shared = {"storage-url": str(self.folder / "storage"), "database-url": f"sqlite:///{self.folder}/{name}.db"}
        process = GatewayProcess(folder, ",".join(self.members.settings.endpoints), **shared)
        self.stack.push_async_callback(process.end)
        await process.start()
        self.gateways.append(process)
        return process

    async def experiments(self) -> list[Experiment]:
        """As etcd has them."""
        async with EtcdClient(self.members.settings) as client:
            listing = await client.list(keys.EXPERIMENTS)
        return [wire.decode(Experiment, item.value) for item in listing.items]

    async def cli(self, *arguments: str, address: str = "") -> Ran:
        """`gangline ARGUMENTS` as a process of its own, over the first gateway unless another address is given."""
        environment = {
            **os.environ,
            "GANGLINE_HOME": str(self.folder / "home"),
            "GANGLINE_GATEWAY": address or str(self.gateways[0].addresses["grpc"]),
            "GANGLINE_TOKEN": ADMIN_TOKEN,
        }
        if self.retry_seconds is not None:
            environment["GANGLINE_RETRY_SECONDS"] = str(self.retry_seconds)
        started = time.monotonic()
        ran = await asyncio.to_thread(WarmPair(warm_program.folder()).run, arguments, environment, 90.0)
        return Ran(ran.returncode, ran.stdout, ran.stderr, time.monotonic() - started)

    async def create(self, *flags: str, address: str = "") -> Ran:
        return await self.cli("experiment", "create", *flags, str(self.code / "exp.yaml"), address=address)

    def lose_quorum(self, number: signal.Signals) -> None:
        """Two of three members stop (SIGSTOP) or die (SIGKILL)."""
        for member in self.members.members[:2]:
            member.process.send_signal(number)

    def regain_quorum(self) -> None:
        """After SIGSTOP."""
        for member in self.members.members[:2]:
            member.process.send_signal(signal.SIGCONT)

    async def http(self, path: str) -> tuple[int, dict[str, object], float]:
        """Status, body and seconds of a GET at the first gateway."""
        started = time.monotonic()
        async with httpx.AsyncClient(timeout=20) as client:
            answer = await client.get(f"http://{self.gateways[0].addresses['http']}{path}")
        return answer.status_code, answer.json(), time.monotonic() - started

    async def is_ready(self) -> bool:
        return (await self.http("/readyz"))[0] == 200

    async def is_unavailable(self) -> bool:
        """Whether the gateway and the only scheduler have both noticed that etcd is away. Until the scheduler has, it
        sends a submit to etcd, and then it is honestly open what became of it."""
        status, body, _ = await self.http("/readyz")
        return status == 503 and "etcd" in str(body["problem"]) and await self._is_leader_cut_off()

    async def _is_leader_cut_off(self) -> bool:
        async with httpx.AsyncClient(timeout=20) as client:
            exposition = (await client.get(f"http://{self.schedulers[0].metrics_address}/metrics")).text
        match = re.search(r"^gangline_etcd_lease_beat_timestamp_seconds (\S+)$", exposition, re.MULTILINE)
        assert match
        return time.time() - float(match[1]) > 2 * BEAT_SECONDS


@pytest_asyncio.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    code = tmp_path / "code"
    code.mkdir()
    (code / "exp.yaml").write_text(CONFIG)
    (code / "train.py").write_text("print('trains')\n")
    async with AsyncExitStack() as stack:
        members = EtcdCluster(tmp_path / "etcd")
        stack.callback(members.stop)
        members.start()
        monkeypatch.setenv("GANGLINE_ETCD_ALLOW_UNSAFE_VERSION", str(members.settings.allow_unsafe_version).lower())
        yield Bench(tmp_path, members, stack)


async def _settled(bench: Bench, seconds: float = 30.0) -> list[Experiment]:
    """All experiments, once the leader says that it can write: what was under way is settled by then."""

    async def can_write() -> bool:
        return (await bench.cli("experiment", "find", "no-such-request")).status == 2

    await until_async(can_write, "the leader writing again", seconds)
    return await bench.experiments()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_without_a_quorum_it_is_certain_that_nothing_was_created(bench: Bench, number: signal.Signals) -> None:
    await bench.scheduler("s1", bench.members.settings)
    await bench.gateway("g1")
    bench.lose_quorum(number)
    await until_async(bench.is_unavailable, "the gateway noticing", 15)
    ran = await bench.create("--retry-seconds", "1")

    assert ran.status == 1
    assert ran.err == (
        "error: nothing was created: etcd has no quorum: 1 of 3 members answers; nothing can be submitted or changed "
        "until 2 do\n"
    )
    assert ran.seconds < 15
    if number is signal.SIGSTOP:
        bench.regain_quorum()
        assert await _settled(bench) == []
        again = await bench.create("--json")
        assert (again.status, len(await bench.experiments())) == (0, 1), again.err


async def test_a_change_without_a_quorum_is_certainly_not_made_and_status_names_etcd(bench: Bench) -> None:
    await bench.scheduler("s1", bench.members.settings)
    await bench.gateway("g1")
    assert (await bench.create()).status == 0
    before = await bench.experiments()
    bench.lose_quorum(signal.SIGSTOP)
    await until_async(bench.is_unavailable, "the gateway noticing", 15)

    bench.retry_seconds = 1.0
    for arguments in (["kill", "1"], ["pause", "1"], ["set", "priority", "1", "7"]):
        ran = await bench.cli("experiment", *arguments)
        assert (ran.status, ran.err.count("\n")) == (1, 1), (arguments, ran)
        assert ran.err.startswith("error: nothing was changed: etcd has no quorum: 1 of 3 members answers"), ran.err
    lookup = await bench.cli("experiment", "find", before[0].request_id)
    assert (lookup.status, "etcd has no quorum" in lookup.err) == (1, True)

    status = await bench.cli("status")
    assert "etcd:    etcd has no quorum: 1 of 3 members answers" in status.out
    code, body, seconds = await bench.http("/healthz")
    assert (code, body["hasLeader"]) == (200, True)
    assert body["etcd"] == {"isAvailable": False, "numMembers": 3, "numAnswering": 1} | {
        key: body["etcd"][key]  # type: ignore[index]  # an object of the answer
        for key in ("problem", "since")
    }
    assert seconds < 5
    code, body, seconds = await bench.http("/readyz")
    assert (code, "1 of 3" in str(body["problem"]), seconds < 5) == (503, True, True)

    bench.retry_seconds = None
    bench.regain_quorum()
    await _settled(bench)
    assert await bench.experiments() == before
    assert (await bench.cli("experiment", "find", before[0].request_id)).out.startswith("experiment 1 ")
    await until_async(bench.is_ready, "the gateway being ready again")


async def test_a_submit_in_the_moment_of_the_loss_tells_the_truth_and_makes_no_twin(bench: Bench) -> None:
    """Whichever of the two certain answers, or the open one, comes: it is true, and repeating makes one experiment."""
    await bench.scheduler("s1", bench.members.settings)
    await bench.gateway("g1")
    creating = asyncio.create_task(bench.create("--retry-seconds", "3"))
    await until((bench.folder / "home" / "submits.json").exists, "the submit", 20)
    bench.lose_quorum(signal.SIGSTOP)
    ran = await creating
    bench.regain_quorum()
    experiments = await _settled(bench)
    if ran.status in (0, 1):
        assert len(experiments) == (1 if ran.status == 0 else 0), ran
    else:
        assert ran.status == 3, ran
        assert re.search(r"not known whether the experiment was created: .*etcd.*find [0-9a-f-]{36}$", ran.err.strip())
    again = await bench.create("--json", "--again" if ran.status == 0 else "--json")
    assert again.status == 0, again.err
    assert len(await bench.experiments()) == (2 if ran.status == 0 else 1)


async def test_a_commit_that_the_leader_does_not_hear_of_is_not_made_twice(bench: Bench) -> None:
    """etcd applies the transaction; its answer, and all that follow, do not reach the only scheduler for a while."""
    async with Proxy(bench.members.members[0].address) as proxy:
        await bench.scheduler("s1", EtcdSettings(endpoints=(proxy.address,)))
        await bench.gateway("g1")
        proxy.hold_after = keys.EXPERIMENTS.encode()
        ran = await bench.create("--retry-seconds", "1")
        assert proxy.is_holding_answers
        assert (ran.status, ran.out) == (3, ""), ran
        assert ran.err.startswith("error: it is not known whether the experiment was created: ")
        request_id = ran.err.strip().rpartition(" ")[2]
        bench.retry_seconds = 1.0
        assert (await bench.cli("experiment", "find", request_id)).status == 1
        created = await bench.experiments()
        assert [experiment.request_id for experiment in created] == [request_id]

        proxy.is_holding_answers = False
        again = await bench.create("--retry-seconds", "40")
        assert again.status == 0, again.err
        assert f"goes on with request {request_id}" in again.err
        assert again.out.startswith(f"created experiment 1 {NAME}\n")
        lookup = await bench.cli("experiment", "find", request_id, "--json")
        assert json.loads(lookup.out)["id"] == 1
        assert await _settled(bench) == created


@pytest.mark.parametrize("fate", ["dies", "is cut off"])
async def test_the_next_leader_answers_for_a_commit_that_the_last_one_did_not_hear_of(bench: Bench, fate: str) -> None:
    async with Proxy(bench.members.members[0].address) as proxy:
        leader = await bench.scheduler("s1", EtcdSettings(endpoints=(proxy.address,)))
        await bench.scheduler("s2", bench.members.settings)
        await bench.gateway("g1")
        proxy.hold_after = keys.EXPERIMENTS.encode()
        creating = asyncio.create_task(bench.create("--retry-seconds", "30"))
        await until_async(bench.experiments, "the commit", 30)
        assert not creating.done()
        if fate == "dies":
            leader.end(signal.SIGKILL)
        ran = await creating
        assert ran.status == 0, ran.err
        assert ran.out.startswith(f"created experiment 1 {NAME}\n")
        assert len(await bench.experiments()) == 1


async def test_another_gateway_answers_for_one_that_died_before_its_answer(bench: Bench) -> None:
    await bench.scheduler("s1", bench.members.settings)
    first = await bench.gateway("g1")
    await bench.gateway("g2")
    async with Proxy(str(first.addresses["grpc"])) as proxy:
        proxy.hold_after = f'"name":"{NAME}"'.encode()
        creating = asyncio.create_task(bench.create("--retry-seconds", "1", address=proxy.address))
        created = await until_async(bench.experiments, "the commit", 30)
        assert not creating.done()
        await first.end()
        ran = await creating
    assert ran.status == 3, ran
    assert created[0].request_id in ran.err

    second = str(bench.gateways[1].addresses["grpc"])
    again = await bench.create(address=second)
    assert (again.status, again.out.startswith(f"created experiment 1 {NAME}\n")) == (0, True), again
    twin = await bench.create(address=second)
    assert (twin.status, "was created" in twin.err, "--again" in twin.err) == (2, True, True), twin
    assert len(await bench.experiments()) == 1


async def test_two_shells_that_submit_the_same_at_once_make_one_experiment(bench: Bench) -> None:
    await bench.scheduler("s1", bench.members.settings)
    await bench.gateway("g1")
    ran = await asyncio.gather(bench.create("--json"), bench.create("--json"), bench.create("--json"))
    assert sorted(command.status for command in ran) in ([0, 0, 0], [0, 0, 2], [0, 2, 2]), ran
    assert len(await bench.experiments()) == 1
    assert (await bench.create("--json", "--again")).status == 0
    assert len(await bench.experiments()) == 2
