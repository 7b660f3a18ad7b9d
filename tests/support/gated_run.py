"""One gated experiment on a running cluster: start it, hold it at a batch, let it end, and check what it left.

Owns the checks that follow every fault: the invariants over all revisions of the state, checkpoints that load, no
process left, slots free again, every record of logs and metrics once. Used by tests/e2e and tests/faults.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlparse

import psutil
from google.protobuf import json_format

from gangline.client import Client
from gangline.domain.allocation import ExitReport
from gangline.domain.state import State
from gangline.domain.view import ExperimentView, TrialView
from gangline.launch import spare
from gangline.local.identity import Identity, identify, wait_gone
from gangline.local.layout import Layout
from gangline.local.service import read_tail
from gangline.local.shutdown import find_cluster_processes, find_runners
from gangline.protocol.wire import from_proto
from gangline.pytorch import load_checkpoint
from gangline.v1 import agent_pb2
from tests.support.cluster import Cluster
from tests.support.gated_trial import CHECKPOINT_PERIOD, NUM_BATCHES, NUM_RANKS, Gate, RankDesk, wait_for
from tests.support.state_history import Revision, StateHistory, check_invariants, named_checkpoints

ALL_BATCHES = list(range(1, NUM_BATCHES + 1))
ALL_CHECKPOINTS = list(range(CHECKPOINT_PERIOD, NUM_BATCHES + 1, CHECKPOINT_PERIOD))


class Site(Protocol):
    """A running cluster, however it was brought up."""

    @property
    def layout(self) -> Layout: ...

    @property
    def etcd_address(self) -> str: ...

    def connect(self) -> Client: ...


@dataclass
class GatedRun:
    """num_processes: of the idle cluster before it."""

    cluster: Site
    client: Client
    gate: Gate
    history: StateHistory
    experiment_id: int
    num_processes: int

    def allocation_id(self, attempt: int = 1) -> str:
        return f"{self.experiment_id}.1.{attempt}"

    @property
    def trial(self) -> TrialView:
        return self.client.get_experiment(self.experiment_id).trials[0]

    def wait_at(self, batch: int, attempt: int = 1) -> dict[int, RankDesk]:
        return self.gate.wait_at(self.allocation_id(attempt), batch)

    def allow_all(self) -> None:
        self.gate.allow(NUM_BATCHES)

    def wait_checkpoint(self, batches: int) -> None:
        """Until a checkpoint this far is in state."""
        wait_for(lambda: self.trial.trial.batches_completed >= batches, f"a checkpoint after {batches} batches")

    def finish(self, seconds: float = 90.0) -> ExperimentView:
        self.allow_all()
        return self.client.wait_experiment(self.experiment_id, seconds)

    def exits(self, attempt: int = 1) -> dict[str, ExitReport]:
        """By agent, how each member of an attempt ended, as its runner or its agent wrote it down."""
        name = self.allocation_id(attempt)
        paths = self.cluster.layout.root.glob(f"agents/*/ended/{name}/exit.json")
        statuses = [json_format.Parse(path.read_text(), agent_pb2.AllocationStatus()) for path in paths]
        reports: list[ExitReport] = [from_proto(ExitReport, status.exit) for status in statuses]
        return {report.agent_id: report for report in reports}

    def runner_on(self, agent: str, attempt: int = 1) -> Identity:
        """The living trial runner of this run on an agent."""
        lock = str(self.cluster.layout.root / "agents" / agent / "allocations" / self.allocation_id(attempt) / "lock")
        return next(runner for runner in find_runners(self.cluster.layout) if _has_open(runner.pid, lock))

    def lines(self) -> dict[int, list[str]]:
        """By rank, what it printed."""
        lines_by_rank: dict[int, list[str]] = {}
        for entry in self.client.stream_logs(self.experiment_id):
            if entry.rank is not None and entry.stream == "stdout":
                lines_by_rank.setdefault(entry.rank, []).append(entry.text)
        return lines_by_rank

    def reported_batches(self) -> list[int]:
        """Returns the batches of the training metrics of all attempts, in the order in which they are stored."""
        entries = self.client.stream_metrics(self.experiment_id, group="training", attempt=0)
        return [entry.point.batches_completed for entry in entries]

    def checkpoint_batches(self) -> list[int]:
        return sorted(checkpoint.batches_completed for checkpoint in self.client.list_checkpoints(self.experiment_id))

    def check_records(self, batches: Iterable[int] = ALL_BATCHES, attempt: int = 1) -> None:
        """Every line of every rank and every training metric is stored once and in order, for a run of one attempt."""
        wanted = list(batches)
        lines = [f"attempt {attempt} batch {batch}" for batch in wanted]
        wait_for(lambda: self.reported_batches() == wanted, f"metrics once each, not {self.reported_batches()}")
        wait_for(lambda: self.lines() == dict.fromkeys(range(NUM_RANKS), lines), f"lines once each, not {self.lines()}")

    def check_aftermath(self) -> list[Revision]:
        """Asserts the invariants after every fault, and reads all revisions of the state since the run began. Other
        experiments of the cluster may have checkpoints without a model."""
        self._check_idle()
        revisions = check_invariants(self.history.revisions())
        for checkpoint in named_checkpoints(revisions).values():
            if checkpoint.experiment_id == self.experiment_id:
                check_loads(Path(urlparse(checkpoint.url).path))
        return revisions

    def _check_idle(self) -> None:
        """Slots free, nothing waiting, and as many processes as before."""
        wait_for(lambda: not self.client.list_tasks(), "the end of all tasks")
        wait_alive(self.client, self.cluster)
        assert all(not view.allocation_id_by_slot_id for view in self.client.list_agents())
        wait_for(lambda: not find_runners(self.cluster.layout), "the end of all runners")
        pids = [desk.pid for folder in self.gate.folder.glob("*.*.*") for desk in self.gate.desks(folder.name).values()]
        left = [process for pid in pids if (process := identify(pid)) is not None and process.is_alive()]
        assert not wait_gone(left, 5), f"ranks are left: {left}"
        wait_for(
            lambda: len(_find_processes(self.cluster)) == self.num_processes,
            f"{self.num_processes} processes as before",
        )


def is_whole(client: Client) -> bool:
    """A scheduler leads and every agent is alive."""
    views = client.list_agents()
    return client.get_cluster().leader is not None and all(view.agent.state == "ALIVE" for view in views)


def describe(client: Client, cluster: Site) -> str:
    """What is_whole looks at, with the end of each service's log."""
    states = {view.agent.id: str(view.agent.state) for view in client.list_agents()}
    logs = [f"== {path.stem}\n{read_tail(path, 2000)}" for path in sorted((cluster.layout.root / "logs").glob("*.log"))]
    return "\n".join([f"leader {client.get_cluster().leader}, agents {states}", *logs])


