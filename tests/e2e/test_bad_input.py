"""Users' mistakes, through a real cluster: one line that names the mistake and its place, and the cluster stays well.

The messages of a single part are tested beside that part (tests/unit/config, tests/integration). The tests here cross
processes: mistakes that only the scheduler or a rank can find, and refusals of input that was not checked before.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from gangline.client import Client
from gangline.client.transfer.packing import pack_code
from gangline.domain.state import ExitKind, Outcome
from gangline.domain.view import ExperimentView
from gangline.errors import ErrorKind, GanglineError
from gangline.local.shutdown import find_runners
from tests.support import hostile
from tests.support.cluster import Cluster
from tests.support.failing_trial import failing_config, failing_source, write_code
from tests.support.gated_trial import wait_for

BOOM = "raise RuntimeError('boom')"


@pytest.fixture(scope="module")
def cluster(two_agents: Cluster) -> Cluster:
    return two_agents


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.connect() as connected:
        yield connected


@dataclass(frozen=True)
class Case:
    """A trial that fails, and what is said of it. message: a regex for all of the failure's message."""

    init: str = "pass"
    batch: str = "pass"
    kind: ExitKind = ExitKind.USER_ERROR
    rank: int | None = None
    message: str = ""
    signal: int | None = None
    is_final: bool = False


CASES = {
    "init": Case(init=BOOM, message=r"RuntimeError: boom"),
    "one_rank": Case(
        batch="if self.rank == 1 and batch_idx == 2: " + BOOM,
        rank=1,
        message=r"RuntimeError: boom",
    ),
    "signal": Case(
        batch="if self.rank == 3 and batch_idx == 2: os.kill(os.getpid(), signal.SIGSEGV)",
        kind=ExitKind.SIGNAL,
        rank=3,
        signal=11,
        message=r"ended by signal 11 \(SIGSEGV\)",
    ),
    "exit": Case(
        batch="if self.rank == 2 and batch_idx == 1: os._exit(7)",
        rank=2,
        message=r"exited with code 7 and said nothing",
    ),
    "import": Case(
        init="import no_such_package",
        kind=ExitKind.IMPORT_ERROR,
        message=r"ModuleNotFoundError: No module named 'no_such_package'",
        is_final=True,
    ),
    "nan": Case(
        batch="if batch_idx == 4: self.model.weight.data.fill_(float('nan'))",
        kind=ExitKind.NONFINITE_METRIC,
        message=r"loss is nan at batch 8; there is no checkpoint yet\. .*",
        is_final=True,
    ),
}


def run_to_end(client: Client, folder: Path, source: str, **config: int) -> ExperimentView:
    created = client.create_experiment(failing_config(**config), write_code(folder, source))
    return client.wait_experiment(created.experiment.id, 90)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_failing_trial_is_named_with_its_rank(cluster: Cluster, client: Client, tmp_path: Path, case: Case) -> None:
    # One restart would be allowed to what is final, and is not used.
    view = run_to_end(client, tmp_path, failing_source(case.init, case.batch), max_restarts=int(case.is_final))
    trial = view.trials[0].trial
    assert (view.experiment.outcome, trial.outcome, trial.attempts) == (Outcome.FAILED, Outcome.FAILED, 1)
    failure = trial.last_failure
    assert failure is not None
    assert (failure.kind, failure.signal) == (case.kind, case.signal)
    assert case.rank is None or failure.rank == case.rank
    assert re.fullmatch(case.message, failure.message), failure.message
    assert failure.message in trial.reason
    done = cluster.run("experiment", "wait", str(view.experiment.id), check=False)
    assert done.returncode == 1
    assert failure.message in done.stdout
    wait_for(lambda: not client.list_tasks() and not find_runners(cluster.layout), "an idle cluster")


def test_class_that_is_no_trial_and_hides_it_from_the_client(client: Client, tmp_path: Path) -> None:
    source = failing_source() + "\n\nTrial, FailingTrial = FailingTrial, (lambda context: None)\n"
    code = write_code(tmp_path, source)
    config = failing_config(max_restarts=3)
    archive = pack_code(code)
    client.upload_code(archive)
    created = client.submit_experiment(json.dumps(yaml.safe_load(config)), archive.sha256)
    trial = client.wait_experiment(created.experiment.id, 90).trials[0].trial
    assert (trial.outcome, trial.attempts) == (Outcome.FAILED, 1)
    assert trial.last_failure is not None
    assert trial.last_failure.kind is ExitKind.CONFIGURATION_ERROR
    expected = (
        "entrypoint model_def:FailingTrial is a function, which is no trial; inherit from PyTorchTrial; "
        "not tried again, because a configuration that cannot work would come again"
    )
    assert trial.reason.endswith(expected), trial.reason


