"""Implements `gangline up` and `gangline down`: starts a supervisor and follows it, or stops one and waits.

`start_cluster` returns once a gateway answers, a scheduler leads and every agent has joined. If that does not happen,
none of its processes keeps running.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gangline.domain.state import AgentState
from gangline.errors import ErrorKind, GanglineError, conflict, unavailable
from gangline.local.etcd_download import provide_etcd
from gangline.local.identity import Identity, identify, wait_gone
from gangline.local.layout import Layout, unusable
from gangline.local.local_login import give_back_login, login_of, take_login
from gangline.local.lock import is_locked
from gangline.local.outage import describe_outage
from gangline.local.plan import ClusterPlan
from gangline.local.port import HOST, find_free_ports, find_obstacle, is_free
from gangline.local.process_table import load_table
from gangline.local.shutdown import find_cluster_processes, stop_cluster
from gangline.login import Login, write_private

# Time limit for a leader and all agents after the services serve.
JOIN_SECONDS = 60.0
_LOOK_SECONDS = 0.1
# Time limit of an orderly stop beside the grace for trials: agents, gateway with scheduler, etcd.
_STOP_SECONDS = 60.0

# Packages of the extra "cluster" that the services load at their start, and no client has.
_PACKAGES = (
    "aetcd",
    "alembic",
    "fastapi",
    "prometheus_client",
    "pydantic_settings",
    "sqlalchemy",
    "structlog",
    "uvicorn",
)

Report = Callable[[str], None]
# Returns a client, which is a context, for an address and a token. It loads grpc, so it is called as late as possible.
Connect = Callable[[str, str], Any]


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A cluster that has started."""

    login: Login  # login for its clients
    supervisor: Identity
    num_agents: int
    num_slots: int  # sum over the agents that were started
    exposure: str = ""  # what trials can read of the cluster, and why; empty while they have accounts without rights
    replaced: str = ""  # sentence about the cluster that commands used before, if that one goes on; else empty


def start_cluster(
    layout: Layout, plan: ClusterPlan, grace_seconds: float, report: Report, connect: Connect
) -> RunningCluster:
    """Starts a cluster. report: gets a line for each step. Raises GanglineError: local.*, etcd.no_binary."""
    layout_is_free(layout)
    check_packages()
    _check_ports(plan)
    # Fails before anything is created where there is no etcd.
    provide_etcd(report)
    layout.create()
    try:
        write_private(layout.plan, _with_ports(plan, _former_ports(layout)).to_json())
        supervisor, events = _launch(layout, grace_seconds)
    except OSError as failure:
        raise unusable(layout.root, failure) from failure
    try:
        _follow(events, report)
        login = login_of(layout)
        num_slots, exposure = _await_agents(login, plan, connect)
    except BaseException as failure:
        report("stopping what was started")
        _end_supervisor(layout, supervisor, grace_seconds)
        if isinstance(failure, GanglineError) and failure.code.startswith("rpc."):
            raise GanglineError("local.not_joined", f"the cluster does not answer: {failure.message}") from failure
        raise
    return RunningCluster(login, supervisor, plan.num_agents, num_slots, exposure, take_login(login))


def use_cluster(layout: Layout, connect: Connect) -> tuple[RunningCluster, ClusterPlan]:
    """Makes commands use the cluster that runs in this directory. Returns its plan too. Raises GanglineError
    `local.not_ready` while it does not answer."""
    table = load_table(layout.processes)
    try:
        if table is None:
            raise unavailable("local.not_ready", "its services have not begun yet")
        plan, login = ClusterPlan.parse(layout.plan.read_text("utf-8")), login_of(layout)
        with connect(login.address, login.token) as client:
            cluster = client.get_cluster()
            exposures = [view.agent.exposure for view in client.list_agents() if not view.agent.lost_at]
    except (OSError, ValueError, TypeError, KeyError) as failure:
        raise unavailable(
            "local.not_ready", f"cannot read the files of the cluster in {layout.root}: {failure}"
        ) from None
    except GanglineError as failure:
        why = describe_outage(layout.root) or failure.message
        raise failure.reworded(f"a cluster runs in {layout.root} already, but it does not answer: {why}") from failure
    exposure = next(filter(None, exposures), "")
    replaced = take_login(login)
    return RunningCluster(login, table.supervisor, cluster.num_agents, cluster.num_slots, exposure, replaced), plan


def stop_local_cluster(layout: Layout, grace_seconds: float, report: Report) -> bool:
    """Stops all processes of this data directory and waits until none is left. Returns False when none was running."""
    table = load_table(layout.processes)
    was_running = False
    if is_locked(layout.lock):
        was_running = True
        if table is None:
            raise conflict("local.no_table", f"a supervisor holds {layout.root} but has not begun yet; try again")
        _end_supervisor(layout, table.supervisor, grace_seconds)
    left = find_cluster_processes(layout)
    if left:
        was_running = True
        report(f"{len(left)} processes outlived their supervisor")
        stop_cluster(layout, table.services if table else (), grace_seconds, report)
    layout.processes.unlink(missing_ok=True)
    used = give_back_login(layout)
    if used:
        report(f"commands use the local cluster in {used} again")
    return was_running


