"""The wheel that `make wheel` builds, as docs/install.md tells how to use it until a release.

The environment is a fresh one. Its other packages are those of the environment of the tests, which it borrows, because
installing them takes minutes; Gangline itself comes from the wheel.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from gangline.local.etcd_program import BINARY_VARIABLE, find_etcd_binary
from gangline.login import HOME_VARIABLE
from tests.support.source import ROOT

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
CONFIG = """\
name: from-the-wheel
entrypoint: python3 -c "import gangline; print('gangline is', gangline.__file__)"
searcher: {name: single, metric: none, max_length: {batches: 1}}
"""


def run(folder: Path, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the command of the Makefile, into a folder of the test."""
    folder = tmp_path_factory.mktemp("dist")
    line = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "-m pip wheel" in line)
    command = line.strip().removeprefix("@").partition(" && ")[0]
    command = command.replace("$(PYTHON_OF_VENV)", sys.executable).replace("-w dist", f"-w {folder}")
    run(ROOT, *command.split())
    [built] = folder.glob("gangline-*.whl")
    return built


def test_wheel_in_a_fresh_environment_brings_a_cluster_up(wheel: Path, tmp_path: Path) -> None:
    environment, home = tmp_path / "environment", tmp_path / "home"
    run(tmp_path, sys.executable, "-m", "venv", "--without-pip", environment)
    python, gangline = environment / "bin" / "python", environment / "bin" / "gangline"
    install = ["install", "--quiet", "--no-index", "--no-deps", "--find-links", str(wheel.parent), "gangline[cluster]"]
    run(tmp_path, *PIP, "--python", python, *install)
    purelib = run(tmp_path, python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    # As a plain path, so that the .pth file of the checkout in it is not read, and no file of the checkout is found.
    Path(purelib, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (tmp_path / "code").mkdir()
    (tmp_path / "config.yaml").write_text(CONFIG)
    settings = {HOME_VARIABLE: str(home), BINARY_VARIABLE: str(find_etcd_binary())}
    try:
        run(tmp_path, gangline, "up", "--agents", "1", "--slots", "1", "--data-dir", tmp_path / "data", **settings)
        run(tmp_path, gangline, "experiment", "create", "--follow", "config.yaml", "code", **settings)
        logs = run(tmp_path, gangline, "experiment", "logs", "1", **settings).stdout
        assert f"gangline is {purelib}/gangline/__init__.py" in logs
    finally:
        run(tmp_path, gangline, "down", "--data-dir", tmp_path / "data", **settings)


def test_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    tracked = run(ROOT, "git", "ls-files", "gangline", "services").stdout.split()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    # Two files move to the top of site-packages, where Python looks for them.
    expected = {Path(path).name if "/off_cluster/" in path else path for path in tracked}
    assert expected - names == set()
    static = "services/gateway/http/browser/static"
    document = (ROOT / static / "index.html").read_text()
    scripts = re.findall(r'(?:src|href)="\./(assets/[^"]+)"', document)
    assert len(scripts) == 3  # the script, the styles, the icon
    assert {f"{static}/index.html", *(f"{static}/{name}" for name in scripts)} <= names
