"""The build of the page where npm's registry does not answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.port import own_ports
from tests.support.source import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the build reads, without what it has installed."""
    for folder in ("page", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    return tmp_path


def build(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    [port] = own_ports(1)
    settings = {"npm_config_registry": f"http://127.0.0.1:{port}/", "npm_config_cache": str(checkout / "cache")}
    command = [sys.executable, str(checkout / "scripts" / "build_page.py"), *words]
    return subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=120, check=False)


def test_setup_goes_on_without_the_registry_and_says_so_in_one_line(checkout: Path) -> None:
    done = build(checkout)
    assert (done.returncode, done.stderr) == (0, "")
    [line] = done.stdout.splitlines()
    assert line.startswith("page: cannot install the packages that build it (npm error ")
    assert line.endswith("says at its address how to build the page")
    # A page that was built before stays.
    static = checkout / "services/gateway/http/browser/static"
    static.mkdir(parents=True)
    (static / "index.html").write_text("the former one")
    assert build(checkout).stdout.splitlines()[0].endswith("so it stays as it was built before")
    assert (static / "index.html").read_text() == "the former one"


def test_a_wheel_is_not_built_without_the_page(checkout: Path) -> None:
    done = build(checkout, "--require")
    assert (done.returncode, done.stderr) == (1, "")
    [line] = done.stdout.splitlines()
    assert line.endswith("and the wheel must contain it; no wheel is built")
    steps = (ROOT / "Makefile").read_text().partition("\nwheel: ")[2].split("\n\t@")
    assert "build_page.py --require" in steps[1]
    assert "pip wheel" in steps[2]
