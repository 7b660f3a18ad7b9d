"""A gateway for tests: in this process or as a real one, with clients of both surfaces and a filled storage."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import io
import json
import os
import signal
import ssl
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import State
from gangline.domain.storage.storage_fault import MARKER_FILE
from gangline.domain.user import User
from gangline.protocol import rpc, wire
from gangline.v1 import gateway_pb2_grpc, ingest_pb2_grpc
from services.common import keys
from services.common.access.security import allocation_token, as_password, hash_token
from services.common.etcd import EtcdClient, EtcdSettings, Put
from services.gateway.history.database import open_database
from services.gateway.program import GatewaySettings
from tests.support.forked_service import ForkedService, fork_service, load_services
from tests.support.port import own_ports
from tests.support.wait import until, until_async

PROGRAM = "services.gateway.__main__"
CLUSTER_TOKEN = "cluster-token-of-the-tests"
USER_TOKEN = "token-of-alice-in-the-tests"
# For clients of gateways and schedulers, which answer without TLS here. By default httpx reads all certificates of the
# machine for each client, which takes longer than most calls of a test.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
CONFIG = {"name": "digits", "entrypoint": "model_def:Digits", "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 10}}, "hyperparameters": {"global_batch_size": 8}}  # fmt: skip # noqa: E501  read as one


async def add_user(
    etcd: EtcdClient, name: str = "alice", token: str = USER_TOKEN, *, is_admin: bool = False, number: int = 0
) -> None:
    user = User(name, hash_token(token), is_admin, login_sha256=hash_token(as_password(token)), id=number)
    await etcd.commit([Put(keys.user(name), wire.encode(user))])


def pack(files: Mapping[str, bytes]) -> bytes:
    """A code archive as clients make it."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def mount_storage(folder: Path) -> None:
    """Makes the folder a storage that gateways know, as it is where a test fills etcd before its gateway starts."""
    folder.mkdir(exist_ok=True)
    (folder / MARKER_FILE).write_text("test\n")


@functools.cache
def _empty_database() -> bytes:
    """Returns a database of SQLite that has all tables. To make it takes longer than to start a gateway."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gateway.db")
        open_database(f"sqlite:///{path}").dispose()
        return path.read_bytes()


def settings_in(folder: Path, etcd: EtcdSettings, **changes: Any) -> GatewaySettings:
    """Everything in this folder, every port free. Gateways as processes (below) make their tables themselves."""
    database = folder / "gateway.db"
    if not database.exists():
        database.write_bytes(_empty_database())
    token_file = folder / "cluster.token"
    token_file.write_text(CLUSTER_TOKEN)
    mount_storage(folder / "storage")
    values: dict[str, Any] = {
        "etcd": etcd,
        "cluster_token_file": token_file,
        "grpc_listen": "127.0.0.1:0",
        "http_listen": "127.0.0.1:0",
        "storage_url": str(folder / "storage"),
        "database_url": f"sqlite:///{database}",
    }
    return GatewaySettings(**{**values, **changes})


@dataclass
class Client:
    """Both surfaces of one gateway, as one user."""

    grpc_address: str
    http_address: str
    token: str | None = USER_TOKEN

    def __post_init__(self) -> None:
        self._channel = grpc.aio.insecure_channel(self.grpc_address, options=rpc.CHANNEL_OPTIONS)
        self.gateway: Any = gateway_pb2_grpc.GatewayServiceStub(self._channel)
        self.ingest: Any = ingest_pb2_grpc.IngestServiceStub(self._channel)
        self.metadata = rpc.token_metadata(self.token) if self.token else ()
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        address = f"http://{self.http_address}"
        self.http = httpx.AsyncClient(base_url=address, headers=headers, timeout=20, verify=NO_TLS)

    def runner_metadata(self, allocation_id: str) -> tuple[tuple[str, str], ...]:
        return rpc.token_metadata(allocation_token(CLUSTER_TOKEN, allocation_id))

    async def close(self) -> None:
        await self.http.aclose()
        await self._channel.close()


async def put_trials(client: Client, etcd: EtcdClient) -> list[Trial]:
    """Puts experiment 7 of alice with the trials 7.1 and 7.2, all RUNNING. Returns the trials once the client's gateway
    sees both."""
    trials = [Trial(f"7.{number}", 7, number, state=State.RUNNING) for number in (1, 2)]
    experiment = Experiment(7, "digits", "alice", "{}", "", State.RUNNING)
    puts = [Put(keys.trial(trial.id), wire.encode(trial)) for trial in trials]
    await etcd.commit([Put(keys.experiment(7), wire.encode(experiment)), *puts])

    async def is_seen() -> bool:
        return (await client.http.get("/api/v1/trials/7.2")).status_code == 200

    await until_async(is_seen, "the gateway seeing both trials")
    return trials


class GatewayProcess:
    """`gangline-gateway` as a process of its own, for tests that kill it. Its ports stay the same over restarts."""

    # Its hard limit of open files; set before it starts.
    open_files: int | None = None

    def __init__(self, folder: Path, etcd_address: str, **flags: str) -> None:
        self._folder = folder
        self.log = folder / "gateway.log"
        (folder / "cluster.token").write_text(CLUSTER_TOKEN)
        mount_storage(folder / "storage")
        # Such that nobody else is given one of them while the gateway is away.
        grpc_port, http_port = own_ports(2)
        self.flags = {
            "etcd-endpoints": etcd_address,
            "cluster-token-file": str(folder / "cluster.token"),
            "grpc-listen": f"127.0.0.1:{grpc_port}",
            "http-listen": f"127.0.0.1:{http_port}",
            "storage-url": str(folder / "storage"),
            "database-url": f"sqlite:///{folder}/gateway.db",
            "ready-file": str(folder / "ready.json"),
            **flags,
        }
        self.process: ForkedService | None = None
        self.addresses: dict[str, Any] = {}

    def launch(self) -> ForkedService:
        arguments = [part for name, value in self.flags.items() for part in (f"--{name}", value)]
        self.process = fork_service(PROGRAM, arguments, self.log, Path.cwd(), open_files=self.open_files)
        return self.process

    async def start(self) -> None:
        await asyncio.to_thread(load_services)
        ready = self._folder / "ready.json"
        ready.unlink(missing_ok=True)
        process = self.launch()
        await until(lambda: ready.exists() or process.poll() is not None, "the gateway serving", 30)
        assert process.poll() is None, self.output()
        self.addresses = json.loads(ready.read_text())
        self.flags |= {"grpc-listen": self.addresses["grpc"], "http-listen": self.addresses["http"]}

    async def end(self, number: int = signal.SIGKILL) -> int:
        """Its exit code."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        return await asyncio.to_thread(self.process.wait, 20)

    def output(self) -> str:
        return self.log.read_text()
