"""A cluster that is stopped and started again, with work in it: what was done stays, what was running goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.domain.state import ExitKind, Outcome
from gangline.local.identity import identify
from gangline.local.shutdown import find_cluster_processes
from tests.support.cluster import Cluster, running_cluster
from tests.support.gated_run import ALL_CHECKPOINTS, check_loads, gated_run, services_away
from tests.support.gated_trial import NUM_BATCHES, NUM_RANKS, Gate
from tests.support.source import ROOT


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("life")) as running:
        yield running


def test_kill_ends_the_ranks_at_once_and_keeps_what_was_saved(cluster: Cluster, tmp_path: Path) -> None:
    with gated_run(cluster, tmp_path) as run:
        run.gate.allow(6)
        ranks = run.wait_at(6)
        run.wait_checkpoint(4)
        killed = cluster.read("experiment", "kill", str(run.experiment_id))
        assert killed["id"] == run.experiment_id
        experiment = run.client.wait_experiment(run.experiment_id, 30)
        trial = experiment.trials[0].trial
        assert (experiment.experiment.outcome, trial.outcome, trial.attempts) == (
            Outcome.CANCELED,
            Outcome.CANCELED,
            1,
        )
        assert "admin" in experiment.experiment.reason
        assert {report.kind for report in run.exits().values()} == {ExitKind.KILLED}
        assert not any((identity := identify(desk.pid)) and identity.is_alive() for desk in ranks.values())
        assert run.checkpoint_batches() == [4]
        # Once more changes nothing.
        assert cluster.read("experiment", "kill", str(run.experiment_id))["outcome"] == "CANCELED"
        run.check_records(range(1, 7))
        run.check_aftermath()


def test_damaged_journal_of_a_killed_agent_keeps_the_trial_running(cluster: Cluster, tmp_path: Path) -> None:
    with gated_run(cluster, tmp_path) as run:
        run.gate.allow(3)
        before = run.wait_at(3)
        folder = cluster.layout.root / "agents" / "agent-2"
        with services_away(cluster, "agent-2"):
            record = folder / "allocations" / run.allocation_id() / "record.json"
            record.write_text(record.read_text()[:20])
            (folder / "epoch").write_text("not a number")
        view = run.finish()
        trial = view.trials[0].trial
        assert (trial.outcome, trial.attempts) == (Outcome.COMPLETED, 1), trial
        after = run.gate.desks(run.allocation_id())
        assert {rank: desk.pid for rank, desk in after.items()} == {rank: desk.pid for rank, desk in before.items()}
        assert list(folder.glob("epoch.corrupt-*"))
        assert "corrupt" in cluster.layout.log("agent-2").read_text()
        run.check_records()
        run.check_aftermath()


def test_agent_that_finds_its_metrics_port_in_use_says_so(cluster: Cluster, tmp_path: Path) -> None:
    taken = cluster.service("agent-1").addresses["metrics"]
    command = [
        *(sys.executable, "-m", "services.agent", "--id", "agent-3", "--slots", "1"),
        *("--scheduler-addresses", cluster.service("scheduler").addresses["grpc"]),
        *("--state-dir", str(tmp_path / "state"), "--metrics-listen", taken),
        *("--cluster-token-file", str(cluster.layout.cluster_token)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        f"gangline-agent: cannot listen on {taken}: the port is in use; stop what uses it or choose another with "
        "--metrics-listen"
    )


def test_down_with_a_running_trial_and_up_again(tmp_path: Path) -> None:
    """The trial saves what it has, and after the next `up` goes on with the very next batch."""
    num_batches = 100
    length = {"name": "single", "metric": "error", "max_length": {"batches": num_batches}}
    short, long = Gate(tmp_path / "short"), Gate(tmp_path / "long")
    short.allow(NUM_BATCHES)
    long.allow(num_batches)
    long.pace(0.1)
    with running_cluster(tmp_path) as cluster, cluster.connect() as client:
        done = client.create_experiment(short.config(), short.code).experiment
        assert client.wait_experiment(done.id, 90).experiment.outcome is Outcome.COMPLETED
        metrics = [entry.point for entry in client.stream_metrics(done.id)]
        lines = [entry.text for entry in client.stream_logs(done.id)]
        config = long.config(searcher=length, min_checkpoint_period={"batches": 1000}, scheduling_unit=10)
        running = client.create_experiment(config, long.code).experiment
        ranks = long.wait_at(f"{running.id}.1.1", 10)
        stopped = cluster.run("down", "--data-dir", cluster.folder, "--grace-seconds", "30", seconds=120)
        assert stopped.stdout == f"stopped; its data stays in {cluster.folder}\n"
        assert not any((identity := identify(desk.pid)) and identity.is_alive() for desk in ranks.values())
        assert find_cluster_processes(cluster.layout) == []

    long.pace(0)
    with running_cluster(tmp_path) as again, again.connect() as client:
        assert [experiment.id for experiment in client.list_experiments()] == [running.id, done.id]
        assert client.get_experiment(done.id).experiment.outcome is Outcome.COMPLETED
        assert [entry.point for entry in client.stream_metrics(done.id)] == metrics
        assert [entry.text for entry in client.stream_logs(done.id)] == lines
        trial = client.wait_experiment(running.id, 120).trials[0].trial
        assert (trial.outcome, trial.attempts, trial.restarts) == (Outcome.COMPLETED, 2, 0), trial
        for rank in range(NUM_RANKS):
            attempt_lines = [
                e.text for e in client.stream_logs(running.id) if e.rank == rank and e.text.startswith("attempt")
            ]
            assert [int(line.split()[3]) for line in attempt_lines] == list(range(1, num_batches + 1))
            assert {line.split()[1] for line in attempt_lines} == {"1", "2"}
        checkpoints = client.list_checkpoints()
        for checkpoint in checkpoints:
            check_loads(Path(checkpoint.url.removeprefix("file://")))
        kept = [checkpoint.batches_completed for checkpoint in checkpoints if checkpoint.experiment_id == done.id]
        assert sorted(kept) == ALL_CHECKPOINTS
