"""A cluster whose services talk by TLS: it trains, its certificates are replaced meanwhile, and no certificate opens
more than its own role."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gangline.certificate.folder import CertificateFolder
from gangline.client import Client
from gangline.domain.state import Outcome
from gangline.errors import GanglineError
from gangline.login import HOME_VARIABLE
from gangline.protocol import rpc
from gangline.protocol.dialer import PLAIN, Dialer, TlsFiles, dialer_of
from gangline.v1 import agent_pb2, agent_pb2_grpc, runner_pb2, runner_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc
from services.common.access.security import allocation_token
from tests.support.cluster import run_gangline
from tests.support.fleet import Fleet
from tests.support.gated_run import ALL_CHECKPOINTS, gated_run, wait_whole
from tests.support.tls import CLUSTER, expire, files_of, make_certificates

AGENTS = ("agent-1", "agent-2")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    # agent-3 has a certificate and is no agent of this cluster.
    return make_certificates(tmp_path_factory.mktemp("tls") / "certs", *AGENTS, "agent-3")


@pytest.fixture(scope="module")
def fleet(certificates: CertificateFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet") / "data", certificates=certificates)
    try:
        fleet.start_control_plane()
        fleet.start(*AGENTS)
        wait_whole(fleet, 2)
        yield fleet
    finally:
        fleet.close()


def at_scheduler(folder: CertificateFolder, stem: str) -> Dialer:
    return dialer_of(files_of(folder, stem), f"scheduler.{CLUSTER}")


def error_at_gateway(fleet: Fleet, ca_file: str | None) -> str:
    """Why a client with this file reaches no gateway."""
    address = fleet.programs["gateway"].addresses["grpc"]
    with Client(address, fleet.layout.read_admin_token(), retry_seconds=0, ca_file=ca_file) as client:
        with pytest.raises(GanglineError) as caught:
            client.list_agents()
        return caught.value.message


class TestRoles:
    """Calls of the scheduler with a stolen certificate and the cluster's token."""

    @staticmethod
    def _call(fleet: Fleet, stem: str, make: Callable[[grpc.aio.Channel, Any], Any], token: str = "") -> str:
        """The error's message, or an empty text where the call is answered."""

        async def run() -> str:
            assert fleet.certificates is not None
            address = fleet.programs["scheduler"].addresses["grpc"]
            cluster_token = fleet.layout.cluster_token.read_text().strip()
            metadata = rpc.token_metadata(token or cluster_token)
            async with at_scheduler(fleet.certificates, stem).open_async(address, rpc.CHANNEL_OPTIONS) as channel:
                try:
                    await make(channel, metadata)
                except grpc.aio.AioRpcError as failure:
                    return rpc.error_of(failure, "the scheduler").message
                return ""

        return asyncio.run(run())

    @staticmethod
    async def _list_pending(channel: grpc.aio.Channel, metadata: Any) -> None:
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        await stub.ListPending(scheduler_pb2.ListPendingRequest(), metadata=metadata, timeout=10)

    @staticmethod
    def _beat_as(agent_id: str) -> Callable[[grpc.aio.Channel, Any], Any]:
        async def beats() -> AsyncIterator[agent_pb2.HeartbeatRequest]:
            yield agent_pb2.HeartbeatRequest(agent_id=agent_id)

        async def make(channel: grpc.aio.Channel, metadata: Any) -> None:
            stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
            await stub.Heartbeat(beats(), metadata=metadata, timeout=10)

        return make

    @staticmethod
    def _connect_as(agent_id: str) -> Callable[[grpc.aio.Channel, Any], Any]:
        async def make(channel: grpc.aio.Channel, metadata: Any) -> None:
            stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
            call = stub.Connect(metadata=metadata, timeout=10)
            hello = agent_pb2.AgentHello()
            hello.agent.id = agent_id
            await call.write(agent_pb2.ConnectRequest(hello=hello))
            if await call.read() is grpc.aio.EOF:
                raise AssertionError(f"{await call.code()}: {await call.details()}")

        return make

    def test_only_a_gateway_calls_for_users(self, fleet: Fleet) -> None:
        assert self._call(fleet, "gateway", self._list_pending) == ""
        for stem in ("agent-agent-1", "scheduler"):
            assert "only a gateway may call this" in self._call(fleet, stem, self._list_pending)

    def test_an_agent_speaks_for_itself_alone(self, fleet: Fleet) -> None:
        assert self._call(fleet, "agent-agent-1", self._beat_as("agent-1")) == ""
        refused = {stem: self._call(fleet, stem, self._beat_as("agent-1")) for stem in ("agent-agent-2", "gateway")}
        assert "only agent agent-1 may call this" in refused["agent-agent-2"]
        assert "only an agent may call this" in refused["gateway"]
        message = self._call(fleet, "agent-agent-3", self._connect_as("agent-1"))
        assert message.startswith(
            "only agent agent-1 may call this, and the caller's certificate is of agent.agent-3.lab"
        )

    def test_token_of_an_allocation_is_good_on_its_own_agents_alone(self, fleet: Fleet, tmp_path: Path) -> None:
        async def renew(channel: grpc.aio.Channel, metadata: Any) -> None:
            stub: Any = runner_pb2_grpc.RunnerServiceStub(channel)
            request = runner_pb2.FindTrialFactsRequest(allocation_id=allocation_id)
            await stub.FindTrialFacts(request, metadata=metadata, timeout=10)

        with gated_run(fleet, tmp_path) as run:
            run.wait_at(0)
            allocation_id = run.allocation_id()
            token = allocation_token(fleet.layout.cluster_token.read_text().strip(), allocation_id)
            assert self._call(fleet, "agent-agent-1", renew, token) == ""
            assert "only an agent of" in self._call(fleet, "agent-agent-3", renew, token)
            assert "only an agent may call this" in self._call(fleet, "gateway", renew, token)
            run.finish()

    def test_nobody_calls_without_a_certificate_of_the_cluster(self, fleet: Fleet, tmp_path: Path) -> None:
        assert fleet.certificates is not None
        other = make_certificates(tmp_path / "other", "agent-1")
        copied = shutil.copytree(fleet.certificates.path, tmp_path / "copied")
        ended = CertificateFolder(copied)
        expire(ended, "gateway")
        ca_file = str(fleet.certificates.ca_path)
        files = (
            TlsFiles(ca_file),
            TlsFiles(ca_file, *_pair(files_of(other, "gateway"))),
            TlsFiles(ca_file, *_pair(files_of(ended, "gateway"))),
        )
        address = fleet.programs["scheduler"].addresses["grpc"]
        for each in files:
            with (
                dialer_of(each, f"scheduler.{CLUSTER}").open(address, rpc.CHANNEL_OPTIONS) as channel,
                pytest.raises(grpc.FutureTimeoutError),
            ):
                grpc.channel_ready_future(channel).result(timeout=1)
        # The same way in, with a certificate that is good.
        with at_scheduler(fleet.certificates, "gateway").open(address, rpc.CHANNEL_OPTIONS) as channel:
            grpc.channel_ready_future(channel).result(timeout=10)


