"""Connections that leave HTTP for a task: who gets one, and when it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import State, TaskKind
from gangline.domain.user import User
from services.common import keys
from services.common.access.security import hash_token
from services.common.server import Principal
from services.gateway.audit.trail import AuditTrail
from services.gateway.history.reader import Reader
from services.gateway.http.tunnel.upgrade import Upgrades
from services.gateway.mirror.auth import Authenticator
from services.gateway.usecase.bundle import OpenCases, Shared, UseCases
from services.gateway.usecase.open.task import TaskProofs
from services.gateway.usecase.shared.pending import Pending
from services.gateway.usecase.shared.task_secret import TaskSecrets
from services.gateway.usecase.shared.tunnel_table import Tunnel, TunnelTable
from services.gateway.usecase.shared.view import Views
from tests.support.stand_in_mirror import StandInMirror

CLUSTER = "the-cluster-token-of-this-test"
TOKEN = "token-of-ann-with-enough-letters"
RUNNER, ANN = Principal("allocation", "1.1.1"), Principal("user", "ann")
NOTEBOOK = Experiment(1, "notebook", "ann", "{}", "", task_kind=TaskKind.NOTEBOOK, state=State.RUNNING)
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


@dataclass
class Bench:
    mirror: StandInMirror
    usecases: UseCases
    upgrades: Upgrades
    answers: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    offers: list[AsyncIterator[tuple[str, str]]] = field(default_factory=list)

    async def connect(self, path: str, *headers: tuple[bytes, bytes]) -> asyncio.StreamReader:
        """Makes a request. Returns what the caller reads."""
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, theirs)
        given = [(b"host", b"gateway"), (b"upgrade", b"websocket"), *headers]
        scope = {"path": path, "raw_path": path.encode(), "query_string": b"", "method": "GET", "scheme": "http"}
        scope |= {"type": "http", "headers": given}
        self.upgrades.start(transport, scope, b"", b"")
        reader, writer = await asyncio.open_connection(sock=ours)
        self.writers.append(writer)
        return reader

    async def refusal(self, path: str, *headers: tuple[bytes, bytes]) -> bytes:
        return await (await self.connect(path, *headers)).read()

    async def serve(self) -> Tunnel:
        """Answers the next order as the trial runner of the task, which sends `answers`."""

        async def incoming() -> AsyncIterator[bytes]:
            while True:
                yield await self.answers.get()

        orders = self.usecases.of_runner(RUNNER).tunnels.offer("1.1.1", "trainer")
        await anext(orders)
        self.offers.append(orders)
        _, order = await anext(orders)
        tunnel = self.usecases.of_runner(RUNNER).tunnels.take(order)
        tunnel.attach(incoming(), "")
        return tunnel


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    mirror = StandInMirror()
    mirror.put(keys.experiment(1), NOTEBOOK)
    mirror.put(keys.trial("1.1"), Trial("1.1", 1, 1))
    mirror.put(keys.experiment(2), Experiment(2, "training", "ann", "{}", ""))
    mirror.put(keys.user("ann"), User("ann", hash_token(TOKEN)))
    views, secrets = Views(mirror, cast("Reader", None), cast("Pending", None)), TaskSecrets(mirror, CLUSTER)
    nothing, table = cast("Any", None), TunnelTable()
    shared: Any = SimpleNamespace(mirror=mirror, views=views, tunnels=table, task_secrets=secrets)
    proofs = TaskProofs(mirror, views, secrets)
    cluster = cast("Any", SimpleNamespace(identify=lambda: "5b3f"))
    trail = AuditTrail(mirror, lambda _: None)
    usecases = UseCases(OpenCases(nothing, cluster, proofs), table, trail, cast("Shared", shared))
    bench = Bench(mirror, usecases, Upgrades(usecases, Authenticator(mirror, CLUSTER)))
    yield bench
    await bench.upgrades.close()
    for writer in bench.writers:
        writer.close()


BEARER = (b"authorization", b"Bearer " + TOKEN.encode())


async def test_without_rights_nobody_learns_which_tasks_there_are(bench: Bench) -> None:
    answers = {await bench.refusal(f"/proxy/{number}{code}/") for number in (1, 2, 99) for code in ("", ".0")}
    assert len(answers) == 1
    assert answers.pop().startswith(b"HTTP/1.1 401 ")


async def test_the_code_in_its_id_opens_no_notebook(bench: Bench) -> None:
    code = bench.usecases.of(ANN).tunnels.code_of(NOTEBOOK)
    assert (await bench.refusal(f"/proxy/1.{code}/terminals/websocket/1")).startswith(b"HTTP/1.1 401 ")


async def test_a_connection_ends_with_the_rights_of_its_caller(bench: Bench) -> None:
    serving = asyncio.create_task(bench.serve())
    await asyncio.sleep(0)
    browser = await bench.connect("/proxy/1/ws", BEARER)
    await serving
    bench.answers.put_nowait(SWITCHED + b"first")
    assert (await browser.readuntil(b"first")).startswith(b"HTTP/1.1 101 ")
    bench.mirror.put(keys.user("ann"), User("ann", hash_token(TOKEN), is_deactivated=True))
    bench.answers.put_nowait(b"secret")
    assert await browser.read() == b""


async def test_a_task_sets_no_cookie_for_the_whole_origin_by_a_damaged_head(bench: Bench) -> None:
    serving = asyncio.create_task(bench.serve())
    await asyncio.sleep(0)
    browser = await bench.connect("/proxy/1/ws", BEARER)
    await serving
    bench.answers.put_nowait(SWITCHED.replace(b"websocket", b"websocket\nSet-Cookie: a=1; Path=/"))
    assert await browser.read() == b""
