"""`gangline tensorboard` against a stand-in gateway. In place of TensorBoard runs a script that shows what it sees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Cli
from tests.support.gated_trial import wait_for
from tests.support.stand_in_gateway import TOKEN, StandInGateway

COMMAND = str(Path(sys.executable).with_name("gangline"))
EVENTS = "7.1/events.out.tfevents.1"
# Copies its arguments, and then the newest content of the log directory, to a folder of the test.
SCRIPT = """#!/bin/bash
echo "$@" > {seen}/arguments
while sleep 0.1; do cp "$2/{events}" {seen}/part && mv {seen}/part {seen}/events; done
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_files_are_fetched_and_grow(cli: Cli, gateway: StandInGateway, tmp_path: Path) -> None:
    gateway.event_files[EVENTS] = b"first"
    output = tmp_path / "files"
    for content in (b"first", b"first and second"):
        gateway.event_files[EVENTS] = content
        ran = cli("tensorboard", "7", "--fetch", "--output", str(output))
        assert ran.status == 0, ran.err
        assert (output / EVENTS).read_bytes() == content
    assert ran.err == f"11 B in {output}\n"


def test_tensorboard_sees_what_is_new_until_it_is_interrupted(
    gateway: StandInGateway, path: Path, tmp_path: Path
) -> None:
    (path / "tensorboard").write_text(SCRIPT.format(seen=tmp_path, events=EVENTS))
    (path / "tensorboard").chmod(0o755)
    gateway.event_files[EVENTS] = b"first"
    login = {"GANGLINE_HOME": str(tmp_path), "GANGLINE_GATEWAY": gateway.address, "GANGLINE_TOKEN": TOKEN}
    process = subprocess.Popen(
        [COMMAND, "tensorboard", "7.1", "--port", "7007", "--interval", "1"], env={**os.environ, **login},
    )  # fmt: skip
    try:
        wait_for((tmp_path / "events").exists, "what was there", 30)
        assert (tmp_path / "events").read_bytes() == b"first"
        gateway.event_files[EVENTS] = b"first and second"
        wait_for(lambda: (tmp_path / "events").read_bytes() == b"first and second", "what is new", 30)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
    words = (tmp_path / "arguments").read_text().split()
    assert words[2:] == ["--port", "7007"]
    assert not Path(words[1]).exists(), "the temporary folder stayed"


def test_without_tensorboard_the_way_out_is_named(cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(path))
    ran = cli("tensorboard", "7")
    assert ran.status == 2
    assert ran.err.startswith("error: TensorBoard is not installed here; install it with: pip install tensorboard")


def test_mistakes(cli: Cli, tmp_path: Path) -> None:
    assert cli("tensorboard", "7", "--fetch").err == (
        "error: --fetch needs a folder for the files; give it with --output FOLDER\n"
    )
    ran = cli("tensorboard", "7.1", "--fetch", "--output", str(tmp_path / "none"))
    assert (ran.status, ran.err) == (
        2, "error: trial 7.1 has written no files for TensorBoard yet; try again later\n",
    )  # fmt: skip
