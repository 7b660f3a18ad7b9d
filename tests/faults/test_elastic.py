"""A gang over two hosts loses one of them, goes on on the other with the same losses, and grows back when it returns;
once under one leader, once with a new leader in each phase. Compared with a run that nothing disturbs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

import pytest
import torch

from gangline.cli.output.summary import size_lines, status_line
from gangline.domain.allocation import shrunk_reason
from gangline.domain.state import Outcome, ReasonCode, State
from gangline.pytorch import load_checkpoint
from tests.support.fleet import Fleet
from tests.support.gated_run import GatedRun, gated_run, wait_whole
from tests.support.gated_trial import NUM_RANKS, wait_for

LENGTH = 60
SECONDS = 90.0
LEASE_SECONDS = 3.0
CONFIG = {
    "searcher": {"name": "single", "metric": "error", "max_length": {"batches": LENGTH}},
    "checkpoint_storage": {"save_trial_latest": LENGTH},
    "max_restarts": 0,
}
ELASTIC = {"slots_per_trial": NUM_RANKS, "min_slots_per_trial": 2}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("elastic") / "data")
    fleet.add_scheduler()
    for scheduler in ("scheduler", "scheduler-2"):
        fleet.set_flag(scheduler, "--agent-lease-seconds", str(LEASE_SECONDS))
        fleet.set_flag(scheduler, "--agent-grace-seconds", "3")
        fleet.set_flag(scheduler, "--shrink-seconds", "2")
        fleet.set_flag(scheduler, "--resize-seconds", "6")
    try:
        fleet.start_control_plane()
        fleet.start("agent-1", "agent-2")
        wait_whole(fleet, 2)
        yield fleet
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def undisturbed(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, float], torch.Tensor]:
    with gated_run(fleet, tmp_path_factory.mktemp("whole"), **CONFIG, resources={"slots_per_trial": NUM_RANKS}) as run:
        run.gate.allow(LENGTH)
        view = run.client.wait_experiment(run.experiment_id, SECONDS)
        assert (view.trials[0].trial.outcome, view.trials[0].trial.attempts) == (Outcome.COMPLETED, 1)
        return losses(run), weights(run)


@pytest.mark.parametrize("has_failover", [False, True])
def test_trial_that_loses_a_host_goes_on_on_the_other_and_grows_back(
    fleet: Fleet, undisturbed: tuple[dict[int, float], torch.Tensor], tmp_path: Path, has_failover: bool
) -> None:
    with gated_run(fleet, tmp_path, **CONFIG, resources=ELASTIC) as run:
        run.gate.allow(6)
        run.wait_at(6)
        run.wait_checkpoint(4)
        lose_host(fleet, run)
        if has_failover:
            wait_for(lambda: run.trial.trial.state is State.QUEUED, "the end of the first attempt", SECONDS)
            change_leader(fleet)
        run.gate.wait_at(run.allocation_id(2), 6, num_ranks=2, seconds=SECONDS)
        check_shrunk(run)
        # From here on nothing holds it up but its pace, so that it can be stopped between any two batches.
        run.gate.pace(0.15)
        run.gate.allow(LENGTH)
        if has_failover:
            change_leader(fleet)
        fleet.start("agent-2")
        wait_for(lambda: run.trial.trial.attempts == 3, "its growth", SECONDS)
        run.gate.pace(0)
        view = run.client.wait_experiment(run.experiment_id, SECONDS).trials[0].trial
        assert (view.outcome, view.attempts, view.restarts) == (Outcome.COMPLETED, 3, 0), view
        assert [(size_change.slots, size_change.full_slots) for size_change in view.size_changes] == [(2, 4), (4, 4)]
        wait_for(lambda: max(losses(run)) == LENGTH, "all reports")
        loss_by_batch, expected = losses(run), undisturbed[0]
        assert loss_by_batch.keys() == expected.keys() == set(range(1, LENGTH + 1))
        assert max(abs(loss_by_batch[batch] - expected[batch]) for batch in loss_by_batch) < 1e-6
        torch.testing.assert_close(weights(run), undisturbed[1], rtol=0, atol=1e-6)
        check_rounds(run)
        run.check_aftermath()


def losses(run: GatedRun) -> dict[int, float]:
    """By batch. A batch that two attempts have trained has the same loss in both."""
    loss_by_batch: dict[int, float] = {}
    for entry in run.client.stream_metrics(run.experiment_id, group="training"):
        batch, loss = entry.point.batches_completed, entry.point.metrics["loss"]
        assert abs(loss_by_batch.setdefault(batch, loss) - loss) < 1e-6, (batch, loss_by_batch[batch], loss)
    return loss_by_batch


def weights(run: GatedRun) -> torch.Tensor:
    """Returns the weights of the last checkpoint, in one row."""
    newest = max(run.client.list_checkpoints(run.experiment_id), key=lambda checkpoint: checkpoint.batches_completed)
    assert newest.batches_completed == LENGTH
    (state,) = load_checkpoint(Path(urlparse(newest.url).path))["models_state_dict"]
    return torch.cat([state[name].flatten() for name in sorted(state)])


def lose_host(fleet: Fleet, run: GatedRun) -> None:
    """Its agent and its runner, whose ranks die with it."""
    runner = run.runner_on("agent-2")
    fleet.kill("agent-2")
    os.kill(runner.pid, signal.SIGKILL)


def change_leader(fleet: Fleet) -> None:
    """Kills both schedulers but the standby first serves; the killed one stands by afterwards."""
    with fleet.connect() as client:
        leader = client.get_cluster().leader
        assert leader is not None
        name = next(
            name for name, program in fleet.programs.items() if leader.grpc_address in program.addresses.values()
        )
        fleet.kill(name)
        fleet.start(name)

        def is_changed() -> bool:
            now = client.get_cluster().leader
            return now is not None and now.grpc_address != leader.grpc_address

        wait_for(is_changed, "another leader")


def check_shrunk(run: GatedRun) -> None:
    """Every surface says that it runs on two of four slots, and why."""
    view = run.trial
    allocation = view.allocation
    assert allocation is not None
    assert (allocation.num_slots, allocation.full_slots) == (2, 4)
    assert {member.agent_id for member in allocation.members} == {"agent-1"}
    reason = shrunk_reason(allocation)
    assert reason is not None
    assert reason.code is ReasonCode.RUNS_SHRUNK
    assert "needs 4 slots" in reason.message
    assert "agent-2" in reason.message
    experiment = run.client.get_experiment(run.experiment_id)
    assert "in all 2 of 4 slots" in status_line(experiment)
    assert any("it went on with 2 of 4 slots" in line for line in size_lines(view))
    (task,) = run.client.list_tasks()
    assert task.size_text == "2 of 4"


def check_rounds(run: GatedRun) -> None:
    """On two slots each rank trained two of its usual batches for each batch; on four slots one."""
    lines = run.lines()[0]
    by_attempt = {attempt: [line for line in lines if line.startswith(f"attempt {attempt} ")] for attempt in (1, 2, 3)}
    assert len(by_attempt[1]) == len(set(by_attempt[1]))
    assert len(by_attempt[2]) == 2 * len(set(by_attempt[2]))
    assert len(by_attempt[3]) == len(set(by_attempt[3]))
