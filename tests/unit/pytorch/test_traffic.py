"""Seconds in which something was under way: overlaps count once, and what is waited for is not hidden."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gangline.pytorch.profile.clock import StepClock
from gangline.pytorch.profile.collective import CollectiveTimer, Span, covered_seconds, seconds_outside
from gangline.pytorch.profile.traffic import Traffic


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0.0),
        ([(1.0, 3.0)], 2.0),
        ([(1.0, 3.0), (1.0, 3.0)], 2.0),
        ([(5.0, 6.0), (1.0, 3.0)], 3.0),
        ([(1.0, 3.0), (2.0, 4.0)], 3.0),
        ([(1.0, 9.0), (2.0, 4.0), (8.0, 10.0)], 9.0),
        ([(-2.0, -1.0), (-1.0, 1.0)], 3.0),
    ],
)
def test_overlaps_count_once(spans: list[Span], seconds: float) -> None:
    assert covered_seconds(spans) == seconds


@pytest.mark.parametrize(
    ("spans", "others", "seconds"),
    [
        ([(1.0, 3.0)], [], 2.0),
        ([(1.0, 3.0)], [(0.0, 9.0)], 0.0),
        ([(1.0, 3.0), (2.0, 5.0)], [(4.0, 9.0)], 3.0),
        ([(1.0, 5.0)], [(2.0, 3.0), (7.0, 8.0)], 3.0),
    ],
)
def test_what_others_do_not_cover(spans: list[Span], others: list[Span], seconds: float) -> None:
    assert seconds_outside(spans, others) == seconds


class Meter:
    """Has always two seconds to tell of, half of them hidden."""

    def __init__(self) -> None:
        self.is_in_step: Callable[[], bool] = lambda: False

    def start(self, is_in_step: Callable[[], bool]) -> None:
        self.is_in_step = is_in_step

    def stop(self) -> None:
        self.is_in_step = lambda: False

    def end_step(self) -> None:
        pass

    def take(self) -> tuple[float, float]:
        return 2.0, 1.0


def test_meters_add_up_to_means_of_a_step() -> None:
    traffic = Traffic([Meter(), Meter()], StepClock())
    assert traffic.take(8) == {"communication_seconds": 0.5, "hidden_communication_seconds": 0.25}


def test_strategy_without_meters_has_no_such_number() -> None:
    assert Traffic([], StepClock()).take(8) == {}


def test_meters_know_when_a_step_runs() -> None:
    clock, meter = StepClock(), Meter()
    clock.is_running = True
    traffic = Traffic([meter], clock)
    traffic.start()
    assert not meter.is_in_step()
    with clock.phase("forward"):
        assert meter.is_in_step()
        with clock.phase("backward"):
            pass
        assert meter.is_in_step()
    assert not meter.is_in_step()


def test_timer_counts_collectives_of_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("gangline.pytorch.profile.device_clock.time.perf_counter", lambda: now[0])
    timer = CollectiveTimer(torch.device("cpu"))

    def run(seconds: float) -> None:
        with timer.under_way():
            now[0] += seconds

    is_in_step = [False]
    run(100.0)
    timer.start(lambda: is_in_step[0])
    run(100.0)
    is_in_step[0] = True
    run(1.0)
    now[0] += 100.0
    run(2.0)
    timer.end_step()
    run(4.0)
    # On the CPU a call returns when the collective has completed: nothing runs beside it.
    assert timer.take() == (7.0, 0.0)
    run(8.0)
    timer.stop()
    run(100.0)
    assert timer.take() == (8.0, 0.0)
    assert timer.take() == (0.0, 0.0)


def test_collective_that_is_not_waited_for_all_along_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU's are, which run in a stream of their own: one under way from 1 to 6, another one from 4 to 7, and the
    computation waits from 5 to 6."""
    now = [0.0]
    monkeypatch.setattr("gangline.pytorch.profile.device_clock.time.perf_counter", lambda: now[0])
    timer = CollectiveTimer(torch.device("cpu"))
    timer.start(lambda: True)
    monkeypatch.setattr(timer, "_runs_in_computation", lambda: False)
    for end in (6.0, 7.0):
        now[0] = end
        timer.add(1.0 if end == 6.0 else 4.0)
    now[0] = 6.0
    timer.add_wait(5.0)
    timer.end_step()
    assert timer.take() == (6.0, 5.0)
