"""The rank's connection to its runner: never waits, loses nothing, notices both a request and an end."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gangline.core import link
from gangline.core.link import Link
from gangline.domain.history import MetricsPoint
from gangline.domain.state import ExitKind
from gangline.errors import ErrorKind, GanglineError
from gangline.protocol import wire
from gangline.v1 import rank_pb2, types_pb2

_SECONDS = 10.0


class _Peer:
    """A runner that reads only when it is told to."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self.lost = threading.Event()
        self.link = Link(str(path), rank=3, on_lost=self.lost.set)
        self.connection, _ = self._listener.accept()
        self._file = self.connection.makefile("rb")

    def read(self) -> rank_pb2.RankMessage:
        (length,) = struct.unpack(">I", self._file.read(4))
        return rank_pb2.RankMessage.FromString(self._file.read(length))

    def preempt(self, reason: str, grace_seconds: float = 0.0) -> bytes:
        message = rank_pb2.PreemptRank(reason=reason, grace_seconds=grace_seconds)
        return _frame(rank_pb2.RunnerMessage(preempt=message))

    def trace(self, batches: int) -> None:
        self.connection.sendall(_frame(rank_pb2.RunnerMessage(trace=rank_pb2.TraceRank(batches=batches))))

    def close(self) -> None:
        self._file.close()
        self.connection.close()
        self._listener.close()


def _frame(message: rank_pb2.RunnerMessage) -> bytes:
    payload = message.SerializeToString()
    return struct.pack(">I", len(payload)) + payload


def _wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {_SECONDS:g} s"
        threading.Event().wait(0.005)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[_Peer]:
    new_peer = _Peer(tmp_path / "r.sock")
    yield new_peer
    new_peer.link.close()
    new_peer.close()


def test_hello_comes_first(peer: _Peer) -> None:
    assert peer.read().hello.rank == 3


def test_a_report_of_metrics_arrives_whole(peer: _Peer) -> None:
    point = MetricsPoint("validation", 5, {"loss": 0.5, "accuracy": 1.0}, '{"note": "x"}')
    peer.read()
    begin = time.time()
    peer.link.send_metrics(point, units=2.5, at=7.5)
    peer.link.send_metrics(point)
    first, second = peer.read(), peer.read()
    assert wire.from_proto(MetricsPoint, first.metrics) == point
    assert (first.units, first.at) == (2.5, 7.5)
    assert not second.HasField("units")
    assert begin <= second.at <= time.time()


def test_messages_arrive_in_order(peer: _Peer) -> None:
    link = peer.link
    link.send_first_step()
    link.send_first_step()
    link.send_metrics(MetricsPoint("training", 5, {"loss": 0.5}))
    link.send_progress(6, 10, 100.0, 0.01)
    link.send_checkpoint(types_pb2.Checkpoint(id="abc"))
    link.send_failure(ExitKind.USER_ERROR, "ValueError: x", "trace", "x.y")
    link.send_worker_failure(None, "of a worker", "")
    link.send_stopping()
    link.send_stopping()
    link.send_finished()
    assert link.flush()
    messages = [peer.read() for _ in range(9)]
    kinds = [message.WhichOneof("message") for message in messages]
    assert kinds == [
        "hello",
        "first_step",
        "metrics",
        "progress",
        "checkpoint",
        "failure",
        "worker_failure",
        "stopping",
        "finished",
    ]
    assert dict(messages[2].metrics.metrics) == {"loss": 0.5}
    assert messages[5].failure.kind == types_pb2.EXIT_KIND_USER_ERROR
    assert (messages[5].failure.error_code, messages[6].worker_failure.error_code) == ("x.y", "")
    assert messages[8].finished.batches_completed == 6


def test_runner_that_does_not_read_holds_nobody_up(peer: _Peer) -> None:
    begin = time.monotonic()
    for number in range(20_000):
        peer.link.send_metrics(MetricsPoint("training", number, {"loss": float(number)}))
    assert time.monotonic() - begin < _SECONDS
    assert not peer.link.flush(timeout_seconds=0.05)
    assert peer.read().HasField("hello")
    assert [peer.read().metrics.batches_completed for _ in range(20_000)] == list(range(20_000))
    assert peer.link.flush()


