"""The build of the page where npm's registry does not answer, and what it counts as loaded first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.build_page import find_first_files
from tests.support.port import own_ports
from tests.support.source import ROOT

_DOCUMENT = '<script src="./assets/index-1.js"></script><link rel="stylesheet" href="./assets/style-1.css">'
_MANIFEST: dict[str, dict[str, Any]] = {
    "index.html": {"file": "assets/index-1.js", "imports": ["_shared-1.js"], "dynamicImports": ["src/trial.tsx"]},
    "_shared-1.js": {"file": "assets/shared-1.js", "imports": ["_deep-1.js"]},
    "_deep-1.js": {"file": "assets/deep-1.js", "imports": ["_shared-1.js"]},
    "src/trial.tsx": {"file": "assets/trial-1.js", "imports": ["_shared-1.js", "_chart-1.js"]},
    "_chart-1.js": {"file": "assets/chart-1.js"},
    "style.css": {"file": "assets/style-1.css"},
}


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


def test_chunks_that_the_first_script_imports_are_counted_and_later_ones_are_not() -> None:
    assert find_first_files(_DOCUMENT, _MANIFEST) == {"index-1.js", "shared-1.js", "deep-1.js", "style-1.css"}
