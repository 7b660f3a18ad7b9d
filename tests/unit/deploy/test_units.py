"""systemd accepts the units, and they start the programs that the package installs."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support.source import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


# The most that `systemd-analyze security` of systemd 252 may find, from 0 (no rights) to 10. The agent starts the
# programs of users, with GPUs and in containers; its unit says why it cannot take more.
EXPOSURES = {"gangline-agent": 8.7, "gangline-gateway": 1.6, "gangline-scheduler": 1.6}

needs_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze comes with Debian's package systemd"
)


@needs_systemd
def test_systemd_finds_no_fault() -> None:
    command = ["systemd-analyze", "verify", "--man=no", *map(str, UNITS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_exposes_no_more_than_its_work_needs(unit: Path) -> None:
    assert _exposure(unit) <= EXPOSURES[unit.stem]


@needs_systemd
def test_lines_that_an_operator_may_take_in_are_accepted(tmp_path: Path) -> None:
    """Those of the agent's unit that are commented out for hosts without setuid programs."""
    unit = tmp_path / "gangline-agent.service"
    text = (ROOT / "deploy" / "systemd" / unit.name).read_text()
    unit.write_text(re.sub(r"(?m)^#(?=(NoNewPrivileges|LockPersonality|Restrict\w+|SystemCall\w+)=)", "", text))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert _exposure(unit) <= 7.2


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


def _exposure(unit: Path) -> float:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout
    return float(found[1])


def _service(unit: Path) -> configparser.SectionProxy:
    # Lists may be continued by another line of the same key.
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep the case of keys
    parser.read(unit)
    return parser["Service"]
