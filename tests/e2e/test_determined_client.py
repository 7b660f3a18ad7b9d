"""The published client of Determined against a real cluster: its commands and its SDK, with one address changed."""

from __future__ import annotations

import csv
import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster
from tests.support.determined_client import DeterminedClient, determined_client
from tests.support.gated_trial import wait_for
from tests.support.wait import until

CONFIG = """
name: lab
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 5}}
hyperparameters: {lr: 0.1}
resources: {slots_per_trial: 1}
max_restarts: 0
"""
TRAIN = """
import logging
import math
import pathlib
import determined as det

logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
with det.core.init() as core:
    is_new = det.get_cluster_info().latest_checkpoint is None
    assert core.train.get_metadata() == (None if is_new else {"phase": "second", "sizes": [1, 2]})
    assert (core.train.get_experiment_best_validation() is None) == is_new
    core.train.set_metadata({"phase": "first"})
    core.train.set_metadata({"phase": "second", "sizes": [1, 2]})
    assert core.train.get_metadata() == {"phase": "second", "sizes": [1, 2]}
    for operation in core.searcher.operations():
        for batch in range(1, operation.length + 1):
            values = {"note": "batch %d" % batch, "by_class": [batch, math.nan], "at": {"lr": 0.1}}
            numbers = {"loss": 1 / batch, "odd": math.nan, "huge": "x" * 100_000}
            core.train.report_training_metrics(steps_completed=batch, metrics={**numbers, **values})
        with core.checkpoint.store_path({"steps_completed": batch}) as (path, uuid):
            pathlib.Path(path, "weights").write_text("w" * 100_000)
        core.train.report_validation_metrics(steps_completed=batch, metrics={"loss": 1 / batch, "odd": math.inf})
        assert core.train.get_experiment_best_validation() == 1 / batch
        operation.report_completed(1 / batch)
    logging.info("trained to %d", batch)
"""
WAIT = "import time\nprint('waits now', flush=True)\nwhile True: time.sleep(1)\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("det"), agents=1, slots=2) as running:
        yield running


@pytest.fixture(scope="module")
def det(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeterminedClient]:
    with determined_client(cluster, tmp_path_factory.mktemp("client")) as client:
        yield client


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    (folder / "exp.yaml").write_text(CONFIG)
    (folder / "train.py").write_text(TRAIN)
    (folder / "wait.yaml").write_text(CONFIG.replace("train.py", "wait.py").replace("name: lab", "name: waits"))
    (folder / "wait.py").write_text(WAIT)
    return folder


@pytest.fixture(scope="module")
def done(det: DeterminedClient, lab: Path) -> str:
    """An experiment that was created and followed to its end."""
    said = det.works("experiment", "create", str(lab / "exp.yaml"), str(lab), "-f", "--config", "name=done")
    assert "trained to 5" in said
    [number] = re.findall(r"Created experiment (\d+)", said.text)
    return str(number)


def _csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.strip())))


def test_the_end_of_an_experiment_is_what_it_shows(
    det: DeterminedClient, done: str, cluster: Cluster, tmp_path: Path
) -> None:
    [entry] = [row for row in _csv(det.works("experiment", "list", "--csv").text) if row["ID"] == done]
    assert (entry["Owner"], entry["Name"], entry["State"]) == ("admin", "done", "COMPLETED")
    assert det.works("experiment", "wait", done).code == 0
    [trial] = _csv(det.works("experiment", "list-trials", done, "--csv").text)
    assert (trial["Trial ID"], trial["State"], trial["# of Batches"]) == (f"{done}00001", "COMPLETED", "5")
    described = json.loads(det.works("experiment", "describe", done, "--json").text)
    assert described[0]["config"]["hyperparameters"] == {"lr": 0.1}
    assert "train.py" in described[0]["config"]["entrypoint"]
    logs = det.works("experiment", "logs", done)
    assert "trained to 5" in logs
    assert det.works("trial", "logs", "--tail", "1", trial["Trial ID"]).text.count("||") == 1
    workloads = json.loads(det.works("trial", "describe", trial["Trial ID"], "--json").text)["workloads"]
    losses = [each["training"]["metrics"]["avgMetrics"]["loss"] for each in workloads if each.get("training")]
    assert losses == [1 / batch for batch in range(1, 6)]
    others = [
        {name: value for name, value in each["training"]["metrics"]["avgMetrics"].items() if name != "loss"}
        for each in workloads
        if each.get("training")
    ]
    assert others == [
        {"odd": "NaN", "note": f"batch {batch}", "by_class": [batch, "NaN"], "at": {"lr": 0.1}} for batch in range(1, 6)
    ]
    assert logs.text.count("metric huge is larger than 64 KiB as JSON; it is not recorded") == 1
    shown = cluster.run("trial", "describe", f"{done}.1").stdout
    assert 'metadata: {"phase": "second", "sizes": [1, 2]}' in shown
    described = json.loads(cluster.run("trial", "describe", f"{done}.1", "--json").stdout)
    assert described["trial"]["metadata"] == {"phase": "second", "sizes": [1, 2]}
    det.works("experiment", "download-model-def", done, "--output-dir", str(tmp_path))
    with tarfile.open(tmp_path / f"experiment_{done}_model_def.tgz") as code:
        assert {"train.py", "exp.yaml"} <= set(code.getnames())


