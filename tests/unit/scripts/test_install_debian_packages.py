"""scripts/install_debian_packages: does nothing when all is there, and says what to type when it cannot install."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.source import ROOT

SCRIPT = str(ROOT / "scripts" / "install_debian_packages")


def _run(*packages: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(path) if path else "/usr/sbin:/usr/bin:/sbin:/bin"}
    command = ["/bin/bash", SCRIPT, *packages]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="this machine has no Debian packages")
def test_installed_packages_are_left_alone() -> None:
    done = _run("bash", "coreutils")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_apt_it_says_what_is_missing(tmp_path: Path) -> None:
    done = _run("etcd-server", "gcc", path=tmp_path)
    assert done.returncode == 1
    assert "this machine has no apt-get" in done.stderr
    assert "apt-get install etcd-server gcc" in done.stderr


def test_without_root_and_sudo_it_says_what_to_type() -> None:
    """Runs as an account without rights, with an apt-get that must not be reached."""
    setpriv = shutil.which("setpriv")
    if not setpriv or os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "apt-get").write_text("#!/bin/sh\necho reached >&2\n")
        (folder / "apt-get").chmod(0o755)
        shutil.copy(SCRIPT, folder / "install")
        nobody = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", "/bin/bash", f"{name}/install", "gcc"]
        done = subprocess.run(nobody, env={"PATH": name}, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "takes root" in done.stderr
    assert "apt-get install gcc" in done.stderr
    assert "reached" not in done.stderr
