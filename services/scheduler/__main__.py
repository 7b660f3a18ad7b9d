"""`gangline-scheduler`: settings, logging, and the life of the process. Everything else is in the modules beside it.

Exit code 2 for settings that cannot work, 1 for what is missing around it (a port); each with one line. It waits
for an etcd that is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
import time

import grpc.aio
import structlog

from gangline.domain.peer_name import SCHEDULER
from gangline.domain.resource import ServiceInstance
from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.protocol.rpc import SMALL_MESSAGES
from gangline.v1 import agent_pb2_grpc, runner_pb2_grpc, scheduler_pb2_grpc
from services.common.access.call_limit import CallLimits
from services.common.access.security import load_token
from services.common.concurrency import first_of
from services.common.election import Election
from services.common.etcd import EtcdClient
from services.common.presence import announce
from services.common.server import Server, ServerTls, serve
from services.common.telemetry import configure_logging, serve_metrics, write_ready_file
from services.common.tls.identity import load_identity
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.leader.leadership import run_leadership
from services.scheduler.leader.term import TermContext
from services.scheduler.service.access import authenticator
from services.scheduler.service.agent_service import AgentService
from services.scheduler.service.runner_service import RunnerService
from services.scheduler.service.scheduler_service import SchedulerService
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state.directory import Directory

_log = structlog.get_logger(__name__)

_GRACE_SECONDS = 1.0
# Added to the leader's lease: a standby that cannot connect may have tried a dead leader, whose lease has to end first.
_CONNECT_SECONDS = 2.0
# An agent's hello carries its whole journal. 1000 ended allocations, each with its last lines and with reports that
# could not be delivered, have 15 MB.
_MESSAGE_LIMITS = {"/gangline.v1.AgentService/Connect": 64 << 20}
# A leader keeps many long-lived records without reference cycles, and each plan creates and drops as many objects as
# requests wait. Python's default thresholds would spend a good part of a core on collections, in pauses of 0.2 s.
_GARBAGE_THRESHOLDS = (100_000, 20, 50)


def main() -> None:
    """Entry point of the console script."""
    try:
        settings = SchedulerSettings.load()
        configure_logging("scheduler", settings.log_format, settings.log_level)
        settings.warn_of_open_file()
        # The modules live as long as the scheduler: no collection has to pass over them.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GARBAGE_THRESHOLDS)
        asyncio.run(run(settings))
    except GanglineError as error:
        print(f"gangline-scheduler: {error.message}", file=sys.stderr)
        sys.exit(2 if error.kind is ErrorKind.INVALID else 1)
    except KeyboardInterrupt:
        # Before it serves, while it waits for etcd; afterwards the signal ends it in order.
        sys.exit(130)


async def run(settings: SchedulerSettings) -> None:
    """Serves until SIGTERM or SIGINT; then resigns, so that a standby takes over at once."""
    tls, cluster_token = _load_tls(settings), _load_cluster_token(settings)
    admin_token = load_token(settings.admin_token_file) if settings.admin_token_file else None
    async with contextlib.AsyncExitStack() as stack:
        client = await EtcdClient.connect_patiently(settings.etcd)
        stack.push_async_exit(client)
        directory = Directory(client)
        leader_status = LeaderStatus(settings.id, directory)
        server = await _serve(settings, leader_status, cluster_token, tls)
        stack.push_async_callback(server.stop, _GRACE_SECONDS)
        stack.callback(leader_status.close)
        metrics_address = serve_metrics(settings.metrics_listen) if settings.metrics_listen else None
        instance = ServiceInstance(
            id=settings.id,
            kind="scheduler",
            grpc_address=settings.advertised(server.address),
            metrics_address=settings.advertised(metrics_address) if metrics_address else "",
            started_at=time.time(),
        )
        context = _term_context(settings, instance, directory, cluster_token, admin_token)
        await stack.enter_async_context(announce(client, instance))
        tasks = {
            asyncio.create_task(directory.run(), name="directory"),
            asyncio.create_task(_run_leadership(client, settings, instance, leader_status, context), name="leadership"),
            asyncio.create_task(_say_ready(settings, leader_status, server.address, metrics_address), name="ready"),
        }
        await _until_stopped(tasks)


async def _serve(
    settings: SchedulerSettings, leader_status: LeaderStatus, cluster_token: str, tls: ServerTls | None
) -> Server:
    def add(server: grpc.aio.Server) -> None:
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(SchedulerService(leader_status), server)
        agent_pb2_grpc.add_AgentServiceServicer_to_server(AgentService(leader_status), server)
        runner_pb2_grpc.add_RunnerServiceServicer_to_server(RunnerService(leader_status), server)

    authenticate, limits = authenticator(cluster_token), CallLimits(_MESSAGE_LIMITS)
    return await serve(settings.listen, add, authenticate, tls, limits=limits, options=SMALL_MESSAGES)


async def _run_leadership(
    client: EtcdClient,
    settings: SchedulerSettings,
    instance: ServiceInstance,
    leader_status: LeaderStatus,
    context: TermContext,
) -> None:
    election = Election(client, instance, settings.leader_lease_seconds)
    patience_seconds = settings.leader_lease_seconds + _CONNECT_SECONDS
    await run_leadership(client, election, leader_status, context, patience_seconds)


async def _say_ready(
    settings: SchedulerSettings, leader_status: LeaderStatus, address: str, metrics_address: str | None
) -> None:
    """Writes the ready file once this scheduler is ready, then waits until it is cancelled."""
    await leader_status.is_ready.wait()
    write_ready_file(settings.ready_file, grpc=address, metrics=metrics_address)
    await asyncio.Event().wait()


async def _until_stopped(tasks: set[asyncio.Task[None]]) -> None:
    """Cancels all tasks on a signal. A task that ends by itself has failed; its exception is raised."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)

    async def log_stop() -> None:
        await stopping.wait()
        _log.info("stopping")

    await first_of(log_stop(), *tasks)


def _term_context(
    settings: SchedulerSettings,
    instance: ServiceInstance,
    directory: Directory,
    cluster_token: str,
    admin_token: str | None,
) -> TermContext:
    return TermContext(
        own_address=instance.grpc_address,
        cluster_token=cluster_token,
        admin_token=admin_token,
        storage_url=settings.storage_url,
        storage_wait_seconds=settings.storage_wait_seconds,
        network_interface=settings.network_interface,
        pools=settings.pools,
        rules=settings.rules,
        agent_lease_seconds=settings.agent_lease_seconds,
        agent_grace_seconds=settings.agent_grace_seconds,
        agent_silence_seconds=settings.agent_silence_seconds,
        directory=directory,
    )


def _load_tls(settings: SchedulerSettings) -> ServerTls | None:
    settings.check_plaintext(settings.listen, "--listen")
    identity = load_identity(settings.tls, SCHEDULER)
    return ServerTls(identity, asks_for_certificate=True) if identity is not None else None


def _load_cluster_token(settings: SchedulerSettings) -> str:
    if settings.cluster_token_file is None:
        raise invalid(
            "settings.missing", "--cluster-token-file is missing; all services of a cluster read the same token from it"
        )
    return load_token(settings.cluster_token_file)


if __name__ == "__main__":
    main()
