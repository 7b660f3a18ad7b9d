"""The commands of docs/quickstart.md, as they are printed there, on a new cluster of real processes.

`gangline` runs as forks of a process that has imported it. tests/e2e/test_wheel.py starts an installed one cold."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.login import HOME_VARIABLE
from tests.support.source import ROOT
from tests.support.warm_program import WarmPair, folder

PAGE = (ROOT / "docs" / "quickstart.md").read_text()


def _commands(heading: str) -> list[str]:
    """Returns the commands of a section's blocks, without those of other languages."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
    return [line for language, block in blocks if not language for line in block.splitlines()]


class Shell:
    """Runs lines as a user types them, in the repository. home: a short path. commands: a folder with a `gangline`."""

    def __init__(self, home: Path, commands: Path) -> None:
        self._commands = commands
        self._environment = {**os.environ, HOME_VARIABLE: str(home)}
        self._environment.pop("VIRTUAL_ENV", None)

    def run(self, line: str) -> str:
        script = f"source .venv/bin/activate && PATH={self._commands}:$PATH && {line}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=ROOT, env=self._environment, capture_output=True, text=True,
            timeout=180, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    commands = WarmPair(folder()).install_command(tmp_path_factory.mktemp("bin"))
    shell = Shell(tmp_path_factory.mktemp("q"), commands)
    yield shell
    shell.run("gangline down")


@pytest.mark.skipif(not (ROOT / ".venv/bin/activate").exists(), reason="the commands use the environment of make setup")
def test_commands_work_as_printed(shell: Shell, tmp_path: Path) -> None:
    start, submit, later = map(_commands, ("Keep a cluster", "Submit", "Follow, list, clear away"))
    assert (len(start), len(submit), len(later)) == (3, 11, 5), "every command of these sections is run here"
    output, accuracies = {}, [0.0]
    for line in [*start, *submit, *later]:
        command = line.partition("#")[0].strip()
        arguments = ""
        if "checkpoint download" in command:
            [checkpoint] = json.loads(shell.run("gangline checkpoint list --json"))
            validated = shell.run("gangline experiment metrics 1 --group validation --json").splitlines()
            accuracies = [json.loads(line)["point"]["metrics"]["accuracy"] for line in validated]
            command = command.replace(" ID", f" {checkpoint['id']}")
            arguments = f" --output {tmp_path / 'checkpoint'}"
        output[command] = shell.run(command + arguments)
    assert "agents:  2" in output["gangline status"]
    assert "accuracy" in output["gangline experiment metrics 1 --group validation"]
    assert accuracies[-1] >= 0.95
    assert (tmp_path / "checkpoint" / "metadata.json").exists()
    [killed] = [experiment for experiment in json.loads(shell.run("gangline e list --json")) if experiment["id"] == 2]
    assert (killed["name"], killed["outcome"]) == ("digits", "CANCELED")
