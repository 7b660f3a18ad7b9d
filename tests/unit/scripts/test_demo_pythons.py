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
    monkeypatch.setattr(demo_pythons, "_make_empty", lambda *_: pytest.fail("an environment is made"))
    assert demo_pythons.main([]) == 0


def test_same_series_borrows_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_pythons, "FOLDER", tmp_path)
    assert demo_pythons.prepare({platform.python_version(): Path(sys.executable)}) == {}
    made = demo_pythons.interpreter(platform.python_version())
    script = "import sys, numpy, gangline; print(sys.prefix)"
    done = subprocess.run([str(made), "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / platform.python_version())), done.stderr
    command = [str(made.with_name("gangline")), "--help"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0


class Machine:
    """Two further Pythons, whose installation is a shell script and whose demo tells its version."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scripts = {"3.12.1": "true", "3.13.0": "true"}
        self.installed: list[str] = []
        self.folder = folder
        pythons = {version: Path(sys.executable) for version in self.scripts}
        monkeypatch.setattr(demo_pythons, "FOLDER", folder)
        monkeypatch.setattr(demo_pythons, "distinct", lambda *_: pythons)
        monkeypatch.setattr(demo_pythons, "_make_empty", self._make_empty)
        monkeypatch.setattr(demo_pythons, "_begin_installation", self._begin_installation)

    def environments(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def _make_empty(self, _: Path, version: str) -> Path:
        made = demo_pythons.interpreter(version)
        made.parent.mkdir(parents=True)
        made.write_text(f"#!/bin/sh\necho the demo ran on {version}${{PYTHONDONTWRITEBYTECODE:+ and keeps nothing}}\n")
        made.chmod(0o755)
        return made

    def _begin_installation(self, made: Path) -> subprocess.Popen[str]:
        version = made.parts[-3]
        self.installed.append(version)
        return subprocess.Popen(
            ["/bin/sh", "-c", self.scripts[version]], stdout=subprocess.PIPE, text=True, start_new_session=True
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_prepared_environments_are_used_once_and_removed(
    machine: Machine, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert demo_pythons.main(["--prepare"]) == 0
    assert capfd.readouterr().out == ""
    assert machine.environments() == ["3.12.1", "3.13.0"]
    assert demo_pythons.main([]) == 0
    assert machine.installed == ["3.12.1", "3.13.0"]
    assert machine.environments() == []
    ran = [line for line in capfd.readouterr().out.splitlines() if line.startswith("the demo ran")]
    assert ran == ["the demo ran on 3.12.1", "the demo ran on 3.13.0"]


def test_failed_installation_is_told_and_leaves_nothing(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    machine.scripts["3.13.0"] = "echo there is no torch; exit 1"
    assert demo_pythons.main(["--prepare"]) == 1
    assert capfd.readouterr().out == (
        f"\n== nothing could be installed for Python 3.13.0 ({sys.executable})\nthere is no torch\n\n"
        "the demo failed on Python 3.13.0\n"
    )
    assert machine.environments() == []


def test_installation_that_hangs_is_ended(
    machine: Machine, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_pythons, "INSTALL_SECONDS", 0.2)
    machine.scripts["3.12.1"] = machine.scripts["3.13.0"] = "sleep 60 & wait"
    assert demo_pythons.main([]) == 1
    said = capfd.readouterr().out
    assert said.count("the installation took more than 0 s\n") == 2
    assert said.endswith("the demo failed on Python 3.12.1, 3.13.0\n")
    assert machine.environments() == []