def test_checkpoints_are_listed_described_and_downloaded(det: DeterminedClient, done: str, tmp_path: Path) -> None:
    [entry] = _csv(det.works("experiment", "list-checkpoints", done, "--best", "1", "--csv").text)
    assert (entry["# of Batches"], entry["State"], entry["Validation Metric"]) == ("5", "COMPLETED", "0.2")
    uuid = entry["UUID"]
    assert uuid in det.works("checkpoint", "describe", uuid)
    for mode in ("master", "auto"):
        det.works("checkpoint", "download", uuid, "-o", str(tmp_path / mode), "--mode", mode)
        assert (tmp_path / mode / "weights").read_text() == "w" * 100_000
    # Without a pattern it deletes nothing, and single files of a checkpoint stay.
    det.works("checkpoint", "rm", uuid, "--yes")
    assert "det checkpoint delete" in det.run("checkpoint", "rm", uuid, "--glob", "w*", "--yes")
    assert uuid in det.works("experiment", "list-checkpoints", done, "--csv")
    assert [uuid] == [path.name for path in _downloaded(det, done, tmp_path / "all")]


def _downloaded(det: DeterminedClient, number: str, folder: Path) -> list[Path]:
    det.works("experiment", "download", number, "-o", str(folder))
    return list(folder.iterdir())


def test_what_an_experiment_keeps_is_changed_after_its_end(det: DeterminedClient, lab: Path, cluster: Cluster) -> None:
    said = det.works("experiment", "create", str(lab / "exp.yaml"), str(lab), "-f", "--config", "name=kept")
    [number] = re.findall(r"Created experiment (\d+)", said.text)
    policy = ("--save-experiment-best", "0", "--save-trial-best", "0", "--save-trial-latest", "0")
    # There is no terminal to answer its question.
    asked = det.run("experiment", "set", "gc-policy", number, *policy)
    assert "delete 0 checkpoints with validations and 1 checkpoints without" in " ".join(asked.text.split())
    with cluster.connect() as client:
        assert len(client.list_checkpoints(int(number))) == 1
        det.works("experiment", "set", "gc-policy", number, *policy, "--yes")
        wait_for(lambda: not client.list_checkpoints(int(number)), "the end of the checkpoint")
        for words, days in ((("experiment", number, "7"), 7), (("trial", f"{number}00001", "9"), 9)):
            det.works(words[0], "set", "log-retention", words[1], "--days", words[2])
            config = client.experiment(int(number)).config
            assert config["retention_policy"]["log_retention_days"] == days


async def test_every_action_on_a_running_experiment(det: DeterminedClient, lab: Path) -> None:
    said = det.works("experiment", "create", str(lab / "wait.yaml"), str(lab), "--paused")
    [number] = re.findall(r"Created experiment (\d+)", said.text)

    def state() -> str:
        return next(row["State"] for row in _csv(det.works("experiment", "list", "--csv").text) if row["ID"] == number)

    assert state() == "PAUSED"
    det.works("experiment", "activate", number)
    await until(lambda: state() == "RUNNING", "the trial", 60)
    for words in (("priority", "30"), ("weight", "2"), ("max-slots", "2"), ("name", "renamed"), ("description", "x")):
        det.works("experiment", "set", words[0], number, words[1])
    det.works("experiment", "label", "add", number, "red")
    det.works("job", "update", number, "--priority", "10")
    [job] = _csv(det.works("job", "list", "--csv").text)
    assert (job["ID"], job["Job Name"], job["Priority"]) == (number, f"renamed ({number})", "10")
    [task] = _csv(det.works("task", "list", "--csv").text)
    assert (task["Name"], task["Slots Needed"], task["Agent"]) == (f"Trial {number}.1 (renamed)", "1", "agent-1")
    assert "waits now" in det.works("task", "logs", task["Task ID"])
    slots = _csv(det.works("slot", "list", "--csv").text)
    assert sorted(slot["Allocation ID"] for slot in slots) == sorted([f"{number}.1.1", "FREE"])
    det.works("trial", "kill", f"{number}00001")
    det.works("experiment", "kill", number)
    await until(lambda: state() == "CANCELED", "the end", 60)
    det.works("experiment", "archive", number)
    assert number not in [row["ID"] for row in _csv(det.works("experiment", "list", "--csv").text)]
    det.works("experiment", "unarchive", number)
    det.works("experiment", "delete", number, "--yes")
    refused = det.run("experiment", "pause", number)
    assert refused.code == 1
    assert "Failed to pause experiment" in refused