def wait_alive(client: Client, cluster: Site) -> None:
    """Returns once is_whole holds."""
    wait_for(lambda: is_whole(client), lambda: f"a whole cluster, not {describe(client, cluster)}")


def wait_whole(cluster: Site, num_agents: int) -> None:
    """Returns once so many agents have joined and all is well."""
    with cluster.connect() as client:
        wait_for(
            lambda: client.get_cluster().num_agents == num_agents and is_whole(client),
            lambda: f"{num_agents} agents alive, not {describe(client, cluster)}",
        )


def _find_processes(cluster: Site) -> list[psutil.Process]:
    """Without the forks that wait for an order. The number of those depends on the newest trial."""
    processes = []
    for identity in find_cluster_processes(cluster.layout):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(identity.pid)
            if process.name() != spare.NAME:
                processes.append(process)
    return processes


def _num_fork_servers(cluster: Site) -> int:
    """With the runners and ranks that are forks of them, if any run."""
    number = 0
    for process in _find_processes(cluster):
        with suppress(psutil.NoSuchProcess):
            number += "gangline.launch.forkserver" in process.cmdline()
    return number


@contextmanager
def gated_run(cluster: Site, folder: Path, **config: object) -> Iterator[GatedRun]:
    """Submits it. folder: where its gate lies. It is killed at the end if a failed test has left it running."""
    gate = Gate(folder / "gate")
    with cluster.connect() as client:
        wait_alive(client, cluster)
        # An agent is alive before its fork servers are there; they belong to the idle cluster.
        num_servers = 2 * client.get_cluster().num_agents
        wait_for(lambda: _num_fork_servers(cluster) >= num_servers, f"{num_servers} fork servers")
        num_processes = len(_find_processes(cluster))
        with StateHistory(cluster.etcd_address) as history:
            created = client.create_experiment(gate.config(**config), gate.code)  # type: ignore[arg-type]  # slots is first
            run = GatedRun(cluster, client, gate, history, created.experiment.id, num_processes)
            try:
                yield run
            finally:
                if client.get_experiment(run.experiment_id).experiment.state is not State.TERMINAL:
                    run.allow_all()
                    client.kill_experiment(run.experiment_id)
                    client.wait_experiment(run.experiment_id, 60)


@contextmanager
def services_away(cluster: Cluster, *names: str) -> Iterator[None]:
    """Kills services with SIGKILL and holds the supervisor, so that none comes back before the end of the context.

    Then waits until all of them serve again.
    """
    before = {name: cluster.service(name) for name in names}
    supervisor = cluster.table().supervisor
    supervisor.send(signal.SIGSTOP)
    try:
        for entry in before.values():
            os.kill(entry.pid, signal.SIGKILL)
        identities = [entry.identity for entry in before.values() if entry.identity is not None]
        assert not wait_gone(identities, 10)
        yield
    finally:
        supervisor.send(signal.SIGCONT)
    for name, entry in before.items():
        wait_for(lambda: cluster.service(name).restarts > entry.restarts, f"the restart of {name}")  # noqa: B023 - called at once
        wait_for(lambda: cluster.service(name).state == "running", f"{name} serving again", 60)  # noqa: B023 - called at once


def check_loads(folder: Path) -> None:
    """I6: the files are those of the manifest, and a model comes out of them."""
    assert load_checkpoint(folder)["models_state_dict"]


def _has_open(pid: int, path: str) -> bool:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        # A descriptor may be closed between its listing and its reading.
        with suppress(FileNotFoundError):
            if str(entry.readlink()) == path:
                return True
    return False
