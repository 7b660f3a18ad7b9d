"""Which Pythons of a machine the demo runs on, and what an environment of one borrows."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import demo_pythons


def python(folder: Path, text: str, status: int = 0) -> Path:
    """A stand-in that tells a version."""
    path = folder / f"python-{len(list(folder.iterdir()))}"
    path.write_text(f"#!/bin/sh\necho {text}\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_each_version_is_taken_once_and_others_are_left_out(tmp_path: Path) -> None:
    first = python(tmp_path, "3.11.2")
    paths = [
        tmp_path / "missing",
        first,
        python(tmp_path, "3.11.2"),
        python(tmp_path, "3.11.7"),
        python(tmp_path, "3.10.13"),
        python(tmp_path, "3.14.0"),
        # pyenv's stand-in for a version that is installed and not chosen.
        python(tmp_path, "3.12.1", status=127),
        last := python(tmp_path, "3.13.0"),
    ]
    assert demo_pythons.distinct(paths, "3.11.7") == {"3.11.2": first, "3.13.0": last}


def test_machine_with_one_python_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_pythons, "candidates", lambda: [Path(sys.executable)])
    monkeypatch.setattr(demo_pythons, "make_environment", lambda *_: pytest.fail("an environment is made"))
    assert demo_pythons.main() == 0


def test_same_series_borrows_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_pythons, "FOLDER", tmp_path)
    made = demo_pythons.make_environment(Path(sys.executable), platform.python_version())
    script = "import sys, numpy, gangline; print(sys.prefix)"
    done = subprocess.run([str(made), "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / platform.python_version())), done.stderr
    command = [str(made.with_name("gangline")), "--help"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
