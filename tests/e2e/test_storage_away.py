"""A storage that is full, unmounted or silent: the trial waits, says so, and loses nothing.

Real processes; the storage is a small tmpfs in a mount namespace of its own. Needs root.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.core.storage_access.storage_wait import PREEMPTED_SECONDS
from gangline.domain.state import Outcome, ReasonCode, State
from gangline.domain.view import TrialView
from tests.support.fleet import Fleet
from tests.support.gated_run import GatedRun, gated_run
from tests.support.gated_trial import CHECKPOINT_PERIOD, NUM_BATCHES, wait_for
from tests.support.lost_storage import StorageDisk, storage_disk, storage_fleet

SLOTS = 2
SECONDS = 90.0


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageDisk]:
    with storage_disk(tmp_path_factory.mktemp("storage")) as disk:
        yield disk


@pytest.fixture(scope="module")
def fleet(disk: StorageDisk) -> Iterator[Fleet]:
    with storage_fleet(disk, SLOTS) as fleet:
        yield fleet


@pytest.fixture
def run(fleet: Fleet, tmp_path: Path) -> Iterator[GatedRun]:
    """Training that has saved its first checkpoint, and stands before the batch that ends in the second one."""
    with gated_run(fleet, tmp_path / "run", slots=SLOTS, max_restarts=0) as run:
        run.gate.allow(2 * CHECKPOINT_PERIOD - 1)
        wait_for(lambda: run.checkpoint_batches() == [CHECKPOINT_PERIOD], "the first checkpoint", SECONDS)
        run.gate.wait_at(run.allocation_id(), 2 * CHECKPOINT_PERIOD - 1, SLOTS)
        yield run


def log_of(run: GatedRun) -> str:
    return "\n".join(entry.text for entry in run.client.stream_logs(run.experiment_id))


def wait_waiting(run: GatedRun, why: str) -> TrialView:
    """Until the trial says that it waits for its storage, and why."""

    def is_waiting() -> bool:
        view = run.trial
        reason = view.reason
        return reason is not None and reason.code is ReasonCode.STORAGE_AWAY and why in reason.message

    wait_for(is_waiting, f"a trial that waits, for {why}", SECONDS)
    view = run.trial
    assert view.trial.state is State.RUNNING
    return view


def complete(run: GatedRun) -> None:
    """Trains to the end. Nothing was trained twice, and no failure was counted."""
    run.gate.allow(NUM_BATCHES)
    view = run.client.wait_experiment(run.experiment_id, SECONDS).trials[0]
    assert (view.trial.outcome, view.trial.attempts, view.trial.restarts) == (Outcome.COMPLETED, 1, 0), view.trial
    assert view.trial.last_failure is None
    assert view.reason is None
    assert run.checkpoint_batches() == list(range(CHECKPOINT_PERIOD, NUM_BATCHES + 1, CHECKPOINT_PERIOD))


def test_a_full_storage_is_waited_for(disk: StorageDisk, run: GatedRun) -> None:
    # Slow enough that progress is reported before the next checkpoint is due.
    run.gate.pace(0.5)
    with disk.full():
        run.gate.allow(3 * CHECKPOINT_PERIOD)
        view = wait_waiting(run, "No space left on device")
        # What is saved, and what a failure now would cost; not the batches that are trained.
        assert view.checkpoint_batches == CHECKPOINT_PERIOD
        wait_for(lambda: run.trial.batches_at_risk >= CHECKPOINT_PERIOD, "training that goes on meanwhile")
        assert run.checkpoint_batches() == [CHECKPOINT_PERIOD]
        run.gate.pace(0.0)
    complete(run)
    assert "takes files again" in log_of(run)


def test_a_lost_mount_is_not_made_anew(disk: StorageDisk, run: GatedRun) -> None:
    with disk.away() as mount_point:
        run.gate.allow(3 * CHECKPOINT_PERIOD)
        wait_waiting(run, "is away")
        assert list(mount_point.iterdir()) == []
    complete(run)


def test_a_pause_does_not_wait_for_a_full_storage(disk: StorageDisk, run: GatedRun) -> None:
    """It keeps the last checkpoint, and nothing counts as a failure."""
    with disk.full():
        run.gate.allow(3 * CHECKPOINT_PERIOD)
        wait_waiting(run, "No space left on device")
        run.client.pause_experiment(run.experiment_id)
        wait_for(lambda: run.trial.allocation is None, "the slots to be free", 30)
        view = run.trial
        assert (view.trial.state, view.trial.restarts, view.trial.last_failure) == (State.PAUSED, 0, None)
        assert view.checkpoint_batches == CHECKPOINT_PERIOD
    run.client.activate_experiment(run.experiment_id)
    run.gate.allow(NUM_BATCHES)
    view = run.client.wait_experiment(run.experiment_id, SECONDS).trials[0]
    assert (view.trial.outcome, view.trial.attempts, view.trial.restarts) == (Outcome.COMPLETED, 2, 0)
    assert "stopped without a checkpoint" in log_of(run)


def test_a_pause_waits_for_a_storage_that_is_slow_to_answer(disk: StorageDisk, run: GatedRun) -> None:
    """Longer than after an error, because the preemption leaves an hour; and the checkpoint is kept."""
    with disk.hanging():
        run.gate.allow(3 * CHECKPOINT_PERIOD)
        wait_waiting(run, "does not answer")
        run.client.pause_experiment(run.experiment_id)
        until = time.monotonic() + PREEMPTED_SECONDS + 3.0
        while time.monotonic() < until:
            assert run.trial.allocation is not None, "the trial has stopped without a checkpoint"
            threading.Event().wait(0.5)
    wait_for(lambda: 2 * CHECKPOINT_PERIOD in run.checkpoint_batches(), "the checkpoint under way", SECONDS)
    assert "stopped without a checkpoint" not in log_of(run)
    run.client.kill_experiment(run.experiment_id)


def test_a_kill_does_not_wait_either(disk: StorageDisk, run: GatedRun) -> None:
    with disk.full():
        run.gate.allow(3 * CHECKPOINT_PERIOD)
        wait_waiting(run, "No space left on device")
        run.client.kill_experiment(run.experiment_id)
        view = run.client.wait_experiment(run.experiment_id, 30).trials[0]
        assert view.trial.outcome is Outcome.CANCELED


def test_a_storage_that_hangs_is_named_and_does_not_hang_the_trial(disk: StorageDisk, run: GatedRun) -> None:
    with disk.hanging():
        run.gate.allow(3 * CHECKPOINT_PERIOD)
        wait_waiting(run, "does not answer")
    complete(run)
