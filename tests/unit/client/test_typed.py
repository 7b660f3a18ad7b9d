"""A user's script that uses the SDK passes `mypy --strict`, and the types of both clients are exact."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.source import ROOT

SCRIPT = """
from pathlib import Path
from typing import assert_type

from gangline import AsyncClient, Checkpoint, Client, Experiment, GanglineError, Trial
from gangline.client import AsyncCheckpoint, AsyncExperiment, LogEntry, MetricsEntry
from gangline.domain.state import Outcome


def follow(client: Client) -> list[str]:
    experiment = client.create_experiment({"name": "digits"}, Path("code"), request_id="mine", seed=3)
    assert_type(experiment, Experiment)
    assert_type(experiment.wait(timeout=3, on_progress=lambda view: print(view.experiment.state)), Outcome | None)
    assert_type(experiment.trials(), list[Trial])
    assert_type(experiment.top_checkpoint(), Checkpoint)
    for entry in experiment.metrics("validation", follow=True):
        assert_type(entry, MetricsEntry)
    for each in client.experiments(archived=None):
        each.kill()
    return [line.text for line in client.trial("7.1").logs(level="error", ranks=[0])]


async def follow_async(address: str) -> Path:
    async with AsyncClient(address, retry_seconds=3) as client:
        experiment = await client.experiment(7)
        assert_type(experiment, AsyncExperiment)
        assert_type(await experiment.wait(), Outcome | None)
        async for line in experiment.logs(follow=True):
            assert_type(line, LogEntry)
        async for entry in experiment.metrics():
            assert_type(entry, MetricsEntry)
        async for each in client.experiments():
            assert_type(each, AsyncExperiment)
        best = await experiment.top_checkpoint()
        assert_type(best, AsyncCheckpoint)
        return await best.download("model")


try:
    with Client() as opened:
        follow(opened)
except GanglineError as error:
    print(error.code, error.effect)
"""
# What mypy has to find wrong.
MISTAKES = """
from gangline import AsyncClient, Client

Client().experiment("7")
Client().experiment(7).top_n_checkpoints("2")
Client().experimant(7)
Client().trial("7.1").logs(rank=0)


async def forget(client: AsyncClient) -> str:
    return (await client.experiment(7)).wait()
"""


def _check(folder: Path, source: str) -> str:
    script = folder / "script.py"
    script.write_text(source)
    # Without the configuration of the repository, as in a user's folder.
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(ROOT / ".mypy_cache" / "user"),
    ]
    done = subprocess.run([*command, script.name], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_script_of_a_user_passes(tmp_path: Path) -> None:
    assert _check(tmp_path, SCRIPT) == "Success: no issues found in 1 source file\n"


def test_mistakes_are_found(tmp_path: Path) -> None:
    codes = re.findall(r"error: .*\[([a-z-]+)\]", _check(tmp_path, MISTAKES))
    assert codes == ["arg-type", "arg-type", "attr-defined", "call-arg", "return-value"]
