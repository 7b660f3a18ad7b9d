"""The whole output of commands at 80 columns, compared with the files in golden/.

`GANGLINE_UPDATE_GOLDEN=1 make test ARGS=tests/integration/cli/test_golden.py` writes the files anew; read the
difference before it is committed.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import time
from pathlib import Path
from time import struct_time
from typing import Any

import pytest

import gangline.cli
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2, types_pb2
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import StandInGateway
from tests.support.view import (
    make_agent_view,
    make_allocation,
    make_experiment,
    make_lifecycle,
    make_log,
    make_search,
    make_trial,
)

_GOLDEN = Path(__file__).parent / "golden"
_NOW = 2000.0
_COMMANDS = {
    "status": "status",
    "experiment-list": "experiment list",
    "experiment-list-wide": "experiment list --wide",
    "experiment-describe-search": "experiment describe 1",
    "experiment-describe-waiting": "experiment describe 2",
    "experiment-describe-running": "experiment describe 3",
    "experiment-describe-ended": "experiment describe 4",
    "experiment-trials": "experiment trials 1",
    "experiment-logs": "experiment logs 1",
    "experiment-metrics": "experiment metrics 1",
    "experiment-kill": "experiment kill 3",
    "experiment-kill-unknown": "experiment kill 9",
    "experiment-label": "experiment label add 3 night",
    "experiment-set-priority": "experiment set priority 3 7",
    "experiment-typo": "experiment lst",
    "trial-describe-failed": "trial describe 1.13",
    "trial-metrics": "trial metrics 1.1 --metric loss --group validation",
    "task-list": "task list",
    "job-list": "job list",
    "job-explain": "job explain 2",
    "agent-list": "agent list",
    "slot-list": "slot list",
    "checkpoint-list": "checkpoint list",
    "fusion-list": "fusion list",
    "workspace-list": "workspace list",
    "project-list": "project list",
    "template-list": "template list",
    "top": "top",
}


class _Clock:
    """The module `time` with a time of day that stands still."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def time() -> float:
        return _NOW

    @staticmethod
    def localtime(seconds: float | None = None) -> struct_time:
        return time.localtime(_NOW if seconds is None else seconds)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns without colours, at a time that stands still."""
    for module in pkgutil.walk_packages(gangline.cli.__path__, "gangline.cli."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name, loaded in list(sys.modules.items()):
        if name.startswith("gangline.cli") and getattr(loaded, "time", None) is time:
            monkeypatch.setattr(loaded, "time", _Clock())
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("gangline.cli.output.terminal.is_terminal", lambda: True)


@pytest.fixture
def full(gateway: StandInGateway) -> None:
    search = make_search(40, _NOW)
    gateway.views[1] = [search]
    for number, view in enumerate(make_lifecycle(), 2):
        view.experiment.id = number
        for entry in view.trials:
            entry.trial.id, entry.trial.experiment_id = f"{number}.1", number
        gateway.views[number] = [view]
    gateway.experiments = {number: views[0].experiment for number, views in gateway.views.items()}
    gateway.experiments[5] = make_experiment(
        "TERMINAL",
        "FAILED",
        id=5,
        name="a name that is too long for its column " * 2,
        owner="somebody",
        ended_at=1900.0,
    )
    gateway.progress = {
        1: pb.ExperimentProgress(experiment_id=1, num_trials_ended=13, num_trials_planned=40),
        3: pb.ExperimentProgress(experiment_id=3, num_trials_planned=1, batches_completed=50, batches_total=200),
    }
    reason = types_pb2.Reason(
        code=types_pb2.REASON_CODE_NO_CAPACITY, message="needs 4 slots; 2 are free", eta_at=_NOW + 600,
        would_start_if="2 more slots became free",
    )  # fmt: skip
    request = types_pb2.Request(trial_id="2.1", experiment_id=2, pool="default", slots=4, submitted_at=_NOW - 300)
    gateway.tasks = [
        pb.Task(trial=make_trial(id="3.1"), experiment_name="digits", allocation=make_allocation(("a1", 2), ("a2", 2))),
        pb.Task(
            trial=make_trial("QUEUED", id="2.1"),
            experiment_name="digits",
            request=request,
            reason=reason,
            queue_place=1,
        ),
    ]
    gateway.logs = [make_log(1, "step 1"), make_log(2, "slow", None, "WARNING"), make_log(3, "loss 0.5", 3)]
    points = [
        ingest_pb2.MetricsPoint(
            group="validation", batches_completed=batches, metrics={"loss": 1 / batches, "acc": 0.5}
        )
        for batches in (10, 20, 30)
    ]
    gateway.metrics = [
        pb.StoredMetrics(id=number, trial_id="1.1", at=_NOW, point=point) for number, point in enumerate(points, 1)
    ]
    gateway.agents = [make_agent_view()]
    gateway.checkpoints = [
        types_pb2.Checkpoint(
            id="0b5e6f0e-9f5c-4f0e-8d8e-5f8f5e5a0c0d", trial_id="1.12", experiment_id=1, batches_completed=300,
            file_bytes={"state": 2048}, created_at=_NOW - 300, state=types_pb2.CHECKPOINT_STATE_COMPLETED,
        )
    ]  # fmt: skip
    gateway.fusion = [
        types_pb2.FusionRecord(
            key="0123456789abcdef-01", summary="12.5 M parameters, 4 ranks", bucket_bytes=[1 << 20, 3 << 20],
            total_bytes=48 << 20, steps=24, trial_id="3.1", created_at=_NOW - 60,
        )
    ]  # fmt: skip


@pytest.mark.usefixtures("terminal", "full")
@pytest.mark.parametrize("name", _COMMANDS)
def test_the_output_is_that_of_the_file(cli: Cli, name: str) -> None:
    ran = cli(*_COMMANDS[name].split())
    text = f"$ gangline {_COMMANDS[name]}\n{ran.out}{ran.err}exit status {ran.status}\n"
    file = _GOLDEN / f"{name}.txt"
    if os.environ.get("GANGLINE_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()
    if name.endswith(("list", "trials", "top")):
        assert max(map(len, ran.out.splitlines())) <= 80


def test_every_file_has_a_command() -> None:
    assert {file.stem for file in _GOLDEN.iterdir()} == set(_COMMANDS)