def test_agents_and_slots_are_switched(det: DeterminedClient) -> None:
    [agent] = _csv(det.works("agent", "list", "--csv").text)
    assert (agent["Agent ID"], agent["Slots"], agent["Enabled"]) == ("agent-1", "2", "True")
    det.works("slot", "disable", "agent-1", "0")
    assert [slot["Enabled"] for slot in _csv(det.works("slot", "list", "--csv").text)] == ["False", "True"]
    det.works("slot", "enable", "agent-1", "0")
    det.works("agent", "disable", "agent-1", "--drain")
    assert {slot["Enabled"] for slot in _csv(det.works("slot", "list", "--csv").text)} == {"False"}
    assert [agent["Draining"] for agent in _csv(det.works("agent", "list", "--csv").text)] == ["True"]
    det.works("agent", "enable", "agent-1")
    assert "default" in det.works("agent", "list")


def test_workspaces_projects_and_templates(det: DeterminedClient, lab: Path, done: str, tmp_path: Path) -> None:
    det.works("workspace", "create", "w")
    det.works("project", "create", "w", "p", "--description", "d")
    [project] = json.loads(det.works("workspace", "list-projects", "w", "--json").text)
    det.works("experiment", "move", done, "w", "p")
    assert done in det.works("project", "list-experiments", "w", "p")
    det.works("experiment", "move", done, "Uncategorized", "Uncategorized")
    said = det.works(
        "experiment", "create", str(lab / "exp.yaml"), str(lab), "--project_id", str(project["id"]), "--paused"
    )
    [number] = re.findall(r"Created experiment (\d+)", said.text)
    assert number in det.works("project", "list-experiments", "w", "p")
    det.works("experiment", "cancel", number)
    det.works("project", "archive", "w", "p")
    det.works("project", "unarchive", "w", "p")
    det.works("workspace", "edit", "w", "--name", "v")
    assert "v" in det.works("workspace", "list")
    template = tmp_path / "t.yaml"
    template.write_text("resources: {slots_per_trial: 2}\n")
    det.works("template", "create", "t", str(template))
    det.works("template", "set", "t", str(template))
    assert "slots_per_trial: 2" in det.works("template", "describe", "t")
    det.works("template", "remove", "t")


def test_a_configuration_is_previewed_tested_and_refused_in_one_line(det: DeterminedClient, lab: Path) -> None:
    asha = lab / "asha.yaml"
    searcher = "{name: adaptive_asha, metric: loss, max_trials: 8, max_length: {batches: 64}}"
    asha.write_text(re.sub(r"searcher: .*", f"searcher: {searcher}", CONFIG))
    assert "64" in det.works("preview-search", str(asha))
    assert "Model definition test succeeded" in det.works(
        "experiment", "create", str(lab / "exp.yaml"), str(lab), "--test"
    )
    refused = det.run(
        "experiment", "create", str(lab / "exp.yaml"), str(lab), "--config", "resources.slots_per_trial=-1"
    )
    assert refused.code == 1
    assert "resources.slots_per_trial" in refused


def test_an_experiment_continues(det: DeterminedClient, lab: Path) -> None:
    said = det.works("experiment", "create", str(lab / "exp.yaml"), str(lab), "-f")
    [number] = re.findall(r"Created experiment (\d+)", said.text)
    det.works("experiment", "continue", number, "--config", "searcher.max_length.batches=8", "-f")
    det.works("experiment", "wait", number)
    assert "8" in [
        row["# of Batches"] for row in _csv(det.works("experiment", "list-checkpoints", number, "--csv").text)
    ]


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        ("tensorboard start 1", "gangline tensorboard"),
        ("model list", "gangline model --help"),
        ("master config show", "docs/cluster.md"),
        ("workspace list-pools Uncategorized", "gangline agent list"),
        ("experiment delete-tb-files 1", "gangline experiment delete"),
        ("master logs", "docs/operation.md"),
        ("user deactivate admin", "docs/cluster.md"),
        ("user create x --remote", "single sign-on"),
        (
            "user link-with-agent-user admin --agent-uid 1 --agent-gid 1 --agent-user x --agent-group y",
            "docs/from-determined.md",
        ),
        ("resources raw 2026-01-01T00:00:00Z 2026-01-02T00:00:00Z", "gangline usage"),
    ],
)
def test_what_is_not_there_names_what_is(det: DeterminedClient, words: str, way_out: str) -> None:
    said = det.run(*words.split())
    assert said.code == 1, said.text
    assert way_out in said
    assert "Traceback" not in said


