"""An urgent experiment takes the place of a running one, with real processes: that one saves what it has, waits, and
goes on where it was, though it may not restart once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.domain.state import Outcome, State
from tests.support.cluster import Cluster, running_cluster
from tests.support.gated_run import GatedRun, gated_run
from tests.support.gated_trial import NUM_BATCHES, NUM_RANKS, Gate, wait_for

POOLS = '[[resource_pools]]\npool_name = "default"\nscheduler = { preemption = true }\n'
SECONDS = 120.0
LONG = 100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("preempt"), scheduler_settings=POOLS) as running:
        yield running


def test_the_preempted_one_resumes_from_its_checkpoint_and_completes(cluster: Cluster, tmp_path: Path) -> None:
    urgent = Gate(tmp_path / "urgent")
    urgent.allow(NUM_BATCHES)
    length = {"name": "single", "metric": "error", "max_length": {"batches": LONG}}
    with gated_run(cluster, tmp_path, max_restarts=0, searcher=length, min_checkpoint_period={"batches": 1000}) as run:
        # Nothing holds it up but its pace, so that it can be stopped between any two batches.
        run.gate.pace(0.6)
        run.gate.allow(LONG)
        run.wait_at(3)
        config = urgent.config(resources={"slots_per_trial": NUM_RANKS, "priority": 1})
        created = run.client.create_experiment(config, urgent.code).experiment
        wait_for(lambda: run.trial.trial.attempts == 1 and run.trial.trial.state is State.QUEUED, "its stop", SECONDS)
        stopped = run.trial.trial
        assert (stopped.restarts, stopped.infrastructure_failures) == (0, 0)
        assert stopped.reason == f"makes room for trial {created.id}.1"
        assert run.checkpoint_batches() == [stopped.batches_completed]
        assert 3 <= stopped.batches_completed < LONG
        run.gate.pace(0)
        ended = run.client.wait_experiment(created.id, SECONDS)
        assert ended.experiment.outcome is Outcome.COMPLETED
        assert ended.trials[0].trial.attempts == 1
        trial = run.client.wait_experiment(run.experiment_id, SECONDS).trials[0].trial
        assert (trial.outcome, trial.attempts, trial.restarts) == (Outcome.COMPLETED, 2, 0), trial
        _check_went_on(run, stopped.batches_completed)
        run.check_aftermath()


def _check_went_on(run: GatedRun, saved: int) -> None:
    """No batch is lost and none is trained twice: the second attempt begins where the first one saved."""
    first = [f"attempt 1 batch {batch}" for batch in range(1, saved + 1)]
    second = [f"attempt 2 batch {batch}" for batch in range(saved + 1, LONG + 1)]
    wanted = dict.fromkeys(range(NUM_RANKS), first + second)
    wait_for(lambda: run.lines() == wanted, f"each batch once, not {run.lines()}", SECONDS)
