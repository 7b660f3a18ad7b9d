"""systemd accepts the units, and they start the programs that the package installs."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support.source import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze comes with Debian's package systemd")
def test_systemd_finds_no_fault() -> None:
    command = ["systemd-analyze", "verify", "--man=no", *map(str, UNITS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_starts_an_installed_program(unit: Path) -> None:
    env, program, flag, settings = _service(unit)["ExecStart"].split()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert env == "/usr/bin/env"
    assert program == unit.stem
    assert program in scripts
    assert (flag, settings) == ("--settings", f"/etc/gangline/{unit.stem.removeprefix('gangline-')}.toml")


def test_stopping_the_agent_leaves_its_runners() -> None:
    """With systemd's own default every process of the unit would be ended, and all training on the host with it."""
    agent = _service(ROOT / "deploy" / "systemd" / "gangline-agent.service")
    assert agent["KillMode"] == "process"
    assert agent["PrivateTmp"] == "no"


def _service(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep the case of keys
    parser.read(unit)
    return parser["Service"]
