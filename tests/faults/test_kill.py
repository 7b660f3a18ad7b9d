"""kill -9 of each kind of process while a gang of four ranks on two agents trains: what ends, what goes on, what
waits."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from gangline.domain.allocation import Request
from gangline.domain.experiment import Trial
from gangline.domain.resource import Agent
from gangline.domain.state import ExitKind, Outcome, State
from gangline.local.identity import identify
from gangline.login import HOME_VARIABLE
from services.common.state_folder import StateFolder
from tests.support.cluster import COMMAND, Cluster
from tests.support.gated_run import ALL_BATCHES, ALL_CHECKPOINTS, gated_run, is_whole, services_away
from tests.support.gated_trial import NUM_BATCHES, wait_for

KILL_GRACE_SECONDS = 5.0


def test_a_killed_rank_ends_its_gang_at_once_and_the_trial_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    with gated_run(cluster, tmp_path) as run:
        run.gate.allow(6, rank=2)
        run.gate.allow(7)
        ranks = run.wait_at(6)
        run.wait_checkpoint(4)
        # Ranks 0, 1 and 3 are in the exchange of batch 7, for which rank 2 does not come.
        wait_for(lambda: sum("attempt 1 batch 7" in lines for lines in run.lines().values()) == 3, "three in batch 7")
        run.gate.allow(NUM_BATCHES, rank=2)
        os.kill(ranks[2].pid, signal.SIGKILL)
        view = run.finish()

        trial = view.trials[0].trial
        assert (trial.outcome, trial.restarts, trial.attempts) == (Outcome.COMPLETED, 1, 2)
        assert trial.last_failure is not None
        assert (trial.last_failure.kind, trial.last_failure.rank, trial.last_failure.signal) == (ExitKind.SIGNAL, 2, 9)
        assert trial.last_failure.agent_id == ranks[2].agent
        assert trial.last_failure.message.endswith("ended by signal 9 (SIGKILL)")
        exits = run.exits()
        peer_report = next(report for agent, report in exits.items() if agent != ranks[2].agent)
        assert exits[ranks[2].agent].kind is ExitKind.SIGNAL
        # Its peer tells it, or the scheduler, whichever is heard first.
        assert peer_report.kind in (ExitKind.PEER_FAILED, ExitKind.KILLED)
        # A second is what it takes; on a machine with much else to do, still less than the grace before SIGKILL.
        assert max(report.ended_at for report in exits.values()) - exits[ranks[2].agent].failed_at < KILL_GRACE_SECONDS
        # The second attempt begins after the checkpoint of batch 4.
        assert run.reported_batches() == [1, 2, 3, 4, 5, 6, *range(5, NUM_BATCHES + 1)]
        assert run.checkpoint_batches() == ALL_CHECKPOINTS
        run.check_aftermath()


def test_a_killed_runner_leaves_no_rank_and_the_trial_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    with gated_run(cluster, tmp_path) as run:
        run.gate.allow(6)
        ranks = run.wait_at(6)
        run.wait_checkpoint(4)
        number = str(run.experiment_id)
        following = subprocess.Popen(
            [COMMAND, "experiment", "follow", number],
            env={**os.environ, HOME_VARIABLE: str(cluster.home)},
            text=True,
            stdout=subprocess.PIPE,
        )
        assert following.stdout is not None
        assert "RUNNING" in following.stdout.readline()
        runner = run.runner_on("agent-2")
        runner.send(signal.SIGKILL)
        living = [identify(desk.pid) for desk in ranks.values()]
        wait_for(lambda: not any(rank and rank.is_alive() for rank in living), "the end of all ranks", 5)
        run.wait_at(6, attempt=2)
        described = cluster.run("experiment", "describe", number).stdout
        view = run.finish()

        trial = view.trials[0].trial
        assert (trial.outcome, trial.attempts) == (Outcome.COMPLETED, 2)
        assert trial.last_failure is not None
        assert (trial.last_failure.kind, trial.last_failure.agent_id) == (ExitKind.RUNNER_LOST, "agent-2")
        failure = f"agent-2: {trial.last_failure.message}"
        assert f"last failure, no restart used up: {failure}\n" in described
        followed, _ = following.communicate(timeout=60)
        again = f"trial {trial.id} starts again; last failure, no restart used up: {failure}\n"
        assert followed.count(again) == 1, followed
        log = cluster.run("experiment", "logs", number).stdout
        assert log.count(f"the attempt before this one (attempt 1) failed: {failure}\n") == 1
        assert run.reported_batches() == [1, 2, 3, 4, 5, 6, *range(5, NUM_BATCHES + 1)]
        assert run.checkpoint_batches() == ALL_CHECKPOINTS
        run.check_aftermath()


@pytest.mark.parametrize(
    "names",
    [
        ("agent-2",),
        ("scheduler",),
        ("gateway",),
        ("etcd",),
        ("agent-1", "agent-2", "scheduler", "gateway", "etcd"),
    ],
    ids=lambda names: "everything" if len(names) > 1 else names[0],
)
def test_training_goes_on_without_a_service(cluster: Cluster, tmp_path: Path, names: tuple[str, ...]) -> None:
    with gated_run(cluster, tmp_path) as run:
        run.gate.allow(3)
        before = run.wait_at(3)
        runners = [run.runner_on(agent) for agent in ("agent-1", "agent-2")]
        with services_away(cluster, *names):
            run.gate.allow(10)
            during = run.wait_at(10)
        run.gate.allow(12)
        after = run.wait_at(12)
        assert all(runner.is_alive() for runner in runners)
        view = run.finish()

        pids = {rank: desk.pid for rank, desk in before.items()}
        assert {rank: desk.pid for rank, desk in during.items()} == pids
        assert {rank: desk.pid for rank, desk in after.items()} == pids
        trial = view.trials[0].trial
        assert (trial.outcome, trial.attempts, trial.restarts) == (Outcome.COMPLETED, 1, 0), trial
        assert trial.batches_completed == NUM_BATCHES
        assert trial.last_failure is None
        assert run.checkpoint_batches() == ALL_CHECKPOINTS
        run.check_records(ALL_BATCHES)
        run.check_aftermath()


def test_a_start_without_code_waits_for_a_gateway_counts_no_failure_and_loses_no_record(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A rank dies while no gateway is registered, and one of the hosts has not kept the code."""
    with gated_run(cluster, tmp_path) as run:
        run.gate.allow(6)
        ranks = run.wait_at(6)
        run.wait_checkpoint(4)
        trial_id = f"{run.experiment_id}.1"
        state = StateFolder(cluster.layout.root / "agents" / "agent-2")
        # The leader has told it, so its drainer finds gateways that have moved.
        assert cluster.service("gateway").addresses["grpc"] in state.load_gateways()
        with services_away(cluster, "gateway"):
            wait_for(lambda: not run.history.has_service("gateway"), "the end of the gateway's lease", 30)
            for archive in state.code_archives.glob("*.tar.gz"):
                archive.unlink()
            os.kill(ranks[2].pid, signal.SIGKILL)

            def waits() -> bool:
                return any(request.needs_gateway for request in run.history.newest(Request))

            wait_for(waits, "the request that waits for a gateway", 90)
            (trial,) = [trial for trial in run.history.newest(Trial) if trial.id == trial_id]
            assert (trial.state, trial.restarts, trial.infrastructure_failures) == (State.QUEUED, 1, 0)
            assert trial.reason.startswith("agent agent-2: waits for a gateway, to fetch its code: ")

            def left_by() -> set[str]:
                return {left.allocation_id for agent in run.history.newest(Agent) for left in agent.undelivered}

            wait_for(lambda: run.allocation_id(1) in left_by(), "the records that wait, at their agent", 60)
        view = run.finish()
        trial = view.trials[0].trial
        assert (trial.outcome, trial.attempts, trial.restarts) == (Outcome.COMPLETED, 3, 1)
        assert trial.infrastructure_failures == 0
        assert run.checkpoint_batches() == ALL_CHECKPOINTS
        wanted = [1, 2, 3, 4, 5, 6, *range(5, NUM_BATCHES + 1)]
        wait_for(lambda: sorted(run.reported_batches()) == sorted(wanted), "each metric once", 30)

        def runner_lines() -> list[str]:
            return [entry.text for entry in run.client.stream_logs(run.experiment_id) if entry.stream == "runner"]

        wait_for(lambda: any("waits for a gateway, to fetch the code" in text for text in runner_lines()), "the log")
        wait_for(lambda: not run.trial.warning, "the end of the warning", 30)
        run.check_aftermath()


