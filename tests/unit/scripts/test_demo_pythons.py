"""Which Pythons of a machine the demo runs on, and what an environment of one borrows."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
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
        self.demos: dict[str, str] = {}  # what a demo does first, by version
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
        keeps = "${PYTHONDONTWRITEBYTECODE:+ and keeps nothing}"
        says = f"echo the demo ran on {version}{keeps} in ${{2#{self.folder}/}}"
        made.write_text(f"#!/bin/sh\n{self.demos.get(version, '')}\n{says}\n")
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
    assert ran == ["the demo ran on 3.12.1 in 3.12.1/demo", "the demo ran on 3.13.0 in 3.13.0/demo"]


def test_demos_run_at_once_and_a_failing_one_is_told(
    machine: Machine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each waits until the other one has begun."""
    first, second = tmp_path / "first", tmp_path / "second"
    for began in (first, second):
        os.mkfifo(began)
    machine.demos = {"3.12.1": f"echo >{first}; read _ <{second}; exit 7", "3.13.0": f"read _ <{first}; echo >{second}"}
    try:
        assert demo_pythons.main([]) == 1
    finally:
        for began in (first, second):
            began.unlink()
    said = capfd.readouterr().out
    assert "the demo ran on 3.13.0 in 3.13.0/demo\n" in said
    assert said.endswith("\nthe demo failed on Python 3.12.1\n")
    assert machine.environments() == []


def test_end_of_the_script_ends_the_demos(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_pythons, "FOLDER", tmp_path / "pythons")
    machine.folder = tmp_path / "pythons"
    ended = tmp_path / "ended"
    began = tmp_path / "began"
    forever = f"trap 'echo ended >>{ended}; exit 1' TERM; echo >>{began}; while :; do sleep 0.1; done"
    machine.demos = dict.fromkeys(machine.scripts, forever)

    main_thread = threading.get_ident()

    def end_when_begun() -> None:
        """The script waits for a demo, and has not only begun to start it."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            waits = sys._current_frames()[main_thread].f_code.co_name in ("_wait", "_try_wait")
            if waits and began.exists() and len(began.read_text()) == len(machine.scripts):
                break
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR1)

    def end(*_: object) -> None:
        raise SystemExit(143)

    former = signal.signal(signal.SIGUSR1, end)
    thread = threading.Thread(target=end_when_begun)
    thread.start()
    try:
        with pytest.raises(SystemExit):
            demo_pythons.main([])
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, former)
    assert ended.read_text().splitlines() == ["ended", "ended"]
    assert machine.environments() == []
    assert "the demo failed" not in capfd.readouterr().out


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
