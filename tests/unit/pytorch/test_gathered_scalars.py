"""The trainer's own scalars reach the TensorBoard writer several reports at a time, with the times of their reports."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gangline.pytorch.trial.tensorboard_writer import GatheredScalars


class _Writer:
    def __init__(self) -> None:
        self.scalars: list[tuple[Any, ...]] = []

    def add_scalar(self, *scalar: Any) -> None:
        self.scalars.append(scalar)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times = [1000.0]
    monkeypatch.setattr("gangline.pytorch.trial.tensorboard_writer.time.time", lambda: times[0])
    return times


def test_first_report_is_written_at_once_and_later_ones_together(now: list[float]) -> None:
    target = _Writer()
    scalars = GatheredScalars(lambda: target)
    scalars.add({"training/loss": 3.0}, 100)
    scalars.wait()
    assert target.scalars == [("training/loss", 3.0, 100, 1000.0)]
    now[0] = 1001.0
    scalars.add({"training/loss": 2.0}, 200)
    assert len(target.scalars) == 1
    now[0] = 1005.5
    scalars.add({"training/loss": 1.0}, 300)
    scalars.wait()
    assert target.scalars[1:] == [("training/loss", 2.0, 200, 1001.0), ("training/loss", 1.0, 300, 1005.5)]


def test_rest_is_written_when_asked_for(now: list[float]) -> None:
    target = _Writer()
    scalars = GatheredScalars(lambda: target)
    for step in (1, 2, 3):
        scalars.add({"loss": float(step)}, step)
    scalars.write()
    scalars.write()
    assert [scalar[2] for scalar in target.scalars] == [1, 2, 3]


def test_clock_that_is_set_back_holds_nothing_up(now: list[float]) -> None:
    target = _Writer()
    scalars = GatheredScalars(lambda: target)
    scalars.add({"loss": 1.0}, 1)
    scalars.wait()
    now[0] = 10.0
    scalars.add({"loss": 2.0}, 2)
    scalars.wait()
    assert len(target.scalars) == 2


def test_nothing_opens_no_writer() -> None:
    def refuse() -> Any:
        pytest.fail("a writer was opened")

    GatheredScalars(refuse).write()


def test_a_storage_that_takes_nothing_or_hangs_holds_up_no_training(
    now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """And everything arrives afterwards."""
    target, gate = _Writer(), threading.Event()
    opened: list[int] = []

    def open_writer() -> Any:
        opened.append(len(opened))
        if len(opened) == 1:
            raise OSError(28, "No space left on device")
        gate.wait(30)
        return target

    scalars = GatheredScalars(open_writer)
    scalars.add({"loss": 1.0}, 1)
    scalars.wait()
    assert "metrics do not reach TensorBoard: OSError: [Errno 28]" in caplog.text
    for step in (2, 3, 4):
        now[0] += 10.0
        scalars.add({"loss": float(step)}, step)
    assert target.scalars == []
    gate.set()
    scalars.write()
    assert [scalar[2] for scalar in target.scalars] == [1, 2, 3, 4]
    assert opened == [0, 1]
