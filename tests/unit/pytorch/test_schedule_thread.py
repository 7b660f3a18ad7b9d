"""The thread of a pipeline's schedule computes where the thread that trains does."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from gangline.pytorch.parallel.staged.schedule import ScheduleThread
from tests.support.gated_trial import wait_for

_DEVICE = torch.device("cuda", 0)


class _Stream:
    """Stands for a CUDA stream. waits: the streams that it has waited for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waits: list[str] = []

    def wait_stream(self, other: _Stream) -> None:
        self.waits.append(other.name)


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> Callable[[_Stream], Any]:
    """Stands for torch.cuda, whose current stream belongs to a thread."""
    default, current = _Stream("default"), threading.local()

    @contextmanager
    def within(stream: _Stream) -> Iterator[None]:
        before = getattr(current, "stream", default)
        current.stream = stream
        try:
            yield
        finally:
            current.stream = before

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: getattr(current, "stream", default))
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    return within


def _stream_here() -> Any:
    return torch.cuda.current_stream(_DEVICE)


def test_it_computes_in_the_stream_of_its_caller(within: Callable[[_Stream], Any]) -> None:
    thread, seen = ScheduleThread(_DEVICE), []
    for stream in (_Stream("first"), _Stream("second")):
        with within(stream):
            thread.start(lambda: seen.append(_stream_here()))
            thread.finish()
        assert seen.pop() is stream
        assert stream.waits == []
    thread.start(lambda: seen.append(_stream_here()))
    thread.finish()
    assert seen.pop().name == "default"


def test_streams_of_several_calls_wait_for_each_other(within: Callable[[_Stream], Any]) -> None:
    thread = ScheduleThread(_DEVICE)
    own, other = _Stream("own"), _Stream("other")

    def run() -> None:
        thread.loss_of(0)
        # The loss was computed in the other stream.
        assert own.waits == ["other"]

    with within(own):
        thread.start(run)
    with within(other):
        thread.wait_for(0)
        # The output was computed in the thread's stream.
        assert other.waits == ["own"]
        thread.give(torch.zeros(()))
    with within(own):
        thread.finish()


def test_it_makes_tensors_on_the_default_device_of_its_caller() -> None:
    thread, seen = ScheduleThread(torch.device("cpu")), []
    for device in ("meta", "cpu"):
        with torch.device(device):
            thread.start(lambda: seen.append(torch.zeros(2).device.type))
            thread.finish()
    assert seen == ["meta", "cpu"]


def test_an_error_leaves_the_next_run_as_it_was() -> None:
    thread = ScheduleThread(torch.device("cpu"))

    def fail() -> None:
        raise ArithmeticError("it breaks")

    with torch.device("meta"):
        thread.start(fail)
        with pytest.raises(ArithmeticError, match="it breaks"):
            thread.finish()
    seen = []
    thread.start(lambda: seen.append(torch.zeros(2).device.type))
    thread.finish()
    assert seen == ["cpu"]


def test_it_keeps_nothing_of_a_run_and_ends_with_its_owner() -> None:
    """A process may train several pipelines in turn."""
    owner, held = ScheduleThread(torch.device("cpu")), torch.nn.Linear(1, 1)
    is_held, before = weakref.ref(held), [*threading.enumerate()]
    owner.start(functools.partial(held.zero_grad))
    owner.finish()
    del held
    wait_for(lambda: is_held() is None, "the thread keeps what the run held")
    (thread,) = set(threading.enumerate()).difference(before)
    del owner
    thread.join(10)
    assert not thread.is_alive()
