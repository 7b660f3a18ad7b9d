"""Members of a gang prove who they are, and tell one another what ended them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gangline.domain.state import ExitKind
from gangline.v1 import runner_pb2
from services.trial_runner.gang import gang_links as gang_module
from services.trial_runner.gang import member_link
from services.trial_runner.gang.gang_links import GangLinks
from services.trial_runner.gang.link_tls import LinkTls
from services.trial_runner.gang.member_link import GreetingRefused, MemberServer, Wire
from services.trial_runner.gang.outcome import FailureRecord
from services.trial_runner.gang.rendezvous import RendezvousFailed
from tests.support.tls import CLUSTER, files_of, make_certificates
from tests.support.wait import until

AGENTS = ("a1", "a2", "a3")
LOOPBACK = "127.0.0.1"
# node rank and failure, of each that a member hears of
Heard = list[tuple[int, FailureRecord]]
MakeGang = Callable[[], Awaitable[tuple[list[GangLinks], Heard]]]


def _member(node_rank: int, heard: Heard, tls: LinkTls | None = None) -> GangLinks:
    return GangLinks(
        "token",
        node_rank,
        AGENTS,
        on_failure=lambda failure: heard.append((node_rank, failure)),
        on_beats=lambda *_: None,
        on_hang=lambda _: None,
        tls=tls,
    )


async def _ignore(_peer: int, _wire: Wire) -> None:
    return


def candidate(port: int) -> runner_pb2.NetworkCandidate:
    endpoints = [
        runner_pb2.MemberEndpoint(agent_id=agent, interface="lo", address=LOOPBACK, port=port) for agent in AGENTS
    ]
    return runner_pb2.NetworkCandidate(subnet="loopback", endpoints=endpoints)


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
async def make_gang(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeGang]:
    made: list[GangLinks] = []
    folder = make_certificates(tmp_path, *AGENTS) if request.param else None

    async def make() -> tuple[list[GangLinks], Heard]:
        heard: Heard = []
        for rank, agent in enumerate(AGENTS):
            tls = LinkTls(files_of(folder, f"agent-{agent}"), CLUSTER, AGENTS) if folder is not None else None
            made.append(_member(rank, heard, tls))
        chosen = candidate(await made[0].listen())
        await asyncio.gather(*(member.link(chosen) for member in made))
        return made, heard

    yield make
    for member in made:
        await member.close()


@pytest.mark.parametrize(("token", "peer"), [("wrong", 0), ("token", 1)])
async def test_who_cannot_prove_it_is_no_member(token: str, peer: int) -> None:
    server = MemberServer("token", 0, _ignore)
    port = await server.start()
    with pytest.raises(GreetingRefused):
        await member_link.connect(token, "probe", 2, peer, address=(LOOPBACK, port), own_address=LOOPBACK)
    wire = await member_link.connect("token", "probe", 2, 0, address=(LOOPBACK, port), own_address=LOOPBACK)
    wire.close()
    server.close()


async def test_the_stores_port_reaches_every_member(make_gang: MakeGang) -> None:
    (head, *others), _ = await make_gang()
    head.share_store(4000)
    assert [await asyncio.wait_for(member.wait_store(), 5) for member in others] == [4000, 4000]


@pytest.mark.parametrize("node_rank", [-1, 0, 3])
async def test_a_member_with_a_node_rank_that_the_gang_does_not_have_is_not_linked(node_rank: int) -> None:
    heard: Heard = []
    head = _member(0, heard)
    chosen = candidate(await head.listen())
    linking = asyncio.create_task(head.link(chosen))
    address = (LOOPBACK, chosen.endpoints[0].port)
    stray = await member_link.connect("token", "link", node_rank, 0, address=address, own_address=LOOPBACK)
    assert await asyncio.wait_for(stray.receive(), 10) is None
    stray.close()
    members = [_member(rank, heard) for rank in (1, 2)]
    await asyncio.gather(linking, *(member.link(chosen) for member in members))
    assert heard == []
    for member in (head, *members):
        await member.close()


async def test_a_failure_reaches_everybody_but_its_origin(make_gang: MakeGang) -> None:
    members, heard = await make_gang()
    told = FailureRecord(ExitKind.USER_ERROR, "ValueError: x", 1, "a2", 9.0)
    members[1].tell_failure(told)
    await until(lambda: len(heard) == 2, "the failure at both others")
    assert sorted(heard) == [(0, told), (2, told)]


async def test_a_lost_member_is_a_failure_and_one_that_is_done_is_not(make_gang: MakeGang) -> None:
    members, heard = await make_gang()
    members[1].tell_done()
    await members[1].close()
    await members[2].close()
    await asyncio.wait_for(members[0].wait_done(), 5)
    assert [failure.message for rank, failure in heard if rank == 0] == ["the trial runner of agent a3 is gone"]


async def test_a_member_that_does_not_link_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_module, "LINK_SECONDS", 0.2)
    head = _member(0, [])
    port = await head.listen()
    with pytest.raises(RendezvousFailed, match=f"a2, a3 did not link to a1 over lo port {port}"):
        await head.link(candidate(port))
    await head.close()
    with pytest.raises(RendezvousFailed) as caught:
        await _member(1, []).link(candidate(port))
    assert caught.value.message == f"a2 cannot link to a1 at 127.0.0.1 port {port} over lo: Connection refused"
