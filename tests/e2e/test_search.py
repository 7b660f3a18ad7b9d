"""A search on a real cluster: a grid of four trials on two slots, and an experiment that is paused and goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gangline import custom_search
from gangline.domain.state import Outcome, State
from gangline.domain.view import ExperimentView
from gangline.errors import GanglineError
from tests.support.cluster import Cluster
from tests.support.gated_trial import NUM_BATCHES, Gate


@pytest.fixture(scope="module")
def cluster(one_agent: Cluster) -> Cluster:
    return one_agent


def _holding(view: ExperimentView) -> set[str]:
    return {trial.trial.id for trial in view.trials if trial.allocation is not None}


def test_grid_of_four_completes_two_at_a_time(cluster: Cluster, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "grid")
    points = {"type": "double", "minval": 0.0, "maxval": 0.3, "count": 4}
    config = gate.config(
        slots=1,
        hyperparameters={"global_batch_size": 2, "gate": str(gate.folder), "rate": points},
        searcher={"name": "grid", "metric": "error", "max_length": {"batches": NUM_BATCHES}},
    )
    with cluster.connect() as client:
        number = client.create_experiment(config, gate.code).experiment.id
        for first in (f"{number}.1.1", f"{number}.2.1"):
            gate.wait_at(first, 0, num_ranks=1)
        view = client.get_experiment(number)
        assert _holding(view) == {f"{number}.1", f"{number}.2"}
        assert all(trial.reason is not None for trial in view.trials[2:])
        gate.allow(NUM_BATCHES)
        seen = [_holding(view) for view in client.watch_experiment(number, 120)]
        view = client.get_experiment(number)
        assert max(len(trial_ids) for trial_ids in seen) == 2
        assert (view.experiment.outcome, view.experiment.reason) == (Outcome.COMPLETED, "all 4 trials completed")
        rates = [json.loads(trial.trial.hyperparameters_json)["rate"] for trial in view.trials]
        assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])
        assert all(trial.trial.best_validation is not None for trial in view.trials)
    table = cluster.run("experiment", "trials", str(number)).stdout.splitlines()
    assert [line.split()[1] for line in table[1:]] == ["COMPLETED"] * 4
    assert sum(line.endswith("*") for line in table) == 1


def test_paused_trial_goes_on_from_its_checkpoint(cluster: Cluster, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "pause")
    gate.allow(2)
    with cluster.connect() as client:
        number = client.create_experiment(gate.config(slots=2), gate.code).experiment.id
        # The ranks take no checkpoint, and do not end, before the gate lets them go on.
        gate.wait_at(f"{number}.1.1", 2, num_ranks=2)
        assert cluster.run("experiment", "pause", str(number)).stdout == f"experiment {number} gated: PAUSED\n"
        ending = "2 slots until its ranks end"
        assert f"PAUSED, {ending}" in cluster.run("experiment", "list").stdout
        assert f"PAUSED, stopping: {ending}" in cluster.run("experiment", "describe", str(number)).stdout
        with pytest.raises(GanglineError, match=r"still holds slots after 0\.1 s"):
            client.experiment(number).wait_released(0.1)
        gate.allow(NUM_BATCHES)
        waited = cluster.run("experiment", "pause", "--wait", str(number))
        assert waited.stderr == f"experiment {number}: its slots are free\n"
        view = client.get_experiment(number)
        saved = view.trials[0].trial.batches_completed
        assert view.experiment.state is State.PAUSED
        assert 0 < saved < NUM_BATCHES
        assert client.get_cluster().num_slots_used == 0
        described = cluster.run("experiment", "describe", str(number)).stdout
        assert f"it is activated: gangline experiment activate {number}" in described
        client.activate_experiment(number)
        trial = client.wait_experiment(number, 90).trials[0].trial
        assert (trial.outcome, trial.attempts, trial.restarts) == (Outcome.COMPLETED, 2, 0)
        log_lines = [entry.text for entry in client.stream_logs(number) if entry.rank == 0]
        batches = [int(line.split()[3]) for line in log_lines if line.startswith("attempt")]
        assert batches == list(range(1, NUM_BATCHES + 1))
        assert f"attempt 2 batch {saved + 1}" in log_lines


def test_an_experiment_is_planned_tried_held_back_forked_and_chosen_by_its_label(
    cluster: Cluster, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "life")
    gate.allow(NUM_BATCHES)
    file = gate.code / "exp.yaml"
    file.write_text(gate.config(slots=1, labels=["life"], checkpoint_policy="all"))

    tried = cluster.run("experiment", "create", "--test", str(file))
    assert "test passed: COMPLETED" in tried.stdout
    assert re.search(r"validation: yes; checkpoints: \d+; resumed: yes\n", tried.stdout)
    longer = ("--config", "searcher.max_length.batches=3600")
    # Code that cannot resume is seen now, and not at the first failure.
    model = gate.code / "model_def.py"
    source = model.read_text()
    model.write_text(source + "\nassert get_cluster_info().latest_checkpoint is None, 'cannot resume'\n")
    failed = cluster.run("experiment", "create", "--test", str(file), check=False)
    assert failed.returncode == 1
    assert "test FAILED: FAILED: " in failed.stdout
    assert re.search(r"validation: yes; checkpoints: \d+; resumed: NO\n", failed.stdout)
    model.write_text(source)
    planned = cluster.run("experiment", "create", "--dry-run", str(file), *longer)
    assert "cost: about " in planned.stdout
    assert "slot-hours, 1 slot a trial, at the pace of trial " in planned.stdout
    with cluster.connect() as client:
        num_experiments = len(client.list_experiments(archived=None))
        held = client.create_experiment(file, overrides={"searcher.max_length.batches": 1}, is_paused=True)
        assert held.reload().state is State.PAUSED
        assert client.get_experiment(held.id).trials[0].allocation is None
        forked = held.fork({"labels": ["life", "fork"], "searcher.max_length.batches": 2})
        assert client.wait_experiment(forked.id, 60).experiment.outcome is Outcome.COMPLETED
        assert (forked.record.forked_from, forked.record.code_sha256) == (held.id, held.record.code_sha256)
        assert held.reload().state is State.PAUSED
        held.activate()
        assert client.wait_experiment(held.id, 60).trials[0].trial.batches_completed == 1
        continued = cluster.run("experiment", "continue", str(held.id), "--config", "searcher.max_length.batches=3")
        assert continued.stdout.startswith(f"experiment {held.id} gated continues\n")
        (trial,) = (view.trial for view in client.wait_experiment(held.id, 60).trials)
        assert (trial.batches_completed, trial.attempts, trial.outcome) == (3, 2, Outcome.COMPLETED)
        archived = cluster.run("experiment", "archive", "--label", "life", "--yes").stdout
        assert archived.splitlines() == [
            f"experiment {number} gated: COMPLETED, archived" for number in (held.id, forked.id)
        ]
        assert len(client.list_experiments(archived=None)) == num_experiments + 2, "nothing else was created"


class Halving(custom_search.SearchMethod):
    """Three trials; the worst of the first validations is closed, and the best rate comes once more, halved.

    num_events: after so many events the process ends, as if it was killed; None for never.
    """

    def __init__(self, num_events: int | None = None) -> None:
        self._left = num_events
        self._rates = [0.4, 0.2, 0.1]
        self._errors: dict[int, float] = {}
        self._num_closed = 0

    def initial_operations(self) -> list[custom_search.Operation]:
        return [custom_search.Create(self._point(rate)) for rate in self._rates]

    def on_validation_completed(self, trial: int, metric: float, units: float | None) -> list[custom_search.Operation]:
        self._count()
        if trial > 3 or trial in self._errors:
            return []
        self._errors[trial] = metric
        if len(self._errors) < 3:
            return []
        worst, best = max(self._errors, key=self._key), min(self._errors, key=self._key)
        return [custom_search.Close(worst), custom_search.Create(self._point(self._rates[best - 1] / 2))]

    def on_trial_closed(self, trial: int, metric: float | None, outcome: Outcome) -> list[custom_search.Operation]:
        self._count()
        self._num_closed += 1
        return [custom_search.ShutDown()] if self._num_closed == 4 else []

    def _key(self, trial: int) -> tuple[float, int]:
        return self._errors[trial], trial

    def _count(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise InterruptedError

    def _point(self, rate: float) -> dict[str, object]:
        return {"global_batch_size": 2, "gate": self.gate, "rate": rate}

    gate = ""


def test_a_custom_search_goes_on_in_another_process_where_the_first_one_ended(cluster: Cluster, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "custom")
    gate.allow(NUM_BATCHES)
    Halving.gate = str(gate.folder)
    length = {"batches": NUM_BATCHES}
    config = gate.config(slots=1, searcher={"name": "custom", "metric": "error", "max_length": length})
    with cluster.connect() as client:
        number = client.create_experiment(config, gate.code).experiment.id
        for num_events in (0, 2):
            with pytest.raises(InterruptedError):
                custom_search.run(client, number, Halving(num_events))
        custom_search.run(client, number, Halving())
        view = client.wait_experiment(number, 60)
        assert view.experiment.outcome is Outcome.COMPLETED
        rates = [json.loads(trial.trial.hyperparameters_json)["rate"] for trial in view.trials]
        assert rates[:3] == [0.4, 0.2, 0.1]
        assert rates[3] in (0.2, 0.1, 0.05)
        assert len(rates) == 4

        class Other(Halving):
            def initial_operations(self) -> list[custom_search.Operation]:
                return [custom_search.Create({"rate": 7})]

        with pytest.raises(GanglineError, match=r"post 0 of the search of experiment .* is not what this method asks"):
            custom_search.run(client, number, Other())
