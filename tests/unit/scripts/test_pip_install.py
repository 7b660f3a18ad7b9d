"""What an installation prints, and that it is never silent for long."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.pip_install import Progress, follow
from tests.support.source import ROOT


def test_steps_are_shown_and_requirements_are_not(tmp_path: Path) -> None:
    progress = Progress(tmp_path, 0.0)
    assert progress.on_line("Collecting torch==2.13.0") is None
    assert progress.on_line("  Downloading torch-2.13.0-cp311.whl (180 MB)") == (
        "Downloading torch-2.13.0-cp311.whl (180 MB)"
    )
    assert progress.on_line("Requirement already satisfied: pip") is None
    assert progress.on_silence(25.0) == "Downloading torch-2.13.0-cp311.whl (180 MB) (25 s)"


def test_installation_counts_the_packages_that_are_there(tmp_path: Path) -> None:
    progress = Progress(tmp_path, 100.0)
    assert progress.on_line("Installing collected packages: ruamel.yaml, Mako, torch") == "Installing 3 packages"
    assert progress.on_silence(108.0) == "Installing 3 packages, 0 of them are there (8 s)"
    for folder in ("ruamel_yaml-0.18.dist-info", "mako-1.3.dist-info", "pip-23.2.dist-info"):
        (tmp_path / folder).mkdir()
    assert progress.on_silence(116.0) == "Installing 3 packages, 2 of them are there (16 s)"


def test_silence_of_pip_is_filled(tmp_path: Path) -> None:
    """pip says nothing between these two lines until three of ours have been printed."""
    output = io.StringIO()

    def lines() -> Iterator[str]:
        yield "Installing collected packages: torch\n"
        deadline = time.monotonic() + 60
        while output.getvalue().count("of them are there") < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
        yield "Successfully installed torch\n"

    follow(lines(), Progress(tmp_path, time.monotonic()), 0.02, output)
    assert output.getvalue().splitlines()[0] == "setup: Installing 1 packages"
    assert output.getvalue().count("setup: Installing 1 packages, 0 of them are there (0 s)") >= 3


def test_failure_of_pip_is_the_exit_status() -> None:
    program = str(ROOT / "scripts" / "pip_install.py")
    command = [sys.executable, program, "install", "--no-index", "no-such-package-anywhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no-such-package-anywhere" in done.stderr
