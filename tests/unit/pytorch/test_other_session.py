"""Profilers of a trial's own beside an ordered trace: they go first, whole, and the process lives."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import profiler

from gangline.pytorch.profile import other_session
from tests.support import own_profiler_trial
from tests.support.gang import run_gang

CPU = [torch.profiler.ProfilerActivity.CPU]
WHY = "the trial's own code begins to profile"
NOT_WRITTEN = f"the ordered trace is not written: {WHY} before its first batch was over"
REFUSED = "the ordered trace is refused: the trial's own code runs torch's profiler, of which there is one at a time"


def _batches(path: Path) -> list[int]:
    """That a trace holds."""
    events = json.loads(path.read_text())
    trace_events = events["traceEvents"] if isinstance(events, dict) else events
    assert any(str(event.get("name")).startswith("aten::") for event in trace_events)
    return sorted({int(event["name"][6:]) for event in trace_events if str(event.get("name")).startswith("batch ")})


@pytest.mark.parametrize(
    ("kind", "ours", "own", "line"),
    [
        ("while ours warms up", [], [2], NOT_WRITTEN),
        ("in our last batch", [3, 4], [5], f"the ordered trace ends after 2 batches: {WHY}"),
        ("longer than ours", [3], [4, 5, 6, 7], f"the ordered trace ends after 1 batches: {WHY}"),
        ("autograd", [3], [4], f"the ordered trace ends after 1 batches: {WHY}"),
        ("legacy", [3], [4], f"the ordered trace ends after 1 batches: {WHY}"),
        ("by a schedule that waits", [3, 4], [6, 7], f"the ordered trace ends after 1 batches: {WHY}"),
        ("by a schedule that warms up", [], [4, 5], REFUSED),
    ],
)
def test_a_profiler_of_the_trials_own_goes_first(
    kind: str, ours: list[int], own: list[int], line: str, tmp_path: Path
) -> None:
    assert kind in own_profiler_trial.KINDS
    (lines,) = run_gang(1, tmp_path / "gang", own_profiler_trial.train, tmp_path, kind)
    assert line in lines
    assert _batches(tmp_path / "own.json") == own
    assert [_batches(path) for path in (tmp_path / "tensorboard").glob("*.pt.trace.json")] == ([ours] if ours else [])


def test_a_session_is_open_from_its_warm_up_to_its_end() -> None:
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)
    own = torch.profiler.profile(activities=CPU, schedule=schedule)
    states = [other_session.is_open()]
    own.start()
    for _ in range(3):
        states.append(other_session.is_open())
        own.step()
    states.append(other_session.is_open())
    own.stop()
    assert [*states, other_session.is_open()] == [False, False, True, True, False, False]


def test_a_session_that_warms_up_for_its_second_cycle_is_open() -> None:
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=2)
    own = torch.profiler.profile(activities=CPU, schedule=schedule, acc_events=True)
    own.start()
    states = []
    for _ in range(6):
        states.append(other_session.is_open())
        own.step()
    own.stop()
    assert states == [False, True, True, False, True, True]
    assert not other_session.is_open()


def test_a_session_of_another_thread_is_open() -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        with torch.profiler.profile(activities=CPU):
            has_begun.set()
            may_end.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    assert has_begun.wait(20)
    assert other_session.is_open()
    may_end.set()
    thread.join()
    assert not other_session.is_open()


def test_nothing_of_torch_is_changed_once_a_watch_is_over() -> None:
    before = [vars(owner)[name] for owner, name in other_session._BEGINNINGS]
    calls: list[int] = []
    end = other_session.watch(lambda: calls.append(1))
    with torch.profiler.profile(activities=CPU):
        pass
    end()
    with torch.profiler.profile(activities=CPU):
        pass
    assert calls == [1]
    assert [vars(owner)[name] for owner, name in other_session._BEGINNINGS] == before


def test_who_wraps_it_once_more_keeps_that_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    end = other_session.watch(lambda: calls.append("watch"))
    inner = vars(profiler.profile)["_prepare_trace"]

    def outer(self: Any) -> None:
        calls.append("outer")
        inner(self)

    profiler.profile._prepare_trace = outer  # type: ignore[method-assign]  # as another library would
    try:
        end()
        with torch.profiler.profile(activities=CPU):
            pass
        assert calls == ["outer"]
    finally:
        profiler.profile._prepare_trace = inner.__wrapped__  # type: ignore[method-assign]  # what it was


def test_a_torch_that_begins_sessions_in_another_way_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_session, "_BEGINNINGS", ((profiler.profile, "_begin_in_a_new_way"),))
    calls: list[int] = []
    end = other_session.watch(lambda: calls.append(1))
    with torch.profiler.profile(activities=CPU):
        pass
    end()
    assert calls == []
    assert not hasattr(profiler.profile, "_begin_in_a_new_way")
