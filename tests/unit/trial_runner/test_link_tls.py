"""The links of a gang by TLS: only the agents of the gang make one, and nobody between two members reads or adds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gangline.certificate.folder import CertificateFolder
from gangline.errors import GanglineError
from gangline.launch import channel
from gangline.protocol.dialer import TlsFiles
from services.common.state_folder import StateFolder
from services.trial_runner.gang import member_link
from services.trial_runner.gang.link_tls import LinkTls
from services.trial_runner.gang.member_link import GreetingRefused, MemberServer, Wire
from tests.support.tls import CLUSTER, expire, files_of, make_certificates

AGENTS = ("a1", "a2")
LOOPBACK = "127.0.0.1"
SECRET = "the loss is not a number"


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    return make_certificates(tmp_path / "certs", *AGENTS, "a3")


def tls_of(folder: CertificateFolder, stem: str) -> LinkTls:
    return LinkTls(files_of(folder, stem), CLUSTER, AGENTS)


class Head:
    """Node rank 0: keeps what its one member sends."""

    def __init__(self) -> None:
        self.linked: list[int] = []
        self.received: asyncio.Queue[object] = asyncio.Queue()

    async def on_link(self, peer: int, wire: Wire) -> None:
        self.linked.append(peer)
        while (message := await wire.receive()) is not None:
            self.received.put_nowait(message)
            wire.send({"echo": message})


async def link(port: int, tls: LinkTls | None) -> Wire:
    async with asyncio.timeout(10):
        return await member_link.connect("token", "link", 1, 0, address=(LOOPBACK, port), own_address=LOOPBACK, tls=tls)


@asynccontextmanager
async def serving(tls: LinkTls | None) -> AsyncIterator[tuple[Head, int]]:
    head = Head()
    server = MemberServer("token", 0, head.on_link, tls)
    try:
        yield head, await server.start()
    finally:
        server.close()


async def refusal(server: LinkTls | None, client: LinkTls | None) -> str:
    """Why a member does not link. Both ends know."""
    async with serving(server) as (head, port):
        with pytest.raises((GreetingRefused, OSError)) as caught:
            await link(port, client)
        assert head.linked == []
        return str(caught.value)


@pytest.mark.parametrize("stem", ["agent-a1", "agent-a3", "gateway", "scheduler"])
async def test_only_the_agent_of_a_node_rank_links_as_it(folder: CertificateFolder, stem: str) -> None:
    assert await refusal(tls_of(folder, "agent-a1"), tls_of(folder, stem)) == (
        "it refused the certificate of this agent"
    )


@pytest.mark.parametrize("stem", ["agent-a2", "agent-a3", "gateway", "scheduler"])
async def test_a_member_links_to_the_agent_of_node_rank_0_alone(folder: CertificateFolder, stem: str) -> None:
    # The names of all agents; only the first one may have node rank 0.
    assert (await refusal(tls_of(folder, stem), tls_of(folder, "agent-a2"))).startswith("its certificate is of ")


async def test_agents_of_another_cluster_do_not_link(folder: CertificateFolder) -> None:
    """An authority of the house may sign for several clusters."""
    other = LinkTls(files_of(folder, "agent-a2"), "other", AGENTS)
    assert await refusal(tls_of(folder, "agent-a1"), other) == f"its certificate is of agent.a1.{CLUSTER}"
    at_head = LinkTls(files_of(folder, "agent-a1"), "other", AGENTS)
    assert await refusal(at_head, tls_of(folder, "agent-a2")) == "it refused the certificate of this agent"


@pytest.mark.parametrize("stem", ["agent-a1", "agent-a2"])
async def test_an_expired_certificate_does_not_link(folder: CertificateFolder, stem: str) -> None:
    expire(folder, stem)
    reason = await refusal(tls_of(folder, "agent-a1"), tls_of(folder, "agent-a2"))
    assert "certificate has expired" in reason if stem == "agent-a1" else "refused the certificate" in reason


@pytest.mark.parametrize("stem", ["agent-a1", "agent-a2"])
async def test_the_certificate_of_a_foreign_authority_does_not_link(
    folder: CertificateFolder, tmp_path: Path, stem: str
) -> None:
    foreign = files_of(make_certificates(tmp_path / "foreign", *AGENTS), stem)
    false = LinkTls(TlsFiles(str(folder.ca_path), foreign.cert_file, foreign.key_file), CLUSTER, AGENTS)
    server, client = tls_of(folder, "agent-a1"), tls_of(folder, "agent-a2")
    if stem == "agent-a1":
        assert "CERTIFICATE_VERIFY_FAILED" in await refusal(false, client)
    else:
        assert await refusal(server, false) == "it refused the certificate of this agent"


async def test_one_end_without_tls_is_named(folder: CertificateFolder) -> None:
    assert await refusal(tls_of(folder, "agent-a1"), None) == (
        "its agent has [tls], and this one has none; set it for all agents, and restart them"
    )
    assert await refusal(None, tls_of(folder, "agent-a2")) == (
        "its agent has no [tls], and this one has; set it for all agents, and restart them"
    )


class Between:
    """Passes bytes on, and keeps those of the member. change: replaces what the member sends."""

    def __init__(self, port: int, change: Callable[[bytes], bytes] = bytes) -> None:
        self._port = port
        self._change = change
        self.seen = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(LOOPBACK, self._port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_members: bool) -> None:
            while data := await source.read(65536):
                if is_members:
                    self.seen += data
                    data = self._change(data)
                target.write(data)
            target.close()

        there, back = copy(reader, far_writer, is_members=True), copy(far_reader, writer, is_members=False)
        await asyncio.gather(there, back, return_exceptions=True)


@asynccontextmanager
async def between(port: int, change: Callable[[bytes], bytes] = bytes) -> AsyncIterator[tuple[Between, int]]:
    person = Between(port, change)
    server = await asyncio.start_server(person.serve, LOOPBACK, 0)
    try:
        yield person, server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize("is_secure", [False, True])
async def test_nobody_between_two_members_reads_what_they_send(folder: CertificateFolder, is_secure: bool) -> None:
    head, member = (tls_of(folder, f"agent-{agent}") if is_secure else None for agent in AGENTS)
    async with serving(head) as (_, port), between(port) as (person, open_port):
        wire = await link(open_port, member)
        wire.send({"failure": SECRET})
        assert await asyncio.wait_for(wire.receive(), 10) == {"echo": {"failure": SECRET}}
        wire.close()
        assert (SECRET.encode() in person.seen) is not is_secure


async def test_nothing_is_added_before_the_link_is_encrypted(folder: CertificateFolder) -> None:
    """A frame in plain text that arrives with the member's last one is no part of the link."""

    def add(data: bytes) -> bytes:
        is_last = b'"proof"' in data
        return data + channel.pack({"failure": "invented"}) if is_last else data

    async with (
        serving(tls_of(folder, "agent-a1")) as (head, port),
        between(port, add) as (_, open_port),
    ):
        wire = await link(open_port, tls_of(folder, "agent-a2"))
        wire.send({"failure": "true"})
        assert await asyncio.wait_for(head.received.get(), 10) == {"failure": "true"}
        wire.close()


