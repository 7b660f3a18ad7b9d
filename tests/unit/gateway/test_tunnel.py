"""Connections to tasks: who may open one, and what happens when either side ends, is late or is not the right one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gangline.domain.access import Role, RoleAssignment, WorkspaceRoles
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import Outcome, State, TaskKind
from gangline.domain.user import User
from gangline.errors import ErrorKind, GanglineError
from gangline.v1 import gateway_pb2 as pb
from services.common import keys
from services.common.server import Principal
from services.gateway.history.reader import Reader
from services.gateway.mirror.caller import Caller, Runner
from services.gateway.rpc.task_calls import TaskCalls
from services.gateway.usecase.open.task import TaskProofs
from services.gateway.usecase.runner.tunnel_offer import TunnelOffers
from services.gateway.usecase.shared import tunnel_table as module
from services.gateway.usecase.shared.pending import Pending
from services.gateway.usecase.shared.task_secret import TaskSecrets
from services.gateway.usecase.shared.tunnel_table import OpenTunnel, Tunnel, TunnelTable
from services.gateway.usecase.shared.view import Views
from services.gateway.usecase.tunnel import Tunnels
from tests.support.stand_in_mirror import StandInMirror

CLUSTER = "the-cluster-token-of-this-test"
RUNNER, OTHER_RUNNER = Principal("allocation", "1.1.1"), Principal("allocation", "9.1.1")
ANN, BOB, ADMIN = Principal("user", "ann"), Principal("user", "bob"), Principal("user", "root", is_admin=True)
SHELL = Experiment(1, "shell", "ann", "{}", "", task_kind=TaskKind.SHELL, state=State.RUNNING)


@pytest.fixture
def mirror() -> StandInMirror:
    mirror = StandInMirror()
    mirror.put(keys.experiment(1), SHELL)
    mirror.put(keys.trial("1.1"), Trial("1.1", 1, 1))
    mirror.put(keys.experiment(2), Experiment(2, "training", "ann", "{}", ""))
    mirror.put(keys.user("ann"), User("ann", "sha-of-ann"))
    return mirror


class Gateway:
    """The parts of a gateway that carry tunnels."""

    def __init__(self, mirror: StandInMirror) -> None:
        self.mirror = mirror
        self.views = Views(mirror, cast("Reader", None), cast("Pending", None))
        self.table = TunnelTable()
        self.secrets = TaskSecrets(mirror, CLUSTER)
        self.proofs = TaskProofs(mirror, self.views, self.secrets)

    def of(self, principal: Principal) -> Tunnels:
        return Tunnels(Caller(principal), self.mirror, self.views, self.table, self.secrets)

    def of_runner(self, principal: Principal = RUNNER) -> TunnelOffers:
        return TunnelOffers(Runner(principal), self.mirror, self.views, self.table, self.secrets)

    def opening(self) -> asyncio.Task[OpenTunnel]:
        return asyncio.create_task(self.table.open(SHELL))


@pytest.fixture
def gateway(mirror: StandInMirror) -> Gateway:
    return Gateway(mirror)


async def _bytes(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def _order(orders: AsyncIterator[tuple[str, str]]) -> str:
    _, order = await anext(orders)
    return order


async def test_a_runner_answers_an_order_and_bytes_flow_both_ways(gateway: Gateway) -> None:
    orders = gateway.of_runner().offer("1.1.1", "trainer")
    key, order = await anext(orders)
    assert (key.partition(" ")[0], order) == ("ssh-ed25519", "")
    assert gateway.table.is_ready(1)
    opening = asyncio.create_task(gateway.of(ANN).open(1))
    taken = gateway.of_runner().take(await _order(orders))
    taken.attach(_bytes(b"from the task"), "")
    with await opening as tunnel:
        await tunnel.write(b"to the task")
        assert await anext(taken.outgoing()) == b"to the task"
        assert [await tunnel.read(), await tunnel.read()] == [b"from the task", b""]
    assert [data async for data in taken.outgoing()] == []
    with pytest.raises(ConnectionError):
        await tunnel.write(b"too late")


async def test_only_the_owner_and_administrators_reach_a_task(gateway: Gateway) -> None:
    assert gateway.of(ANN).find(1) is gateway.of(ADMIN).find(1)
    for principal, number, code in (
        (BOB, 1, "auth.not_owner"),
        (RUNNER, 1, "auth.forbidden"),
        (ANN, 2, "task.no_tunnel"),
    ):
        with pytest.raises(GanglineError) as caught:
            gateway.of(principal).find(number)
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("role", "code"),
    [(Role.EDITOR, ""), (Role.ADMIN, ""), (Role.VIEWER, "auth.no_role"), (None, "auth.no_role")],
)
async def test_an_owner_reaches_a_task_as_an_editor_of_its_workspace(
    gateway: Gateway, mirror: StandInMirror, role: Role | None, code: str
) -> None:
    mirror.put(keys.user("ann"), User("ann", "sha-of-ann", id=2))
    mirror.put(keys.user("bob"), User("bob", "sha-of-bob", id=3))
    given = (RoleAssignment(role, 2),) if role is not None else ()
    mirror.put(keys.roles(0), WorkspaceRoles(0, (*given, RoleAssignment(Role.ADMIN, 3))))
    if code:
        with pytest.raises(GanglineError) as caught:
            gateway.of(ANN).find(1)
        assert (caught.value.code, gateway.of(ANN).code_of(SHELL)) == (code, "")
    else:
        assert gateway.of(ANN).find(1) == SHELL
        assert gateway.of(ANN).code_of(SHELL)
    # An admin of the workspace ends the task of another user, but does not enter it.
    with pytest.raises(GanglineError) as caught:
        gateway.of(BOB).find(1)
    assert (caught.value.code, gateway.of(BOB).code_of(SHELL)) == ("auth.not_owner", "")
    assert gateway.of(ADMIN).find(1) == SHELL


async def test_an_open_tunnel_carries_nothing_once_its_owner_lost_the_role(
    gateway: Gateway, mirror: StandInMirror
) -> None:
    mirror.put(keys.user("ann"), User("ann", "sha-of-ann", id=2))

    class Calls(TaskCalls):
        def _cases(self, request: object) -> Any:
            return SimpleNamespace(tunnels=gateway.of(ANN))

    calls = cast("Any", Calls)(None)
    sent: asyncio.Queue[bytes] = asyncio.Queue()
    typed: asyncio.Queue[bytes] = asyncio.Queue()

    async def requests() -> AsyncIterator[pb.ConnectTaskRequest]:
        yield pb.ConnectTaskRequest(experiment_id=1)
        while True:
            yield pb.ConnectTaskRequest(data=await typed.get())

    async def from_task() -> AsyncIterator[bytes]:
        while True:
            yield await sent.get()

    orders = gateway.of_runner().offer("1.1.1", "trainer")
    await anext(orders)
    answers = calls.ConnectTask(requests(), None)
    opening = asyncio.ensure_future(anext(answers))
    taken = gateway.of_runner().take(await _order(orders))
    taken.attach(from_task(), "")
    assert (await opening).data == b""
    sent.put_nowait(b"output")
    assert (await anext(answers)).data == b"output"
    written = taken.outgoing()
    typed.put_nowait(b"typed")
    reading = asyncio.ensure_future(anext(answers, None))
    assert await anext(written) == b"typed"
    mirror.put(keys.roles(0), WorkspaceRoles(0, (RoleAssignment(Role.VIEWER, 2),)))
    typed.put_nowait(b"rm -r")
    # The task gets nothing more, and its user reads the end.
    assert [data async for data in written] == []
    sent.put_nowait(b"secret")
    assert await reading is None


async def test_a_runner_serves_its_own_allocation_alone(gateway: Gateway) -> None:
    with pytest.raises(GanglineError, match="may not deliver"):
        await anext(gateway.of_runner(OTHER_RUNNER).offer("1.1.1", "trainer"))
    orders = gateway.of_runner().offer("1.1.1", "trainer")
    await anext(orders)
    opening = gateway.opening()
    order = await _order(orders)
    with pytest.raises(GanglineError, match="may not deliver"):
        gateway.of_runner(OTHER_RUNNER).take(order)
    gateway.of_runner().take(order).attach(_bytes(), "")
    await opening
    with pytest.raises(GanglineError) as caught:
        gateway.of_runner().take(order)
    assert caught.value.code == "tunnel.not_found"


async def test_an_attempt_that_is_over_offers_nothing(gateway: Gateway, mirror: StandInMirror) -> None:
    mirror.put(keys.trial("1.1"), Trial("1.1", 1, 1, attempts=2))
    with pytest.raises(GanglineError) as caught:
        await anext(gateway.of_runner().offer("1.1.1", "trainer"))
    assert caught.value.code == "task.over"


async def test_a_later_offer_replaces_an_earlier_one(gateway: Gateway) -> None:
    earlier, later = (gateway.of_runner().offer("1.1.1", "trainer") for _ in range(2))
    await anext(earlier)
    await anext(later)
    assert [order async for order in earlier] == []
    assert gateway.table.is_ready(1)
    await cast("AsyncGenerator[object]", later).aclose()
    assert not gateway.table.is_ready(1)


async def test_a_task_that_is_not_there_is_refused_in_one_line(gateway: Gateway, mirror: StandInMirror) -> None:
    with pytest.raises(GanglineError, match=r"^shell 1 is not ready \(RUNNING\); try again in a moment$"):
        await gateway.table.open(SHELL)
    ended = Experiment(1, "s", "ann", "{}", "", State.TERMINAL, Outcome.FAILED, "why", task_kind=TaskKind.SHELL)
    with pytest.raises(GanglineError, match=r"^shell 1 has ended: why$") as caught:
        await gateway.table.open(ended)
    assert caught.value.kind is ErrorKind.UNAVAILABLE


async def test_a_runner_that_says_nothing_or_cannot_reach_the_socket(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = gateway.of_runner().offer("1.1.1", "trainer")
    await anext(orders)
    opening = gateway.opening()
    gateway.of_runner().take(await _order(orders)).attach(_bytes(), "its socket: Connection refused")
    with pytest.raises(GanglineError, match=r"^shell 1 cannot be reached: its socket: Connection refused$"):
        await opening
    monkeypatch.setattr(module, "OPEN_SECONDS", 0.01)
    with pytest.raises(GanglineError, match="its trial runner did not answer within"):
        await gateway.table.open(SHELL)
    with pytest.raises(GanglineError, match="not waited for any more"):
        gateway.of_runner().take(await _order(orders))


async def test_a_runner_that_goes_keeps_no_caller_waiting(gateway: Gateway) -> None:
    orders = gateway.of_runner().offer("1.1.1", "trainer")
    await anext(orders)
    opening = gateway.opening()
    await _order(orders)
    await cast("AsyncGenerator[object]", orders).aclose()
    with pytest.raises(GanglineError, match=r"^shell 1 cannot be reached: its trial runner has gone$"):
        await opening


async def test_connections_are_counted(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TUNNELS", 1)
    orders = gateway.of_runner().offer("1.1.1", "trainer")
    await anext(orders)
    opening = gateway.opening()
    gateway.of_runner().take(await _order(orders)).attach(_bytes(), "")
    with await opening, pytest.raises(GanglineError, match="has 1 open connections, the most"):
        await gateway.table.open(SHELL)
    opening = gateway.opening()
    await asyncio.sleep(0)
    with pytest.raises(GanglineError, match="has 1 open connections, the most"):
        await gateway.table.open(SHELL)
    gateway.of_runner().take(await _order(orders)).attach(_bytes(), "")
    assert await opening


async def test_a_writer_waits_for_a_slow_task_and_ends_with_it() -> None:
    tunnel = Tunnel()
    for _ in range(4):
        await tunnel.write(b"x")
    writing = asyncio.create_task(tunnel.write(b"too much"))
    done, _ = await asyncio.wait([writing], timeout=0.01)
    assert not done
    tunnel.close()
    with pytest.raises(ConnectionError):
        await writing


async def test_the_access_of_a_task(gateway: Gateway) -> None:
    access = gateway.of(ANN).access(1)
    assert (access.is_ready, access.user) == (False, "")
    assert access.private_key.startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    orders = gateway.of_runner().offer("1.1.1", "trainer")
    await anext(orders)
    access = gateway.of(ANN).access(1)
    assert (access.is_ready, access.user) == (True, "trainer")
    token = access.path.partition("?token=")[2]
    principal, seconds = gateway.proofs.identify(token, 1)
    assert (principal, seconds > 0) == (ANN, True)
    for wrong, number in ((token, 2), ("", 1), (token + "0", 1)):
        with pytest.raises(GanglineError) as caught:
            gateway.proofs.identify(wrong, number)
        assert caught.value.code == "auth.proxy"


async def test_the_token_of_a_browser_ends_with_the_users_login(gateway: Gateway, mirror: StandInMirror) -> None:
    token = gateway.secrets.token("ann", 1)
    for changed in (User("ann", "sha-of-ann", is_deactivated=True), User("ann", "sha-of-ann", password_hash="new")):
        mirror.put(keys.user("ann"), changed)
        with pytest.raises(GanglineError) as caught:
            gateway.proofs.identify(token, 1)
        assert caught.value.code == "auth.proxy"
    assert gateway.secrets.token("nobody", 1) == ""


async def test_the_code_of_a_task_is_for_its_owner(gateway: Gateway) -> None:
    assert gateway.of(ANN).code_of(SHELL) == gateway.of(ADMIN).code_of(SHELL) != ""
    assert gateway.of(BOB).code_of(SHELL) == ""


async def test_the_code_opens_a_shell_alone_and_ends_with_its_owner(gateway: Gateway, mirror: StandInMirror) -> None:
    code = gateway.of(ANN).code_of(SHELL)
    assert gateway.proofs.find_by_code(1, code) == SHELL
    assert gateway.proofs.find_by_code(1, code[:-1] + "x") is None
    assert gateway.proofs.find_by_code(2, code) is None
    assert gateway.proofs.find_by_code(99, code) is None
    mirror.put(keys.user("ann"), User("ann", "sha-of-ann", is_deactivated=True))
    assert gateway.proofs.find_by_code(1, code) is None
    mirror.put(keys.user("ann"), User("ann", "sha-of-ann", id=2))
    assert gateway.proofs.find_by_code(1, code) == SHELL
    mirror.put(keys.roles(0), WorkspaceRoles(0, (RoleAssignment(Role.VIEWER, 2),)))
    assert gateway.proofs.find_by_code(1, code) is None
    notebook = Experiment(3, "notebook", "cluster", "{}", "", task_kind=TaskKind.NOTEBOOK)
    mirror.put(keys.experiment(3), notebook)
    assert gateway.proofs.find_by_code(3, gateway.of(ADMIN).code_of(notebook)) is None