def test_what_never_fits_is_refused_with_the_sizes_that_do(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    before = client.list_experiments()
    config = tmp_path / "experiment.yaml"
    config.write_text(failing_config(slots=5))
    done = cluster.run("experiment", "create", config, write_code(tmp_path, failing_source()), check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: slots_per_trial: 5 can never fit pool 'default' (2 agents of 2 slots): sizes that fit are 1, 2, 4\n"
    )
    assert client.list_experiments() == before


@pytest.mark.parametrize(
    ("config", "code", "message"),
    [
        (
            {"hyperparameters": {"global_batch_size": 3}},
            "config.batch_too_small",
            "hyperparameters.global_batch_size: 3 is smaller than the 4 slots of resources.slots_per_trial; use at "
            "least 4, or fewer slots",
        ),
        (
            {"hyperparameters": {"global_batch_size": "16"}},
            "config.wrong_type",
            "hyperparameters.global_batch_size: expected a whole number such as 64, found the string '16'",
        ),
        (
            {"hyperparameters": {"global_batch_size": {"type": "categorical", "vals": [16, 16.5]}}},
            "config.wrong_type",
            "hyperparameters.global_batch_size.vals[1]: expected a whole number such as 64, found the number 16.5",
        ),
        (
            {"max_restarts": "many"},
            "config.wrong_type",
            "max_restarts: expected an integer, found the string 'many'",
        ),
    ],
)
def test_cluster_refuses_what_no_client_has_checked(
    client: Client, tmp_path: Path, config: dict[str, object], code: str, message: str
) -> None:
    before = client.list_experiments()
    archive = pack_code(write_code(tmp_path, failing_source()))
    client.upload_code(archive)
    with pytest.raises(GanglineError) as caught:
        client.submit_experiment(json.dumps(yaml.safe_load(failing_config()) | config), archive.sha256)
    assert (caught.value.code, caught.value.message, caught.value.kind) == (code, message, ErrorKind.INVALID)
    assert client.list_experiments() == before


def test_wrong_token(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGLINE_TOKEN", "not-the-token")
    monkeypatch.setenv("GANGLINE_ADDRESS", cluster.login.address)
    done = cluster.run("experiment", "list", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    answer = httpx.get(f"{cluster.http_url}/api/v1/experiments", headers={"Authorization": "Bearer not-the-token"})
    assert answer.status_code == 401
    assert line == f"error: {answer.json()['detail']}"


@pytest.mark.parametrize("name", ["link inside", "backtracking pax header", "long part", "file as folder"])
def test_archive_that_cannot_be_unpacked_is_not_tried_again(cluster: Cluster, client: Client, name: str) -> None:
    """It lies in the storage from before the gateway refused such archives."""
    make, _, part = hostile.ARCHIVES[name]
    content = make()
    sha256 = hashlib.sha256(content).hexdigest()
    stored = cluster.layout.root / "storage" / "code" / f"{sha256}.tar.gz"
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_bytes(content)
    created = client.submit_experiment(json.dumps(yaml.safe_load(failing_config(max_restarts=5))), sha256)
    trial = client.wait_experiment(created.experiment.id, 90).trials[0].trial
    assert (trial.outcome, trial.attempts) == (Outcome.FAILED, 1)
    assert trial.last_failure is not None
    assert trial.last_failure.kind is ExitKind.CONFIGURATION_ERROR
    assert part.partition(";")[0] in trial.reason
    assert trial.reason.endswith("not tried again, because a configuration that cannot work would come again")


@pytest.mark.parametrize("command", [["experiment", "create"], ["preview-search"]])
def test_grid_of_a_billion_is_refused_with_its_size(cluster: Cluster, tmp_path: Path, command: list[str]) -> None:
    config = tmp_path / "experiment.yaml"
    config.write_text(hostile.grid(1_000_000_000))
    folder = [write_code(tmp_path, failing_source())] if command[0] == "experiment" else []
    done = cluster.run(*command, config, *folder, check=False, seconds=30)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: hyperparameters (line 4): has 1000000000 points, and a search has at most 10000 trials; lower a count\n"
    )


def test_folder_with_links_runs_with_what_they_point_to(client: Client, tmp_path: Path) -> None:
    outside = write_code(tmp_path, failing_source())
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model_def.py").symlink_to(outside / "model_def.py")
    created = client.create_experiment(failing_config(), folder)
    assert client.wait_experiment(created.experiment.id, 90).experiment.outcome is Outcome.COMPLETED


def test_damaged_archive_in_the_storage_is_said_and_a_new_submit_mends_it(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    source = failing_source() + "\n# unique, so that no agent has it in its cache\n"
    code = write_code(tmp_path, source)
    archive = pack_code(code)
    client.upload_code(archive)
    stored = cluster.layout.root / "storage" / "code" / f"{archive.sha256}.tar.gz"
    damaged = bytearray(stored.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    stored.write_bytes(damaged)
    config_json = json.dumps(yaml.safe_load(failing_config()))
    created = client.submit_experiment(config_json, archive.sha256)
    trial = client.wait_experiment(created.experiment.id, 90).trials[0].trial
    assert trial.outcome is Outcome.FAILED
    assert f"the code archive {archive.sha256[:12]} is corrupt" in trial.reason
    assert "submit the experiment again" in trial.reason
    again = client.create_experiment(failing_config(), code)
    assert client.wait_experiment(again.experiment.id, 90).experiment.outcome is Outcome.COMPLETED
