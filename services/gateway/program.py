"""Builds a gateway out of its parts, runs it, and takes it apart in the reverse order.

Called by __main__ and by tests, which run several in one process. Everything shares one event loop; blocking parts
(database, storage) run in threads.

Owns the gateway's settings; services/common/setting/settings.py describes their sources.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial as bind
from typing import ClassVar

import grpc
from pydantic import Field, field_validator
from sqlalchemy import Engine

from gangline.domain.peer_name import GATEWAY, SCHEDULER
from gangline.domain.resource import ServiceInstance
from gangline.errors import invalid
from gangline.protocol.dialer import PLAIN
from gangline.v1 import gateway_pb2_grpc, ingest_pb2_grpc
from services.common.access.call_limit import CallLimits
from services.common.access.security import load_token
from services.common.concurrency import cancel, until_available
from services.common.connection.peer import peer_host
from services.common.etcd import EtcdClient, HealthWatch
from services.common.presence import announce
from services.common.server import Server, ServerTls, serve
from services.common.setting.settings import ServiceSettings, check_own_storage
from services.common.telemetry import serve_metrics
from services.common.tls.identity import TlsIdentity, load_identity
from services.common.tls.server_credentials import http_context
from services.gateway.app import build_app
from services.gateway.audit.audit_log import AuditLog
from services.gateway.audit.trail import AuditTrail
from services.gateway.history.audit_rows import AuditRows, AuditSweep
from services.gateway.history.database import open_database
from services.gateway.history.eraser import Eraser
from services.gateway.history.reader import Reader
from services.gateway.history.retention_policy import FOR_EVER, Days
from services.gateway.history.retention_sweep import RetentionSweep
from services.gateway.history.saved_view import SavedViewStore
from services.gateway.history.usage_recorder import UsageRecorder
from services.gateway.history.writer import Writer
from services.gateway.http.serving.connection_limit import check_networks
from services.gateway.http.serving.server import serve_http
from services.gateway.leader.leader_client import Leader
from services.gateway.leader.submitter import Submitter
from services.gateway.mirror.auth import Authenticator
from services.gateway.mirror.mirror import Mirror
from services.gateway.mirror.notification import NotificationBoard
from services.gateway.rpc.gateway_service import GatewayService
from services.gateway.rpc.ingest_service import IngestService
from services.gateway.rpc.recorded_calls import recorded
from services.gateway.size_watch import SizeWatch
from services.gateway.storage.cleanup import Cleanup
from services.gateway.storage.experiment_cleanup import ExperimentCleanup
from services.gateway.storage.opening import open_storage
from services.gateway.storage.storage import Storage
from services.gateway.usecase.bundle import History, UseCases, assemble
from services.gateway.usecase.shared.following import Following


class GatewaySettings(ServiceSettings):
    """Holds the settings of a gateway. The retention days count from the end of a trial; -1 keeps for ever."""

    service: ClassVar[str] = "gateway"

    grpc_listen: str = "0.0.0.0:8081"
    http_listen: str = "0.0.0.0:8080"
    storage_url: str = "/var/lib/gangline/storage"  # an fsspec URL or a folder, the same as the schedulers'
    # SQLite for one gateway, PostgreSQL for several that share their history
    database_url: str = "sqlite:////var/lib/gangline/gateway.db"
    log_retention_days: int = Field(default=FOR_EVER, ge=FOR_EVER)
    metric_retention_days: int = Field(default=FOR_EVER, ge=FOR_EVER)
    audit_retention_days: int = Field(default=365, ge=FOR_EVER)  # counts from the record
    # addresses and networks of HTTP proxies whose X-Forwarded-For and X-Forwarded-Proto the gateway believes
    trusted_proxies: tuple[str, ...] = ()

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _are_networks(cls, value: object) -> object:
        texts = tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
        if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts):
            check_networks(texts)
        return texts

    @field_validator("storage_url")
    @classmethod
    def _is_one_storage(cls, value: str) -> str:
        check_own_storage(value)
        return value


LOGIN_METHOD = "/gangline.v1.GatewayService/LogIn"
# A record of metrics comes from a rank, whose frames have up to 16 MiB. A record that no gateway accepts would block
# its runner's spool.
MESSAGE_LIMITS = {"/gangline.v1.IngestService/Ingest": 20 << 20, LOGIN_METHOD: 16 << 10}
# Time for each piece of an upload.
UPLOAD_METHOD, UPLOAD_SECONDS = "/gangline.v1.GatewayService/UploadCode", 30.0
# A quarter of all. Each trial runner holds two, and each follower one.
MAX_STREAMS_OF_PEER = 2048


@dataclass(frozen=True, slots=True)
class Addresses:
    """Holds "host:port" with the real ports; metrics is None when they are on the HTTP port only."""

    grpc: str
    http: str
    metrics: str | None


@asynccontextmanager
async def run_gateway(settings: GatewaySettings) -> AsyncIterator[Addresses]:
    """Serves while the context lasts. Waits for an etcd or a PostgreSQL that is away. Raises GanglineError when
    something else that it needs is missing."""
    settings.check_plaintext(settings.http_listen, "--http-listen")
    settings.check_plaintext(settings.grpc_listen, "--grpc-listen")
    token, identity = _load_cluster_token(settings), load_identity(settings.tls, GATEWAY)
    async with AsyncExitStack() as parts:
        storage = Storage(settings.storage_url)
        client = await EtcdClient.connect_patiently(settings.etcd)
        parts.push_async_exit(client)
        mirror = Mirror(client)
        parts.push_async_callback(mirror.stop)
        await mirror.start()
        # After the mirror, because the cluster's state tells whether the storage is new.
        await open_storage(client, mirror.state, storage)
        etcd = HealthWatch(client.examine)
        watching = asyncio.create_task(etcd.run(), name="etcd health")
        parts.push_async_callback(cancel, watching)
        dialer = identity.dialer(SCHEDULER) if identity is not None else PLAIN
        leader = Leader(mirror, token, etcd_problem=lambda: etcd.health.problem, dialer=dialer)
        parts.push_async_callback(leader.close)
        submitter = Submitter(leader)
        parts.push_async_callback(submitter.close)
        news = NotificationBoard()
        following = Following(mirror, news)
        engine = await _open_database(parts, settings.database_url)
        history = _open_history(parts, engine, mirror, news, following)
        measuring = asyncio.create_task(SizeWatch(mirror, engine, storage).run(), name="sizes")
        parts.push_async_callback(cancel, measuring)
        days = Days(settings.log_retention_days, settings.metric_retention_days)
        retiring = asyncio.create_task(RetentionSweep(mirror, engine, days).run(), name="retention")
        parts.push_async_callback(cancel, retiring)
        removal = _start_cleanup(parts, mirror, leader, storage, history)
        authenticator = Authenticator(mirror, token)
        judging = asyncio.create_task(authenticator.streams.run(), name="admissions")
        parts.push_async_callback(cancel, judging)
        trail = AuditTrail(mirror, _start_audit(parts, history.audit, settings.audit_retention_days).add)
        usecases = assemble(
            mirror,
            leader,
            submitter,
            history,
            storage=storage,
            etcd=etcd,
            deletion_problem=removal.problem_of,
            authenticator=authenticator,
            cluster_token=token,
            trail=trail,
        )
        addresses = await _serve(parts, settings, usecases, authenticator, mirror.catch_up, identity=identity)
        # Undone first, because the servers wait only for a moment for calls that follow something.
        parts.callback(following.close)
        await parts.enter_async_context(announce(client, _instance(settings, addresses, storage.marker)))
        yield addresses


def _start_cleanup(
    parts: AsyncExitStack, mirror: Mirror, leader: Leader, storage: Storage, history: History
) -> ExperimentCleanup:
    """Starts the tasks that delete files."""

    async def erase_history(experiment_id: int, trial_ids: Sequence[str]) -> None:
        # The trials' records are removed next, and usage outlives its experiment.
        await history.usage_recorder.record()
        await history.eraser.erase(experiment_id, trial_ids)

    cleanup = Cleanup(mirror, bind(leader.call, lambda scheduler: scheduler.ConfirmCheckpointsDeleted), storage)
    removal = ExperimentCleanup(
        mirror,
        bind(leader.call, lambda scheduler: scheduler.ConfirmExperimentDeleted),
        storage,
        erase_history,
        lambda: cleanup.problem,
    )
    for part in (cleanup, removal):
        part.start()
        parts.push_async_callback(part.stop)
    return removal


def _start_audit(parts: AsyncExitStack, rows: AuditRows, days: int) -> AuditLog:
    """Starts the tasks of the audit log, which ends after the servers."""
    audit_log = AuditLog(rows.store)
    audit_log.start()
    parts.push_async_callback(audit_log.close)
    sweeping = asyncio.create_task(AuditSweep(rows, days).run(), name="audit retention")
    parts.push_async_callback(cancel, sweeping)
    return audit_log


async def _open_database(parts: AsyncExitStack, url: str) -> Engine:
    engine = await until_available(lambda: asyncio.to_thread(open_database, url), "the database")
    parts.callback(engine.dispose)
    return engine


def _open_history(
    parts: AsyncExitStack, engine: Engine, mirror: Mirror, news: NotificationBoard, following: Following
) -> History:
    reader = Reader(engine)
    parts.callback(reader.close)
    writer = Writer(engine, news.ring)
    parts.push_async_callback(writer.close)
    recorder = UsageRecorder(mirror, engine)
    recorder.start()
    parts.push_async_callback(recorder.stop)
    return History(reader, writer, Eraser(engine), recorder, news, SavedViewStore(engine), following, AuditRows(engine))


async def _serve(
    parts: AsyncExitStack,
    settings: GatewaySettings,
    usecases: UseCases,
    authenticator: Authenticator,
    catch_up: Callable[[], Awaitable[None]],
    *,
    identity: TlsIdentity | None,
) -> Addresses:
    context = http_context(identity) if identity is not None else None
    app = build_app(usecases, authenticator)
    http = await serve_http(app, settings.http_listen, settings.trusted_proxies, context)
    parts.push_async_callback(http.stop)
    # Users have no certificates, so their tokens decide.
    tls = ServerTls(identity) if identity is not None else None
    rpc = await _serve_grpc(settings.grpc_listen, usecases, authenticator, catch_up, tls)
    parts.push_async_callback(rpc.stop)
    metrics = serve_metrics(settings.metrics_listen) if settings.metrics_listen else None
    return Addresses(rpc.address, http.address, metrics)


async def _serve_grpc(
    listen: str,
    usecases: UseCases,
    authenticator: Authenticator,
    catch_up: Callable[[], Awaitable[None]],
    tls: ServerTls | None,
) -> Server:
    def add_services(server: grpc.aio.Server) -> None:
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(recorded(GatewayService(usecases), usecases), server)
        ingest_pb2_grpc.add_IngestServiceServicer_to_server(IngestService(usecases), server)

    admit = authenticator.authenticate
    return await serve(
        listen,
        add_services,
        admit,
        tls,
        limits=CallLimits(
            MESSAGE_LIMITS, {LOGIN_METHOD: usecases.open.logins}, {UPLOAD_METHOD: UPLOAD_SECONDS}, MAX_STREAMS_OF_PEER
        ),
        flag="--grpc-listen",
        catch_up=catch_up,
        is_readmitting=True,
        watch_stream=authenticator.watch,
        note_refused=lambda method, peer, error: usecases.trail.note_refused(
            "grpc", method.rpartition("/")[2], peer_host(peer), error
        ),
    )


def _load_cluster_token(settings: GatewaySettings) -> str:
    if settings.cluster_token_file is None:
        raise invalid(
            "settings.no_cluster_token",
            "a gateway needs the cluster's token: give --cluster-token-file, the same file as the schedulers'",
        )
    return load_token(settings.cluster_token_file)


def _instance(settings: GatewaySettings, addresses: Addresses, storage_marker: str) -> ServiceInstance:
    return ServiceInstance(
        id=f"gateway-{uuid.uuid4().hex[:12]}",
        kind="gateway",
        grpc_address=settings.advertised(addresses.grpc),
        http_address=settings.advertised(addresses.http),
        metrics_address=settings.advertised(addresses.metrics) if addresses.metrics else "",
        started_at=time.time(),
        storage_marker=storage_marker,
    )