def test_a_command_that_its_agent_never_began_begins_on_another_one_and_once(cluster: Cluster, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    agent = cluster.service("agent-1")
    with cluster.connect() as client:
        client.disable_agent("agent-1")
        client.disable_agent("agent-2")
        told = cluster.run("cmd", "run", "--detach", "--", f"echo $GANGLINE_AGENT_ID >> {ran}", seconds=40)
        experiment_id = int(told.stdout.split()[-1])
        os.kill(agent.pid, signal.SIGSTOP)
        try:
            # It is ordered to start the command while the leader does not know yet that it is lost.
            client.enable_agent("agent-1")

            def member() -> str:
                allocation = client.get_experiment(experiment_id).trials[0].allocation
                return allocation.members[0].agent_id if allocation else ""

            wait_for(lambda: member() == "agent-1", "the order to the stopped agent", 20)
            client.enable_agent("agent-2")
            ended = client.wait_experiment(experiment_id, 60)
        finally:
            client.enable_agent("agent-1")
            client.enable_agent("agent-2")
            os.kill(agent.pid, signal.SIGCONT)
        # Awake again, it reads the order from its socket.
        wait_for(lambda: is_whole(client), "a whole cluster")
        trial = ended.trials[0].trial
        assert (trial.outcome, trial.attempts, trial.restarts) == (Outcome.COMPLETED, 2, 0), trial
        assert trial.last_failure is not None
        assert (trial.last_failure.kind, trial.last_failure.has_not_begun) == (ExitKind.AGENT_LOST, True)
        # What a second command leaves behind comes after whatever the first one would have done.
        client.disable_agent("agent-2")
        try:
            cluster.run("cmd", "run", "--", f"echo last >> {ran}", seconds=40)
        finally:
            client.enable_agent("agent-2")
    assert len(ran.read_text().splitlines()) == 2, ran.read_text()