async def test_nobody_between_them_talks_them_out_of_tls(folder: CertificateFolder) -> None:
    """The one between knows no token, so it can change the words of the greeting only."""

    async def answer_plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(LOOPBACK, port)
        far_writer.write(channel.pack(await channel.read(reader)))
        writer.write(channel.pack({**await channel.read(far_reader), "tls": False}))
        writer.close()
        far_writer.close()

    async with serving(tls_of(folder, "agent-a1")) as (head, port):
        server = await asyncio.start_server(answer_plain, LOOPBACK, 0)
        with pytest.raises(GreetingRefused, match="its agent has no"):
            await link(server.sockets[0].getsockname()[1], tls_of(folder, "agent-a2"))
        server.close()
        assert head.linked == []


def test_files_that_cannot_be_used_are_named(folder: CertificateFolder, tmp_path: Path) -> None:
    files = files_of(folder, "agent-a1")
    Path(files.key_file).write_bytes((folder.path / "agent-a3.key").read_bytes())
    with pytest.raises(GanglineError, match=r"cannot use .*agent-a1.key.*copy them again"):
        LinkTls(files, CLUSTER, AGENTS)
    state = StateFolder(tmp_path / "state")
    state.path.mkdir()
    assert state.load_tls() is None
    state.write_tls(files, CLUSTER)
    assert state.load_tls() == (files, CLUSTER)
    (state.path / "tls.json").write_text(json.dumps({"ca_file": 3}))
    with pytest.raises(GanglineError, match="restart the agent"):
        state.load_tls()