def _pair(files: TlsFiles) -> tuple[str, str]:
    return files.cert_file, files.key_file


def test_a_trial_trains_while_certificates_and_authority_are_replaced(fleet: Fleet, tmp_path: Path) -> None:
    certificates = fleet.certificates
    assert certificates is not None
    former = tmp_path / "former.crt"
    shutil.copy(certificates.ca_path, former)
    with gated_run(fleet, tmp_path) as run:
        run.wait_at(0)
        now = datetime.now(UTC)
        for step in (
            lambda: certificates.add_authority(now, 100),
            lambda: certificates.rotate(now, 10),
            certificates.drop_authorities,
        ):
            step()
            with fleet.connect() as client:
                assert len(client.list_agents()) == 2
        # A handshake after the last step has the new certificate, which the former authority did not sign.
        assert "of an authority that is not trusted here" in error_at_gateway(fleet, str(former))
        run.gate.allow(2)
        run.wait_at(2)
        # The runner and the agents connect again, with the files as they are by now.
        for service in ("gateway", "scheduler"):
            fleet.kill(service)
            fleet.start(service)
        view = run.finish()
        trial = view.trials[0].trial
        assert (trial.outcome, trial.attempts) == (Outcome.COMPLETED, 1), trial
        assert run.checkpoint_batches() == ALL_CHECKPOINTS
        with fleet.connect() as client:
            lines = [line.text for line in client.stream_logs(run.experiment_id)]
        linked = [line for line in lines if "the gang of 2 is linked" in line]
        assert [line.endswith(", by TLS") for line in linked] == [True, True], lines
        run.check_records()
        run.check_aftermath()


def test_a_trials_own_programs_reach_a_gateway(fleet: Fleet, tmp_path: Path) -> None:
    """By the variables of Determined's client, which compares the name with the certificate as this does."""
    assert fleet.certificates is not None
    (tmp_path / "call.py").write_text(_CALL)
    config = {
        "name": "calls",
        "entrypoint": "python3 call.py",
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
        "resources": {"slots_per_trial": 1},
        "max_restarts": 0,
    }
    with fleet.connect() as client:
        created = client.create_experiment(json.dumps(config), tmp_path).experiment.id
        client.wait_experiment(created, 60)
        lines = [line.text for line in client.stream_logs(created)]
    assert "answered 200" in lines, lines


