"""Measures how long a cluster is without a leader.

The time runs from the end of the leading scheduler until the next one serves, all agents are connected to it, and the
first experiment that was submitted meanwhile is placed. etcd, two schedulers, a gateway and real agents run as
`gangline up` starts them, without a supervisor. Four cases: kill -9 of the leader as soon as the standby is ready; kill
-9 when the standby has stood by for a while; SIGSTOP of the leader, which only its lease (5 s) ends; kill -9 of the
only scheduler, which is started again at once. The times are from the new leader's log. Run it with `python -m
benchmarks.failover`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from benchmarks.machine import describe_machine
from benchmarks.process import end_process, run_benchmark, wait_until
from benchmarks.statistic import summarise
from gangline.client import Client
from gangline.local.etcd_program import find_etcd_binary
from gangline.local.layout import Layout
from gangline.local.plan import ClusterPlan
from gangline.local.port import HOST, find_free_ports
from gangline.local.program import Program, make_programs

WAIT_SECONDS = 60.0
# Pause between two looks at the logs; the times in these do not depend on it.
LOOK_SECONDS = 0.005
_wait = partial(wait_until, limit_seconds=WAIT_SECONDS, pause_seconds=LOOK_SECONDS)
SCHEDULERS = ("scheduler", "scheduler-2")
# All agents must be connected within this time after a kill -9.
KILL_BAR_SECONDS = 2.0
# The lease of a leader is 5 s.
STOP_BAR_SECONDS = 6.0
CONFIG = """
name: benchmark-failover
entrypoint: "true"
searcher: {name: single, metric: none, max_length: {batches: 1}}
resources: {slots_per_trial: 1}
max_restarts: 0
"""


@dataclass(frozen=True, slots=True)
class FailOver:
    """Holds the seconds from the signal to each event."""

    serves: float
    agents: float
    placed: float


@dataclass
class Cluster:
    """Holds the programs of the cluster by name, and the running processes."""

    layout: Layout
    agents: list[str]
    programs: dict[str, Program]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def spawn(self, name: str) -> None:
        self.layout.ready(name).unlink(missing_ok=True)
        with self.layout.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.programs[name].arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.layout.root
            )

    def start(self, *names: str) -> None:
        """Starts services; returns once they are ready."""
        for name in names:
            self.spawn(name)
        for name in names:
            if self.programs[name].kind != "etcd":
                self._wait_ready(name)

    def _wait_ready(self, name: str) -> None:
        process = self.processes[name]
        _wait(lambda: self.layout.ready(name).exists() or process.poll() is not None, f"{name} does not serve")
        if process.poll() is not None:
            raise SystemExit(f"{name} ended: {self.layout.log(name).read_text()[-2000:]}")

    def events(self, name: str) -> list[tuple[float, str]]:
        """Returns time and name of each event in a service's log, the oldest first."""
        lines = self.layout.log(name).read_text().splitlines(keepends=True)
        entries = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]
        return [(datetime.fromisoformat(entry["timestamp"]).timestamp(), entry["event"]) for entry in entries]

    def times(self, name: str, event: str, since: float) -> list[float]:
        """Returns the seconds from `since` to each such event after it."""
        return [at - since for at, event_name in self.events(name) if event_name == event and at >= since]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=6, help="of each case")
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--standing-seconds", type=float, default=3.0, help="for the case of an old standby")
    arguments = parser.parse_args()
    print(describe_machine())
    runs = range(arguments.runs)
    with _running_cluster(arguments.agents) as (cluster, client):
        fresh = [_fail_over(cluster, client, signal.SIGKILL, 0.0) for _ in runs]
        standing = [_fail_over(cluster, client, signal.SIGKILL, arguments.standing_seconds) for _ in runs]
        paused = [_fail_over(cluster, client, signal.SIGSTOP, arguments.standing_seconds) for _ in runs]
        alone = [_restart(cluster, client) for _ in runs]
    _print_case("kill -9, standby that has just become ready", fresh, KILL_BAR_SECONDS)
    _print_case(f"kill -9, standby of {arguments.standing_seconds:g} s", standing, KILL_BAR_SECONDS)
    _print_case("SIGSTOP, lease of 5 s", paused, STOP_BAR_SECONDS)
    _print_case("kill -9 of the only scheduler, started again", alone, None)


def _fail_over(cluster: Cluster, client: Client, number: signal.Signals, standing_seconds: float) -> FailOver:
    """Ends the leader, measures the standby's takeover, and starts the leader's program again as the next standby."""
    leader = _leader(cluster, client)
    standby = SCHEDULERS[1 - SCHEDULERS.index(leader)]
    if standby not in cluster.processes:
        cluster.start(standby)
    time.sleep(standing_seconds)
    signalled_at = time.time()
    cluster.processes[leader].send_signal(number)
    takeover = _measure(cluster, client, standby, signalled_at)
    _end(cluster, leader)
    cluster.start(leader)
    return takeover