def layout_is_free(layout: Layout) -> None:
    """Raises GanglineError `local.running` or `local.leftover` while processes of a cluster use the directory."""
    if is_locked(layout.lock):
        table = load_table(layout.processes)
        gateway = table.find("gateway") if table else None
        place = f", its gateway is at {gateway.addresses['grpc']}" if gateway else ""
        raise conflict(
            "local.running",
            f"a cluster runs in {layout.root} already{place}; use it with `gangline up --data-dir {layout.root}`, end "
            f"it with `gangline down --data-dir {layout.root}`, or give another --data-dir",
        )
    left = find_cluster_processes(layout)
    if left:
        raise conflict(
            "local.leftover",
            f"{len(left)} processes of a cluster in {layout.root} still run without their supervisor; "
            f"end them with `gangline down --data-dir {layout.root}`",
        )


def check_packages() -> None:
    """Raises GanglineError `local.not_installed` where this Python has only a client."""
    lacking = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if lacking:
        raise GanglineError(
            "local.not_installed",
            f"a cluster needs gangline[cluster,train], and this Python lacks {', '.join(lacking)}; type: "
            "pip install 'gangline[cluster,train]' (docs/install.md says from where)",
        )


def _check_ports(plan: ClusterPlan) -> None:
    """Raises GanglineError `local.port` for a requested port on which nothing can listen."""
    for name, port in plan.port_by_name.items():
        obstacle = find_obstacle(port)
        if obstacle:
            option = f"--{name.removeprefix('gateway.')}-port"
            raise conflict(
                "local.port",
                f"cannot listen on port {port} of {HOST}: {obstacle}; choose another with {option}, or leave it out",
            )


def _with_ports(plan: ClusterPlan, former: dict[str, int]) -> ClusterPlan:
    """Chooses the ports: requested ones, else former ones where they are still free, else new ones. With former ports,
    a runner with undelivered reports finds its gateway again."""
    requested = plan.port_by_name.values()
    kept = {
        name: port
        for name, port in former.items()
        if name in plan.port_names and port not in requested and is_free(port)
    }
    chosen = {**kept, **plan.port_by_name}
    names = [name for name in plan.port_names if name not in chosen]
    ports = find_free_ports(len(names), chosen.values())
    return replace(plan, port_by_name={**chosen, **dict(zip(names, ports, strict=True))})


def _former_ports(layout: Layout) -> dict[str, int]:
    try:
        return ClusterPlan.parse(layout.plan.read_text("utf-8")).port_by_name
    except (OSError, ValueError, TypeError):
        return {}


def _launch(layout: Layout, grace_seconds: float) -> tuple[Identity, int]:
    """Starts the supervisor. Returns it and the end of the pipe on which it reports."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    arguments = ["--data-dir", str(layout.root), "--report-fd", str(write_end), "--grace-seconds", str(grace_seconds)]
    with layout.log("supervisor").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gangline.local.supervisor", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(write_end,),
        )
    # The reader sees the end of the pipe only when no process but the supervisor has it open.
    os.close(write_end)
    supervisor = identify(process.pid)
    assert supervisor is not None, "a child that was not waited for is there at least as a zombie"
    return supervisor, read_end


def _follow(events: int, report: Report) -> None:
    """Waits until the supervisor reports that all services serve."""
    with os.fdopen(events, encoding="utf-8") as lines:
        for line in lines:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "ready":
                report(f"{event['name']} serves after {event['seconds']} s")
            elif event["event"] == "note":
                report(event["text"])
            elif event["event"] == "up":
                return
            else:
                raise GanglineError(event["code"], event["message"], ErrorKind.UNAVAILABLE)
    raise GanglineError("local.supervisor", "the supervisor ended without a word", ErrorKind.INTERNAL)


def _await_agents(login: Login, plan: ClusterPlan, connect: Connect) -> tuple[int, str]:
    """Waits until a scheduler leads and the agents have joined. Returns the number of their slots, and what trials can
    read of the cluster."""
    deadline = time.monotonic() + JOIN_SECONDS
    with connect(login.address, login.token) as client:
        while True:
            has_leader = client.get_cluster().leader is not None
            agents = [view.agent for view in client.list_agents() if view.agent.state is AgentState.ALIVE]
            num_slots = plan.count_slots({agent.id: len(agent.slots) for agent in agents})
            if has_leader and num_slots is not None:
                return num_slots, next((agent.exposure for agent in agents if agent.exposure), "")
            if time.monotonic() > deadline:
                what = f"{len(agents)} of {plan.num_agents} agents joined" if has_leader else "no scheduler leads"
                raise GanglineError("local.not_joined", f"after {JOIN_SECONDS:g} s {what}")
            time.sleep(_LOOK_SECONDS)


def _end_supervisor(layout: Layout, supervisor: Identity, grace_seconds: float) -> None:
    supervisor.send(signal.SIGTERM)
    if wait_gone([supervisor], grace_seconds + _STOP_SECONDS):
        raise GanglineError(
            "local.stuck",
            f"the supervisor {supervisor.pid} of {layout.root} does not end; see {layout.log('supervisor')}",
            ErrorKind.TIMEOUT,
        )
