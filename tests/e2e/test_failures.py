"""Failing trials, through a real cluster: a trial hangs, repeats itself, or its log states why it failed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gangline.client import Client
from gangline.domain.state import ExitKind, Outcome
from gangline.domain.view import ExperimentView
from gangline.errors import GanglineError
from tests.support.cluster import Cluster
from tests.support.failing_trial import failing_config, failing_source, write_code

FIRST = "__import__('gangline').get_cluster_info().attempt == 1"
# The first attempt saves after batch 4 and fails after batch 8. Its loss is the better one.
RESTARTING = """
from gangline import core, get_cluster_info

info = get_cluster_info()
with core.init() as context:
    start = 0
    if info.latest_checkpoint:
        with context.checkpoint.restore_path(getattr(info.latest_checkpoint, "id", info.latest_checkpoint)) as path:
            start = int((path / "batch").read_text())
    for batch in range(start + 1, 11):
        metrics = {"loss": info.attempt - batch / 100}
        context.train.report_training_metrics(batch, metrics)
        context.train.report_validation_metrics(batch, metrics)
        if (batch, info.attempt) == (4, 1):
            with context.checkpoint.store_path({"steps_completed": batch}) as (path, _):
                (path / "batch").write_text(str(batch))
        if (batch, info.attempt) == (8, 1):
            raise RuntimeError("the first attempt fails")
"""
SAY_AND_FAIL = "(print('uncorrectable ECC error', flush=True), [][0])"


@pytest.fixture(scope="module")
def cluster(two_agents: Cluster) -> Cluster:
    return two_agents


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.connect() as connected:
        yield connected


def run_to_end(client: Client, folder: Path, batch: str, **config: Any) -> ExperimentView:
    code = write_code(folder, failing_source(batch=batch))
    created = client.create_experiment(failing_config(**config), code)
    return client.wait_experiment(created.experiment.id, 120)


def test_a_hung_gang_is_told_with_all_stacks_and_goes_on_from_its_checkpoint(client: Client, tmp_path: Path) -> None:
    stand = f"if self.rank == 3 and batch_idx == 5 and {FIRST}: __import__('threading').Event().wait()"
    watch = {"hang_detection": {"seconds": 2, "factor": 1}, "min_checkpoint_period": {"batches": 2}}
    view = run_to_end(client, tmp_path, stand, max_restarts=1, **watch)
    trial = view.trials[0].trial
    assert (trial.outcome, trial.attempts, trial.restarts) == (Outcome.COMPLETED, 2, 1), trial.reason
    failure = trial.last_failure
    assert failure is not None
    assert (failure.kind, failure.rank, failure.batches_completed) == (ExitKind.HANG, 3, 5)
    assert failure.message.startswith("hung: it has stood still after batch 5 in the forward pass for ")
    assert failure.message.endswith(", while others came further")
    assert any("in train_batch" in line for line in failure.last_lines), failure.last_lines
    entries = list(client.stream_logs(view.experiment.id))
    for rank in range(4):
        stacks = [entry.text for entry in entries if entry.rank == rank and entry.stream == "runner"]
        assert any("in train_batch" in line for line in stacks), f"rank {rank}: {stacks}"
    assert any("training goes on after batch 4" in entry.text for entry in entries)


def test_the_same_failure_at_the_same_batch_twice_ends_the_trial(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    fail = "print('batch', batch_idx); assert batch_idx < 3, f'label {__import__(\"os\").getpid()} is out of range'"
    view = run_to_end(client, tmp_path, fail, slots=2, max_restarts=5)
    trial = view.trials[0].trial
    assert (trial.outcome, trial.attempts) == (Outcome.FAILED, 2)
    assert trial.reason.endswith("not tried again, because it is the same failure at batch 3 twice")
    _check_filtered_logs(cluster, client, view.experiment.id)


def test_the_same_failure_of_a_script_that_has_reported_nothing_ends_the_trial(client: Client, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nraise PermissionError(13, f'denied to process {os.getpid()}')\n")
    config = failing_config(slots=1, max_restarts=5, entrypoint="python3 train.py")
    created = client.create_experiment(config, tmp_path)
    trial = client.wait_experiment(created.experiment.id, 90).trials[0].trial
    assert (trial.outcome, trial.attempts) == (Outcome.FAILED, 2)
    assert trial.reason.endswith(
        "not tried again, because it is the same failure before the first reported batch twice"
    )


_NINTH_HOUR = """
import json, pathlib, sys
from gangline import core, get_cluster_info
begin, latest = 0, get_cluster_info().latest_checkpoint
with core.init() as context:
    if latest:
        with context.checkpoint.restore_path(latest.id) as folder:
            begin = json.loads((folder / "step.json").read_text())
    for step in range(begin + 1, 7):
        {bug}
        context.train.report_training_metrics(steps_completed=step, metrics={{"loss": 1 / step}})
        if step == 4:
            with context.checkpoint.store_path({{"steps_completed": step}}) as (folder, _):
                (folder / "step.json").write_text(json.dumps(step))
    context.train.report_validation_metrics(steps_completed=6, metrics={{"loss": begin}})