def test_request_that_arrives_in_pieces(peer: _Peer) -> None:
    began_at = time.monotonic()
    for byte in peer.preempt("drain a1", 60.0):
        peer.connection.sendall(bytes([byte]))
    _wait_for(lambda: peer.link.preemption, "the request")
    assert peer.link.preemption == "drain a1"
    ends_at = peer.link.preemption_ends_at
    assert ends_at is not None
    assert began_at + 60.0 <= ends_at <= time.monotonic() + 60.0


def test_order_to_trace_is_told_once_and_a_later_one_takes_its_place(peer: _Peer) -> None:
    assert peer.link.take_trace() == 0
    peer.link.takes_traces = True
    for batches in (3, 7):
        peer.trace(batches)
    peer.connection.sendall(peer.preempt("drain a1"))
    _wait_for(lambda: peer.link.preemption, "what was sent after the orders")
    assert peer.link.take_trace() == 7
    assert peer.link.take_trace() == 0


def test_order_that_comes_when_training_is_over_is_refused(peer: _Peer, caplog: pytest.LogCaptureFixture) -> None:
    """By the process that has trained; another one of the same rank says nothing."""
    peer.trace(3)
    peer.connection.sendall(peer.preempt("drain a1"))
    _wait_for(lambda: peer.link.preemption, "what was sent after the order")
    assert caplog.messages == []
    peer.link.takes_traces = False
    peer.trace(3)
    _wait_for(lambda: caplog.messages, "a line of the log")
    assert caplog.messages == ["the ordered trace is refused: training is over"]
    peer.link.takes_traces = True
    assert peer.link.take_trace() == 0


def test_progress_says_whether_a_trainer_takes_orders(peer: _Peer) -> None:
    peer.link.send_progress(1, 10, 100.0, 0.01)
    peer.link.takes_traces = True
    peer.link.send_progress(2, 10, 100.0, 0.01)
    assert [peer.read().progress.takes_traces for _ in range(3)] == [False, False, True]


def test_lost_runner_is_noticed(peer: _Peer) -> None:
    peer.close()
    assert peer.lost.wait(_SECONDS)
    peer.link.send_metrics(MetricsPoint("training", 1, {}))
    assert peer.link.flush()


def _answer(number: int, **content: Any) -> bytes:
    return _frame(rank_pb2.RunnerMessage(trial_answer=rank_pb2.TrialAnswer(number=number, **content)))


def test_questions_of_several_threads_get_their_own_answers(peer: _Peer) -> None:
    peer.read()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(peer.link.find_trial)
        assert peer.read().trial_query.number == 1
        second = threads.submit(peer.link.find_trial)
        assert peer.read().trial_query.number == 2
        # One that nobody asked for, one twice, and in another order.
        peer.connection.sendall(_answer(9) + _answer(2, metadata_json='{"b": 2}') * 2 + _answer(1, best_validation=0.5))
        assert second.result(_SECONDS).metadata_json == '{"b": 2}'
        assert first.result(_SECONDS).best_validation == 0.5


def test_a_question_without_an_answer_ends_in_one_line(peer: _Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    peer.read()
    monkeypatch.setattr(link, "_ANSWER_SECONDS", 0.05)
    with pytest.raises(GanglineError, match="cannot be read now: the trial runner gave no answer") as caught:
        peer.link.find_trial()
    assert (caught.value.code, caught.value.kind) == ("core.no_answer", ErrorKind.UNAVAILABLE)
    monkeypatch.setattr(link, "_ANSWER_SECONDS", _SECONDS)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(peer.link.find_trial)
        while (message := peer.read()).trial_query.number < 2:
            assert message.HasField("trial_query")
        # The answer to the first question comes too late, and is not taken for that to the second one.
        peer.connection.sendall(_answer(1, metadata_json="{}") + _answer(2, problem="no scheduler has answered"))
        with pytest.raises(GanglineError, match="cannot be read now: no scheduler has answered"):
            asked.result(_SECONDS)