_CALL = """
import http.client, os, socket, ssl
from urllib.parse import urlsplit

master = urlsplit(os.environ["DET_MASTER"])
assert master.scheme == "https", master
context = ssl.create_default_context(cafile=os.environ["DET_MASTER_CERT_FILE"])
plain = socket.create_connection((master.hostname, master.port), timeout=10)
connection = http.client.HTTPConnection(master.hostname, master.port)
connection.sock = context.wrap_socket(plain, server_hostname=os.environ["DET_MASTER_CERT_NAME"])
connection.request("GET", "/healthz")
print("answered", connection.getresponse().status, flush=True)
"""


def test_page_and_api_are_served_by_https(fleet: Fleet) -> None:
    assert fleet.certificates is not None
    address = fleet.programs["gateway"].addresses["http"]
    context = ssl.create_default_context(cafile=str(fleet.certificates.ca_path))
    request = urllib.request.Request(
        f"https://{address}/api/v1/agents", headers={"Authorization": f"Bearer {fleet.layout.read_admin_token()}"}
    )
    with urllib.request.urlopen(request, context=context, timeout=10) as answer:
        assert len(json.load(answer)["agents"]) == 2
    # Prometheus scrapes the gateway where it serves HTTP.
    with urllib.request.urlopen(f"https://{address}/prom/http-sd", context=context, timeout=10) as answer:
        schemes = {t["labels"]["service"]: t["labels"].get("__scheme__") for t in json.load(answer)}
    assert (schemes["gateway"], schemes["agent"]) == ("https", None)


def test_wrong_clients_get_one_line(fleet: Fleet, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other")
    assert "of an authority that is not trusted here" in error_at_gateway(fleet, str(other.ca_path))
    assert "if it uses TLS, give its ca.crt (gangline login --ca-file, " in error_at_gateway(fleet, None)
    with pytest.raises(GanglineError) as caught:
        error_at_gateway(fleet, str(tmp_path / "none.crt"))
    assert caught.value.message == f"cannot read {tmp_path / 'none.crt'}: No such file or directory"


def test_login_stores_the_authority(fleet: Fleet, tmp_path: Path) -> None:
    assert fleet.certificates is not None
    address = fleet.programs["gateway"].addresses["grpc"]
    environment = {
        **os.environ,
        HOME_VARIABLE: str(tmp_path / "home"),
        "GANGLINE_TOKEN": fleet.layout.read_admin_token(),
    }
    refused = run_gangline(["login", address], environment, 60)
    assert refused.returncode == 1
    assert "gangline login --ca-file" in refused.stderr
    done = run_gangline(["login", address, "--ca-file", fleet.certificates.ca_path], environment, 60)
    assert done.returncode == 0, done.stderr
    del environment["GANGLINE_TOKEN"]
    assert "agent-1" in run_gangline(["agent", "list"], environment, 60).stdout
    opened = run_gangline(["open", "--print"], environment, 60)
    assert opened.stdout.startswith("https://"), opened


def _false_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Without the checks of our own servers."""
    return grpc.ssl_server_credentials([(Path(files.key_file).read_bytes(), Path(files.cert_file).read_bytes())])


async def test_agents_certificate_serves_as_no_scheduler(fleet: Fleet) -> None:
    """A false scheduler gets no call, so no token either."""
    assert fleet.certificates is not None
    for stem in ("agent-agent-1", "gateway"):
        files = files_of(fleet.certificates, stem)
        server = grpc.aio.server()
        port = server.add_secure_port("127.0.0.1:0", _false_credentials(files))
        await server.start()
        try:
            dialer = at_scheduler(fleet.certificates, "agent-agent-2")
            async with dialer.open_async(f"127.0.0.1:{port}", rpc.CHANNEL_OPTIONS) as channel:
                stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.FindLeader(agent_pb2.FindLeaderRequest(), timeout=5)
            assert "another name or role" in rpc.error_of(caught.value, "the scheduler").message
        finally:
            await server.stop(0)


async def test_a_service_without_certificates_is_told_what_to_set(fleet: Fleet) -> None:
    """As an agent that was upgraded after its scheduler."""
    address = fleet.programs["scheduler"].addresses["grpc"]
    async with PLAIN.open_async(address, rpc.CHANNEL_OPTIONS) as channel:
        stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.FindLeader(agent_pb2.FindLeaderRequest(), timeout=5)
    assert "or [tls] in the settings of a service" in rpc.error_of(caught.value, "the scheduler").message


async def test_tls_to_a_plain_port_is_named() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        authority = ssl.get_default_verify_paths().cafile
        assert authority is not None
        async with dialer_of(TlsFiles(authority)).open_async(f"127.0.0.1:{port}", rpc.CHANNEL_OPTIONS) as channel:
            stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.FindLeader(agent_pb2.FindLeaderRequest(), timeout=5)
        assert "it does not use TLS, and this side does" in rpc.error_of(caught.value, "the scheduler").message
    finally:
        await server.stop(0)