def test_who_one_is(det: DeterminedClient) -> None:
    assert "admin" in det.works("user", "whoami")
    assert "admin" in det.works("user", "list")
    assert "cluster_id" in det.works("version")
    assert "clusterId" in det.works("master", "info")


def test_users_have_passwords_and_tokens_of_their_own(det: DeterminedClient, lab: Path) -> None:
    password, new_password = "Password-of-ann-1", "Password-of-ann-2"
    det.works("user", "create", "ann", "--password", password)
    det.works("user", "login", "ann", passwords=[password])
    assert "logged in as user 'ann'" in det.works("-u", "ann", "user", "whoami")
    det.works("-u", "ann", "user", "change-password", passwords=[new_password, new_password])
    assert det.run("user", "login", "ann", passwords=[password]).code == 1
    det.works("user", "login", "ann", passwords=[new_password])
    det.works("-u", "ann", "user", "edit", "ann", "--display-name", "Ann")
    assert det.run("-u", "ann", "user", "create", "eve", "--password", password).code == 1
    said = det.works("-u", "ann", "experiment", "create", str(lab / "exp.yaml"), str(lab), "--paused")
    [number] = re.findall(r"Created experiment (\d+)", said.text)
    [entry] = [row for row in _csv(det.works("experiment", "list", "--all", "--csv").text) if row["ID"] == number]
    assert entry["Owner"] == "ann"
    made = json.loads(det.works("-u", "ann", "token", "create", "-e", "2", "-d", "ci", "--json").text)
    assert "ci" in det.works("-u", "ann", "token", "list")
    det.works("token", "revoke", str(made["tokenId"]))
    assert "ci" not in det.works("-u", "ann", "token", "list")
    assert "gangline user edit --display-name" in det.run("user", "rename", "ann", "anne")
    det.works("experiment", "kill", number)

    det.works("user", "create", "bob", "--password", password, "--admin")
    det.works("user", "rename", "bob", "rob")
    det.works("user", "edit", "rob", "--admin", "false")
    det.works("user", "login", "rob", passwords=[password])
    det.works("user", "deactivate", "rob")
    refused = det.run("-u", "rob", "user", "whoami", passwords=[password])
    assert refused.code == 1
    assert "deactivated" in refused
    assert "rob" not in det.works("user", "list")
    assert "rob" in det.works("user", "list", "--all")
    det.works("user", "activate", "rob")
    det.works("user", "login", "rob", passwords=[password])
    det.works("-u", "rob", "user", "logout")
    assert "admin" in det.works("user", "whoami")


SDK = """
from determined.experimental import client

client.login(master=None, user="{user}", password="{password}")
experiment = client.create_experiment(config="{lab}/exp.yaml", model_dir="{lab}")
assert experiment.wait() == client.ExperimentState.COMPLETED
[trial] = experiment.list_trials()
checkpoint = trial.list_checkpoints()[0]
print("best", experiment.list_checkpoints(max_results=1)[0].uuid == checkpoint.uuid)
print("lines", sum("trained to" in line for line in trial.logs()))
print("training", [round(each.metrics["loss"], 2) for each in trial.iter_metrics("training")])
from determined.common.api import bindings
print("metadata", bindings.get_GetRunMetadata(client._determined._session, runId=trial.id).metadata)
print("notes", [each.metrics["note"] for each in trial.iter_metrics("training")])
print("validation", [each.metrics["loss"] for each in trial.iter_metrics("validation")])
print("file", len(open(checkpoint.download() + "/weights").read()))
print("same", client.get_experiment(experiment.id).name, client.get_trial(trial.id).state.name)
print("ids", experiment.id in [each.id for each in client.list_experiments()])
experiment.set_name("from the SDK")
experiment.add_label("blue")
experiment.reload()
print("texts", experiment.name, sorted(experiment.labels))
experiment.archive()
workspace = client.create_workspace("sdk")
print("workspace", client.get_workspace("sdk").id == workspace.id)
"""


def test_the_sdk(det: DeterminedClient, cluster: Cluster, lab: Path) -> None:
    printed = det.script(SDK.format(user="admin", password=cluster.login.token, lab=lab))
    assert printed.splitlines()[-11:] == [
        "best True",
        "lines 1",
        "training [1.0, 0.5, 0.33, 0.25, 0.2]",
        "metadata {'phase': 'second', 'sizes': [1, 2]}",
        "notes ['batch 1', 'batch 2', 'batch 3', 'batch 4', 'batch 5']",
        "validation [0.2]",
        "file 100000",
        "same lab COMPLETED",
        "ids True",
        "texts from the SDK ['blue']",
        "workspace True",
    ]


def test_a_wrong_password_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    with determined_client(cluster, tmp_path, user="nobody") as stranger:
        said = stranger.run("experiment", "list")
    assert said.code != 0
    assert "'nobody' is no user of this cluster" in said
