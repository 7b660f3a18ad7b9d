"""The bar of work that takes long: on a terminal only, and gone at the end."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from gangline.cli.output import progress
from gangline.cli.output.progress import Bars
from gangline.client import Client
from gangline.v1 import types_pb2
from tests.support.stand_in_gateway import TOKEN, StandInGateway

MB = 1 << 20
CONFIG = "entrypoint: model_def:Digits\nsearcher: {name: single, metric: m, max_length: 1}"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> FakeTerminal:
    terminal = FakeTerminal()
    monkeypatch.setattr(progress, "is_error_terminal", terminal.isatty)
    monkeypatch.setattr(progress, "raw_errors", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_short_work_shows_no_bar(terminal: FakeTerminal) -> None:
    with Bars() as bars:
        bars("packing", 1, 3)
        bars("packing", 3, 3)
    assert terminal.getvalue() == ""


def test_bar_appears_and_goes(terminal: FakeTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0.0)
    with Bars() as bars:
        bars("upload", 5 * MB, 10 * MB)
        bars("upload", 10 * MB, 10 * MB)
        ended = terminal.getvalue()
    assert "upload" in ended
    assert ended.count(HIDE) == ended.count(SHOW) == 1


def test_bar_of_failed_work_goes_too(terminal: FakeTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0.0)

    def fail() -> None:
        with Bars() as bars:
            bars("download", 5 * MB, 0)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert terminal.getvalue().count(SHOW) == 1


def test_nothing_is_drawn_where_no_terminal_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0.0)
    with Bars() as bars:
        bars("upload", 1, 2)
        bars("upload", 2, 2)
    assert capsys.readouterr().err == ""


def test_client_tells_what_it_has_done(gateway: StandInGateway, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    code = tmp_path / "code"
    code.mkdir()
    (code / "model_def.py").write_text("class Digits(Base):\n    pass\n")
    (code / "data").write_bytes(bytes(range(256)) * 10_000)
    gateway.files = {"a": b"x" * 1000, "metadata.json": b"{}"}
    with Client(gateway.address, TOKEN, on_progress=lambda *step: told.append(step)) as client:
        client.create_experiment(
            "entrypoint: model_def:Digits\nsearcher: {name: single, metric: m, max_length: 1}", code
        )
        uploads = [step for step in told if step[0] == "upload"]
        assert uploads[-1][1] == uploads[-1][2] > 0
        gateway.checkpoints = [types_pb2.Checkpoint(id="c1", trial_id="1.1", experiment_id=1)]
        client.download_checkpoint("c1", tmp_path / "c1")
    downloads = [step for step in told if step[0] == "download"]
    assert [step[1] for step in downloads] == sorted(step[1] for step in downloads)
    assert downloads[-1] == ("download", 1000, 1000)