def _restart(cluster: Cluster, client: Client) -> FailOver:
    leader = _leader(cluster, client)
    standby = SCHEDULERS[1 - SCHEDULERS.index(leader)]
    if standby in cluster.processes:
        _end(cluster, standby)
    killed_at = time.time()
    _end(cluster, leader)
    cluster.spawn(leader)
    return _measure(cluster, client, leader, killed_at)


def _measure(cluster: Cluster, client: Client, name: str, since: float) -> FailOver:
    """Measures one fail-over. name: of the scheduler that is to lead."""
    created = client.create_experiment(CONFIG, cluster.layout.root / "code")
    _wait(
        lambda: (
            len(cluster.times(name, "agent connected", since)) >= len(cluster.agents)
            and bool(cluster.times(name, "placed", since))
        ),
        f"{name} does not lead all agents",
    )
    client.kill_experiment(created.experiment.id)
    client.wait_experiment(created.experiment.id)
    return FailOver(
        serves=cluster.times(name, "leading", since)[0],
        agents=cluster.times(name, "agent connected", since)[len(cluster.agents) - 1],
        placed=cluster.times(name, "placed", since)[0],
    )


def _leader(cluster: Cluster, client: Client) -> str:
    leader = client.get_cluster().leader
    address = leader.grpc_address if leader else ""
    return next(name for name in SCHEDULERS if cluster.programs[name].addresses["grpc"] == address)


def _end(cluster: Cluster, name: str) -> None:
    """Kills the process, even when it is stopped."""
    process = cluster.processes.pop(name)
    process.kill()
    process.wait()


@contextmanager
def _running_cluster(num_agents: int) -> Iterator[tuple[Cluster, Client]]:
    with tempfile.TemporaryDirectory(prefix="gl-bench-") as folder:
        cluster = _make_cluster(Layout(Path(folder).resolve()), num_agents)
        (cluster.layout.root / "code").mkdir()
        os.environ["GANGLINE_HOME"] = str(cluster.layout.root / "home")
        try:
            cluster.start("etcd")
            cluster.start(*SCHEDULERS, "gateway")
            cluster.start(*cluster.agents)
            address, token = cluster.programs["gateway"].addresses["grpc"], cluster.layout.read_admin_token()
            with Client(address, token) as client:
                _wait(lambda: client.get_cluster().num_agents == num_agents, "the agents do not connect")
                yield cluster, client
        finally:
            for name in reversed(list(cluster.processes)):
                end_process(cluster.processes[name])


def _make_cluster(layout: Layout, num_agents: int) -> Cluster:
    layout.create()
    plan = ClusterPlan(num_agents, "1")
    ports = find_free_ports(len(plan.port_names) + 2, [])
    plan = replace(plan, port_by_name=dict(zip(plan.port_names, ports, strict=False)))
    cluster_programs = make_programs(layout, plan, sys.executable, find_etcd_binary())
    programs = {program.name: program for program in cluster_programs}
    first, (grpc_port, metrics_port) = programs["scheduler"], ports[-2:]
    addresses = {"grpc": f"{HOST}:{grpc_port}", "metrics": f"{HOST}:{metrics_port}"}
    changed = {first.addresses[address_name]: address for address_name, address in addresses.items()}
    changed[str(layout.ready("scheduler"))] = str(layout.ready("scheduler-2"))
    words = tuple(changed.get(word, word) for word in first.arguments)
    programs["scheduler-2"] = replace(first, name="scheduler-2", arguments=words, addresses=addresses)
    agents = [name for name, program in programs.items() if program.kind == "agent"]
    both = f"{first.addresses['grpc']},{addresses['grpc']}"
    for name in agents:
        words = programs[name].arguments
        agent_words = tuple(both if word == first.addresses["grpc"] else word for word in words)
        programs[name] = replace(programs[name], arguments=(*agent_words, "--no-warm"))
    return Cluster(layout, agents, programs)


def _print_case(name: str, runs: list[FailOver], bar_seconds: float | None) -> None:
    print(f"{name}:")
    for label, values in (
        ("the next leader serves", [run.serves for run in runs]),
        ("all agents are connected", [run.agents for run in runs]),
        ("an experiment is placed", [run.placed for run in runs]),
    ):
        summary = summarise(values)
        spread = f"min {summary.minimum:6.3f}  p50 {summary.p50:6.3f}  max {summary.maximum:6.3f} s"
        print(f"  {label:26} n {summary.count:2}  {spread}")
    if bar_seconds is not None:
        is_held = max(run.agents for run in runs) <= bar_seconds
        print(f"  all agents within {bar_seconds:g} s in every run: {'yes' if is_held else 'NO'}")


if __name__ == "__main__":
    run_benchmark(main)
