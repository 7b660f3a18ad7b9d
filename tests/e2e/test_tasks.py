"""Commands on a real cluster, through `gangline cmd` and the published client of Determined."""

from __future__ import annotations

import csv
import io
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.login import HOME_VARIABLE
from tests.support.cluster import COMMAND, Cluster, running_cluster
from tests.support.determined_client import DeterminedClient, determined_client
from tests.support.wait import until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("tasks"), agents=1, slots=2) as running:
        yield running


@pytest.fixture(scope="module")
def det(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeterminedClient]:
    with determined_client(cluster, tmp_path_factory.mktemp("client")) as client:
        yield client


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "data.txt").write_text("of the context\n")
    return folder


def _start(cluster: Cluster, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, *words], env={**os.environ, HOME_VARIABLE: str(cluster.home)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def test_a_command_prints_and_exits_as_it_would_here(cluster: Cluster, context: Path) -> None:
    script = 'cat data.txt; echo "to $WHOM, a $DET_TASK_TYPE" >&2; exit 7'
    done = cluster.run("cmd", "run", "-c", context, "--env", "WHOM=stderr", "--", script, check=False)
    assert (done.returncode, done.stdout) == (7, "of the context\n")
    assert "to stderr, a COMMAND\n" in done.stderr
    assert re.search(r"^error: command \d+: trial \d+\.1 failed: ", done.stderr, re.MULTILINE)
    done = cluster.run("cmd", "run", "--", "echo", "one  word")
    assert done.stdout == "one  word\n"
    assert cluster.run("cmd", "run", "--", "kill -9 $$", check=False).returncode == 128 + signal.SIGKILL


def test_a_command_is_kept_apart_from_trainings_and_has_one_attempt(cluster: Cluster) -> None:
    number = int(cluster.run("cmd", "run", "--detach", "--name", "fails", "--", "exit 3").stdout)
    cluster.run("experiment", "wait", str(number), check=False)
    [task] = [entry for entry in cluster.read("cmd", "list", "--all") if entry["id"] == number]
    assert (task["name"], task["outcome"], task["task_kind"]) == ("fails", "FAILED", "COMMAND")
    assert number not in [entry["id"] for entry in cluster.read("experiment", "list", "--all")]
    assert number not in [entry["id"] for entry in cluster.read("cmd", "list")]
    assert cluster.read("cmd", "describe", str(number))["trials"][0]["trial"]["attempts"] == 1


async def test_interrupted_it_goes_on_until_it_is_killed(cluster: Cluster) -> None:
    running = _start(cluster, "cmd", "run", "--", "echo begun; exec sleep 600")
    assert running.stdout is not None
    assert running.stdout.readline() == "begun\n"
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    [number] = re.findall(r"command (\d+) goes on; read on with: gangline cmd logs -f", errors)
    refused = cluster.run("experiment", "pause", number, check=False)
    assert "cannot be paused; end it with kill" in refused.stderr
    [job] = cluster.read("job", "list")
    assert (job["trial"]["experiment_id"], job["task_kind"]) == (int(number), "COMMAND")
    cluster.run("cmd", "kill", number)
    await until(lambda: cluster.read("cmd", "describe", number)["experiment"]["outcome"] == "CANCELED", "its end", 60)
    assert "begun" in cluster.run("cmd", "logs", number).stdout
    refused = cluster.run("cmd", "kill", "999999", check=False)
    assert refused.returncode == 2


def test_waiting_for_slots_is_that_of_experiments(cluster: Cluster) -> None:
    refused = cluster.run("cmd", "run", "--slots", "3", "--", "true", check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "3 can never fit" in refused.stderr
    held = cluster.run("cmd", "run", "-d", "--slots", "2", "--", "sleep", "600").stdout.strip()
    waits = cluster.run("cmd", "run", "-d", "--priority", "5", "--", "true").stdout.strip()
    assert "needs 1 slot" in cluster.run("job", "explain", waits).stdout
    cluster.run("cmd", "kill", held)
    cluster.run("experiment", "wait", waits)


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.strip())))


async def test_commands_of_determined(det: DeterminedClient, context: Path) -> None:
    said = det.works("cmd", "run", "-c", str(context), "cat", "data.txt")
    assert "of the context" in said
    [task_id] = re.findall(r"det task logs -f (\S+)", said.text)
    assert "of the context" in det.works("task", "logs", task_id)
    assert "of the context" in det.works("cmd", "logs", task_id)
    running = det.works("cmd", "run", "--detach", "--config", "description=sleeps", "sleep", "600").text.strip()
    rows = {row["id"]: row for row in _rows(det.works("cmd", "list", "--csv").text)}
    assert (rows[task_id]["state"], rows[task_id]["exitStatus"]) == ("TERMINATED", "success")
    assert (rows[running]["description"], rows[running]["username"]) == ("sleeps", "admin")
    [described] = _rows(det.works("cmd", "describe", running, "--csv").text)
    assert described["id"] == running
    assert "max_restarts: 0" in det.works("cmd", "config", running)
    det.works("cmd", "set", "priority", running, "9")
    [job] = _rows(det.works("job", "list", "--csv").text)
    assert job["Priority"] == "9"
    [task] = _rows(det.works("task", "list", "--csv").text)
    assert task["Name"].startswith("Command ")
    det.works("cmd", "kill", running)

    def state() -> str:
        return next(row["state"] for row in _rows(det.works("cmd", "list", "--csv").text) if row["id"] == running)

    await until(lambda: state() == "TERMINATED", "the end", 60)
    assert "there is no experiment 999" in det.run("cmd", "describe", "999.00000000-0000-0000-0000-000000000000")
