"""The environment of a trial on a real cluster: a startup hook, another Python, and secrets that no view shows."""

from __future__ import annotations

import importlib.util
import sys
import urllib.request
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline.config.layer.secret_name import MASK
from gangline.domain.state import Outcome
from gangline.errors import GanglineError
from tests.support.cluster import Cluster

SECRET = "s3cr3t-of-the-test"
TRAIN = """
import os, sys
from gangline.cluster_info import get_cluster_info
data = get_cluster_info().trial.config["data"]
print("sees", os.environ["HF_TOKEN"], data["db"]["password"], os.environ.get("FROM_HOOK"), sys.prefix, os.getcwd())
"""


@pytest.fixture(scope="module")
def cluster(one_agent: Cluster) -> Cluster:
    return one_agent


def write_code(folder: Path, config: dict[str, Any], hook: str = "") -> Path:
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    if hook:
        (folder / "startup-hook.sh").write_text(hook)
    file = folder / "exp.yaml"
    searcher = {"name": "single", "metric": "loss"}
    file.write_text(yaml.safe_dump({"entrypoint": "python3 train.py", "searcher": searcher, **config}))
    return file


def test_secrets_reach_the_trial_and_its_fork_and_no_view(cluster: Cluster, tmp_path: Path) -> None:
    secrets = {
        "data": {"db": {"password": SECRET, "name": "shown-name"}},
        "environment": {
            "environment_variables": [f"HF_TOKEN={SECRET}", f"DATABASE_URL=db://u:{SECRET}@h", f"MINE={SECRET}"],
            "secret_names": ["MINE"],
        },
    }
    file = write_code(tmp_path / "code", secrets, "export FROM_HOOK=hooked\n")
    with cluster.connect() as client:
        experiment = client.create_experiment(file)
        forked = experiment.fork({"data.db.name": "other"})
        for number in (experiment.id, forked.id):
            assert client.wait_experiment(number, 60).experiment.outcome is Outcome.COMPLETED
            lines = [line.text for line in client.stream_logs(number) if line.text.startswith("sees ")]
            assert lines[0].split()[1:4] == [SECRET, SECRET, "hooked"]
            shown = [
                client.get_experiment(number).experiment.config_json,
                cluster.run("experiment", "describe", str(number)).stdout,
                read_http(cluster, f"/api/v1/experiments/{number}"),
                read_http(cluster, "/api/v1/experiments"),
            ]
            assert not [text for text in shown if SECRET in text]
            assert all(MASK in text for text in shown)
        with pytest.raises(GanglineError, match=r"data\.db\.password: .* stands for a value that is not shown"):
            client.submit_experiment(shown[0], experiment.record.code_sha256)


def test_ranks_run_on_the_python_of_the_experiment(cluster: Cluster, tmp_path: Path) -> None:
    venv.EnvBuilder(symlinks=True).create(tmp_path / "vision")
    lower = next(path for path in sys.path if path.endswith("site-packages"))
    packages = next((tmp_path / "vision/lib").glob("python3*/site-packages"))
    (packages / "lower.pth").write_text(f"import site; site.addsitedir({lower!r})\n")
    environment = {
        "python": str(tmp_path / "vision"),
        "working_directory": str(tmp_path),
        "environment_variables": ["HF_TOKEN=none"],
    }
    file = write_code(tmp_path / "code", {"data": {"db": {"password": "none"}}, "environment": environment})
    with cluster.connect() as client:
        number = client.create_experiment(file).id
        assert client.wait_experiment(number, 60).experiment.outcome is Outcome.COMPLETED
        (line,) = [line.text for line in client.stream_logs(number) if line.text.startswith("sees ")]
        assert line.split()[3:] == ["None", str(tmp_path / "vision"), str(tmp_path)]


def test_pip_in_a_hook_installs_for_this_attempt_alone(cluster: Cluster, tmp_path: Path) -> None:
    wheel = tmp_path / "only_here-1.5-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("only_here.py", "VERSION = '1.5'\n")
        about = "only_here-1.5.dist-info"
        packed.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: only_here\nVersion: 1.5\n")
        packed.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{about}/RECORD", "")
    file = write_code(tmp_path / "code", {}, f"pip install --no-index {wheel}\n")
    (tmp_path / "code/train.py").write_text("import only_here, torch; print('sees', only_here.VERSION)\n")
    with cluster.connect() as client:
        number = client.create_experiment(file).id
        assert client.wait_experiment(number, 100).experiment.outcome is Outcome.COMPLETED
        assert "sees 1.5" in [line.text for line in client.stream_logs(number)]
    assert importlib.util.find_spec("only_here") is None


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"python": "/no/such"}, "environment.python: there is no interpreter /no/such on "),
        ({"python": "EMPTY"}, "cannot import Gangline (importlib.metadata.PackageNotFoundError"),
        ({"working_directory": "/no/such"}, "environment.working_directory: there is no folder /no/such in "),
    ],
)
def test_what_an_agent_does_not_have_is_told_in_one_line(
    cluster: Cluster, tmp_path: Path, environment: dict[str, str], problem: str
) -> None:
    if environment.get("python") == "EMPTY":
        venv.EnvBuilder(symlinks=True).create(tmp_path / "empty")
        environment = {"python": str(tmp_path / "empty")}
    file = write_code(tmp_path / "code", {"environment": environment})
    with cluster.connect() as client:
        view = client.wait_experiment(client.create_experiment(file).id, 60)
        assert view.experiment.outcome is Outcome.FAILED
        trial = view.trials[0].trial
        assert trial.attempts == 1
        assert problem in trial.reason


def read_http(cluster: Cluster, path: str) -> str:
    request = urllib.request.Request(
        cluster.http_url + path, headers={"Authorization": f"Bearer {cluster.login.token}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())
