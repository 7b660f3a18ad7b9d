"""A stand-in gateway, and the command line in this process, which talks to it over the network."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gangline.cli.main import run
from tests.support.stand_in_gateway import TOKEN, StandInGateway


@dataclass(frozen=True, slots=True)
class Ran:
    status: int
    out: str
    err: str


Cli = Callable[..., Ran]


@pytest.fixture
def gateway() -> Iterator[StandInGateway]:
    server = StandInGateway()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user's zone is UTC, in this process and in those that it starts."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def environment(gateway: StandInGateway, tmp_path: Path) -> dict[str, str]:
    """The environment of a command line in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    return {
        **kept,
        "GANGLINE_HOME": str(tmp_path / "home"),
        "GANGLINE_GATEWAY": gateway.address,
        "GANGLINE_TOKEN": TOKEN,
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
    }


@pytest.fixture
def cli(
    utc: None,
    gateway: StandInGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GANGLINE_GATEWAY", gateway.address)
    monkeypatch.setenv("GANGLINE_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Ran:
        status = run(arguments)
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return call


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "model_def.py").write_text("class Digits(Base):\n    pass\n")
    (folder / "const.yaml").write_text(
        "name: digits\nentrypoint: model_def:Digits\n"
        "hyperparameters: {global_batch_size: 66}\n"
        "searcher: {name: single, metric: loss, max_length: 10}\nresources: {slots_per_trial: 4}\n"
    )
    return folder