"""


def test_a_training_that_died_of_its_bug_goes_on_with_the_bug_mended(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(_NINTH_HOUR.format(bug="assert step < 6, 'the bug'"))
    config = {
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "max_restarts": 0,
    }
    number = client.create_experiment(config, code).experiment.id
    assert client.wait_experiment(number, 120).experiment.outcome is Outcome.FAILED
    fetched = tmp_path / "fetched"
    cluster.run("experiment", "code", str(number), "-o", str(fetched))
    assert (fetched / "train.py").read_text() == (code / "train.py").read_text()
    (fetched / "train.py").write_text(_NINTH_HOUR.format(bug="pass"))
    followed = cluster.run("experiment", "continue", str(number), str(fetched), "--follow", seconds=120).stdout
    assert re.search(rf"^experiment {number} .*: COMPLETED after ", followed, re.MULTILINE), followed
    view = client.get_experiment(number)
    trial = view.trials[0].trial
    assert (trial.outcome, trial.id) == (Outcome.COMPLETED, f"{number}.1"), trial.reason
    assert trial.best_validation == 4, "it began from the checkpoint of step 4"
    for version, bug in ((1, "assert step < 6"), (2, "pass"), (0, "pass")):
        folder = tmp_path / f"version{version}"
        client.download_code(number, folder, version)
        assert bug in (folder / "train.py").read_text()
    with pytest.raises(GanglineError, match=r"has no version 3 of its code; it has 1 to 2"):
        client.download_code(number, tmp_path / "none", 3)
    assert not (tmp_path / "none").exists()


def _check_filtered_logs(cluster: Cluster, client: Client, experiment_id: int) -> None:
    """Checks that the commands select the errors and the tracebacks of one rank, among the other lines that it
    printed."""
    entries = list(client.stream_logs(experiment_id))
    assert {entry.level for entry in entries if entry.stream == "stdout" and entry.text.startswith("batch ")} == {
        "INFO"
    }

    def logs(*options: str) -> list[str]:
        return cluster.run("experiment", "logs", str(experiment_id), *options).stdout.splitlines()

    assert len(logs()) == len(entries)
    # The rank that fails first may end before the other has said why.
    rank = next(entry.rank for entry in entries if entry.level == "ERROR" and "is out of range" in entry.text)
    errors = logs("--level", "error", "--rank", str(rank), "--since", "1h")
    assert errors
    assert all(" ERROR [" in line and f" rank {rank}] " in line for line in errors), errors
    assert any("Traceback (most recent call last):" in line for line in errors)
    assert any("is out of range" in line for line in errors)
    agents = {entry.agent_id for entry in entries}
    for agent in agents:
        assert len(logs("--agent", agent)) == sum(entry.agent_id == agent for entry in entries)
    assert (
        logs("--grep", "^batch [01]$", "--tail", "2")
        == [line for line in logs() if "] batch 1" in line or "] batch 0" in line][-2:]
    )
    assert logs("--until", "1h") == []


def test_a_log_policy_keeps_a_trial_off_an_agent(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    policy = {"name": "ecc", "pattern": "uncorrectable ECC", "action": "exclude_node"}
    fail = f"if batch_idx == 2 and {FIRST}: {SAY_AND_FAIL}"
    view = run_to_end(client, tmp_path, fail, slots=1, max_restarts=1, log_policies=[policy])
    trial = view.trials[0].trial
    assert (trial.outcome, trial.attempts) == (Outcome.COMPLETED, 2), trial.reason
    [(agent, why)] = trial.excluded_agents.items()
    assert trial.last_failure is not None
    assert trial.last_failure.agent_id == agent
    assert why == "log policy 'ecc' matched on rank 0: uncorrectable ECC error"
    described = cluster.run("trial", "describe", trial.id).stdout
    assert f"not again on {agent}: {why}" in described
    reports = [path.parts[-4] for path in cluster.layout.root.glob(f"agents/*/ended/{trial.id}.2/exit.json")]
    assert reports
    assert agent not in reports


def test_a_log_policy_ends_a_trial_at_its_first_failure(client: Client, tmp_path: Path) -> None:
    policy = {"pattern": "uncorrectable ECC", "action": {"type": "cancel_retries"}}
    fail = f"if batch_idx == 2: {SAY_AND_FAIL}"
    trial = run_to_end(client, tmp_path, fail, slots=1, max_restarts=5, log_policies=[policy]).trials[0].trial
    assert (trial.outcome, trial.attempts) == (Outcome.FAILED, 1)
    assert trial.reason.endswith(
        "not tried again, because log policy 'uncorrectable ECC' matched on rank 0: uncorrectable ECC error"
    )


def test_every_view_of_a_restarted_trial_has_one_report_for_each_batch(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    """The newest attempt's; those of other attempts are there for readers who ask for them."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(RESTARTING)
    config = {
        "entrypoint": "python3 train.py",
        "max_restarts": 1,
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 10}},
    }
    number = client.create_experiment(yaml.safe_dump(config), code).experiment.id
    trial = client.wait_experiment(number, 60).trials[0].trial
    assert (trial.outcome, trial.attempts) == (Outcome.COMPLETED, 2), trial.reason
    now = [(batch, 1) for batch in range(1, 5)] + [(batch, 2) for batch in range(5, 11)]
    first, second = [(batch, 1) for batch in range(1, 9)], [(batch, 2) for batch in range(5, 11)]

    def rows(attempt: int | None) -> list[tuple[int, int]]:
        entries = client.stream_metrics(number, group="validation", attempt=attempt)
        return [(entry.point.batches_completed, entry.attempt) for entry in entries]

    for attempt, expected in ((None, now), (0, [*first, *second]), (1, first), (2, second)):
        assert rows(attempt) == expected
        series = client.get_metric_series(trial.id, "loss", attempt=attempt)
        assert [point.batches_completed for point in series.points] == [batch for batch, _ in expected]
        assert [point.value for point in series.points] == pytest.approx([of - batch / 100 for batch, of in expected])
    # The best value of the first attempt was 1 - 8 / 100, of a model that is no longer trained.
    assert trial.best_validation == pytest.approx(1 - 4 / 100)
    assert trial.best_validation_batches == 4
    headers = {"Authorization": f"Bearer {cluster.login.token}"}
    answers = {
        path: httpx.get(f"{cluster.http_url}/api/v1/trials/{path}", headers=headers, timeout=30).json()
        for path in (f"{trial.id}/metrics?group=validation", f"{trial.id}/metrics?group=validation&attempt=0")
    }
    told = [
        [(row["point"]["batchesCompleted"], row["attempt"]) for row in each["metrics"]] for each in answers.values()
    ]
    assert told == [now, [*first, *second]]
    lines = cluster.run("trial", "metrics", trial.id, "--group", "validation").stdout.splitlines()
    assert len(lines) == len(now)
    lines = cluster.run("trial", "metrics", trial.id, "--group", "validation", "--all-attempts").stdout.splitlines()
    assert [line.split()[1:3] for line in lines] == [["attempt", str(of)] for _, of in (*first, *second)]
