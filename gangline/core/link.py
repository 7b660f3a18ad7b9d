"""Connects a rank to its trial runner over the runner's unix socket.

Owns the one connection of this process. Each frame holds a RankMessage or a RunnerMessage. Sending never waits for the
runner. A background thread sends what the socket does not take at once. The thread starts with the connection, which is
made after the fork, in the rank. A lost runner ends the rank. Called by gangline.rank.entrypoint, gangline.core and
gangline.pytorch.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from gangline import frame, unix_socket
from gangline.cluster_info import get_cluster_info
from gangline.core import worker
from gangline.domain.state import ExitKind
from gangline.errors import unavailable
from gangline.protocol.wire import enum_number
from gangline.v1 import rank_pb2

SOCKET_KEY = "GANGLINE_RUNNER_SOCKET"
# The exit code of a rank that has lost its runner.
EXIT_CODE_RUNNER_LOST = 70
# How long the end of a rank waits for its last messages to be sent.
_FLUSH_SECONDS = 10.0
# Limit for an answer about the trial. The trial runner itself gives up earlier, and says why.
_ANSWER_SECONDS = 20.0
_log = logging.getLogger("gangline")


class Link(Protocol):
    """The messages that a rank sends to its trial runner, its questions, and the runner's orders.

    batches_completed: the newest count that was sent.
    takes_traces: whether a trainer runs that polls `take_trace`, None before the first one. Each progress message
    carries it.
    preemption_ends_at: when the runner kills a preempted rank, on the clock of time.monotonic; None while unknown.
    """

    batches_completed: int
    takes_traces: bool | None
    preemption_ends_at: float | None

    @property
    def preemption(self) -> str | None:
        """Returns the reason why this rank is asked to stop after a checkpoint; None while it is not."""
        ...

    def take_trace(self) -> int:
        """Returns how many batches to trace, once for each order. It returns 0 without an order, and on ranks other
        than the chief."""
        ...

    def send_metrics(
        self,
        group: str,
        batches_completed: int,
        metrics: dict[str, float],
        units: float | None = None,
        values_json: str = "",
    ) -> None:
        """Sends metrics. units: of a validation, the length trained in the searcher's unit; None where unknown.
        values_json: the metrics that are no numbers, by name."""
        ...

    def send_progress(
        self, batches_completed: int, batches_total: int, samples_per_second: float, seconds_per_batch: float
    ) -> None: ...

    def send_checkpoint(self, checkpoint: Any) -> None:
        """Reports a checkpoint, or with the state DELETING one that is no longer needed. checkpoint: a types.proto
        Checkpoint, whose trial_id and experiment_id the runner's peer fills in."""
        ...

    def send_waiting(self, text: str) -> None:
        """Reports that this rank waits, and for what; an empty text ends the wait."""
        ...

    def send_first_step(self) -> None:
        """Reports the first step. Only the first call has an effect."""
        ...

    def find_fusion(self, family: str, timeout_seconds: float) -> list[Any]:
        """Returns the types.proto FusionRecords of this family; an empty list when no answer arrives in time. Chief
        only."""
        ...

    def send_fusion(self, record: Any) -> None:
        """Sends a record to be kept for later trials. Chief only. record: a types.proto FusionRecord."""
        ...

    def forget_fusion(self, key: str) -> None:
        """Reports that the record of this key is wrong. Chief only."""
        ...

    def send_metadata(self, metadata_json: str) -> None:
        """Reports the trial's metadata, which replace earlier ones."""
        ...

    def send_strategy_choice(self, text: str) -> None:
        """Reports what `parallelism: auto` has chosen. Chief only. text: see gangline.config.strategy_choice."""
        ...

    def find_trial(self) -> Any:
        """Returns the rank.proto TrialAnswer of the scheduler: the trial's metadata and the experiment's best
        validation. Everything that this rank has sent before counts. Raises GanglineError `core.no_answer` when no
        answer arrives within about 20 seconds."""
        ...

    def send_stopping(self) -> None:
        """Reports that this rank obeys a preemption: it ends after a checkpoint. Only the first call has an effect."""
        ...

    def send_failure(self, kind: ExitKind | None, message: str, traceback: str, error_code: str = "") -> None:
        """Reports the exception that ends this rank. kind: None lets the runner classify the failure from its other
        evidence. error_code: of a GanglineError."""
        ...

    def send_worker_failure(self, kind: ExitKind | None, message: str, traceback: str, error_code: str = "") -> None:
        """Reports the failure of a process that the rank has started. It counts where the rank then fails without a
        cause of its own."""
        ...

    def send_finished(self) -> None: ...

    def flush(self, timeout_seconds: float = _FLUSH_SECONDS) -> bool:
        """Waits until the socket to the runner has taken all messages. Returns False when that took longer than
        timeout_seconds."""
        ...


class LocalLink:
    """The twin off the cluster, without a runner: it keeps the newest count and has no orders."""

    def __init__(self) -> None:
        self.batches_completed = 0
        self.takes_traces: bool | None = None
        self.preemption_ends_at: float | None = None
        self._metadata_json = ""

    @property
    def preemption(self) -> str | None:
        return None

    def take_trace(self) -> int:
        return 0

    def send_metrics(
        self,
        group: str,
        batches_completed: int,
        metrics: dict[str, float],
        units: float | None = None,
        values_json: str = "",
    ) -> None:
        self.batches_completed = max(self.batches_completed, batches_completed)

    def send_progress(
        self, batches_completed: int, batches_total: int, samples_per_second: float, seconds_per_batch: float
    ) -> None:
        self.batches_completed = max(self.batches_completed, batches_completed)

    def send_checkpoint(self, checkpoint: Any) -> None:
        pass

    def send_waiting(self, text: str) -> None:
        pass

    def send_first_step(self) -> None:
        pass

    def find_fusion(self, family: str, timeout_seconds: float) -> list[Any]:
        return []

    def send_fusion(self, record: Any) -> None:
        pass

    def forget_fusion(self, key: str) -> None:
        pass

    def send_metadata(self, metadata_json: str) -> None:
        self._metadata_json = metadata_json

    def send_strategy_choice(self, text: str) -> None:
        pass

    def find_trial(self) -> Any:
        return rank_pb2.TrialAnswer(metadata_json=self._metadata_json)

    def send_stopping(self) -> None:
        pass

    def send_failure(self, kind: ExitKind | None, message: str, traceback: str, error_code: str = "") -> None:
        pass

    def send_worker_failure(self, kind: ExitKind | None, message: str, traceback: str, error_code: str = "") -> None:
        pass

    def send_finished(self) -> None:
        pass

    def flush(self, timeout_seconds: float = _FLUSH_SECONDS) -> bool:
        return True


class RunnerLink:
    """A connection to the trial runner at the given unix socket; it sends a hello at once.

    on_lost is called in the background thread when the runner goes away; by default it ends this process.
    """

    def __init__(self, path: str, rank: int, on_lost: Callable[[], None] | None = None) -> None:
        self.batches_completed = 0
        self.takes_traces: bool | None = None
        self.preemption_ends_at: float | None = None
        self._trace = 0
        self._preemption: str | None = None
        self._fusion: rank_pb2.FusionAnswer | None = None
        # Open questions by their numbers, with the answers that have arrived.
        self._trial_answers: dict[int, rank_pb2.TrialAnswer | None] = {}
        self._num_queries = 0
        self._has_stepped = False
        self._is_stopping = False
        self._on_lost = on_lost or _end_process
        self._pending = bytearray()
        self._lock = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix_socket.connect(self._socket, path)
        self._socket.setblocking(False)
        # The pipe wakes the background thread when the socket has not taken all bytes.
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._is_closed = False
        self._send(hello=rank_pb2.RankHello(rank=rank, pid=os.getpid()))
        self._thread = threading.Thread(target=self._serve, name="gangline-link", daemon=True)
        self._thread.start()

    @property
    def preemption(self) -> str | None:
        return self._preemption

    def send_rank(self, rank: int) -> None:
        """Reports the rank of this process, where it became known only after the connection was made."""
        self._send(hello=rank_pb2.RankHello(rank=rank, pid=os.getpid()))

    def take_trace(self) -> int:
        with self._lock:
            batches, self._trace = self._trace, 0
        return batches

    def send_metrics(
        self,
        group: str,
        batches_completed: int,
        metrics: dict[str, float],
        units: float | None = None,
        values_json: str = "",
    ) -> None:
        self.batches_completed = max(self.batches_completed, batches_completed)
        self._send(
            metrics=rank_pb2.RankMetrics(
                group=group, batches_completed=batches_completed, metrics=metrics, units=units, values_json=values_json
            )
        )

    def send_progress(
        self, batches_completed: int, batches_total: int, samples_per_second: float, seconds_per_batch: float
    ) -> None:
        self.batches_completed = max(self.batches_completed, batches_completed)
        self._send(
            progress=rank_pb2.RankProgress(
                batches_completed=batches_completed,
                batches_total=batches_total,
                samples_per_second=samples_per_second,
                seconds_per_batch=seconds_per_batch,
                takes_traces=bool(self.takes_traces),
            )
        )

    def send_checkpoint(self, checkpoint: Any) -> None:
        self._send(checkpoint=checkpoint)

    def send_waiting(self, text: str) -> None:
        self._send(waiting=rank_pb2.RankWaiting(text=text))

    def send_first_step(self) -> None:
        if not self._has_stepped:
            self._has_stepped = True
            self._send(first_step=rank_pb2.RankFirstStep(at=time.time()))

    def find_fusion(self, family: str, timeout_seconds: float) -> list[Any]:
        self._send(fusion_query=rank_pb2.RankFusionQuery(family=family))
        with self._lock:
            self._lock.wait_for(lambda: self._fusion is not None and self._fusion.family == family, timeout_seconds)
            answer = self._fusion
        return list(answer.records) if answer is not None and answer.family == family else []

    def send_fusion(self, record: Any) -> None:
        self._send(fusion_record=record)

    def forget_fusion(self, key: str) -> None:
        self._send(fusion_forget=rank_pb2.RankFusionForget(key=key))

    def send_metadata(self, metadata_json: str) -> None:
        self._send(trial_metadata=metadata_json)

    def send_strategy_choice(self, text: str) -> None:
        self._send(strategy_choice=text)

    def find_trial(self) -> Any:
        with self._lock:
            self._num_queries += 1
            number = self._num_queries
            self._trial_answers[number] = None
        self._send(trial_query=rank_pb2.RankTrialQuery(number=number))
        with self._lock:
            self._lock.wait_for(lambda: self._trial_answers[number] is not None, _ANSWER_SECONDS)
            answer = self._trial_answers.pop(number)
        if answer is not None and answer.stop_reason:
            # The runner's own order arrives a moment later, through the agent.
            self._preemption = self._preemption or answer.stop_reason
        problem = answer.problem if answer is not None else "the trial runner gave no answer"
        if problem or answer is None:
            raise unavailable(
                "core.no_answer", f"what the cluster has on record of this trial cannot be read now: {problem}"
            )
        return answer

    def send_stopping(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._send(stopping=rank_pb2.RankStopping())

    def send_failure(self, kind: ExitKind | None, message: str, traceback: str, error_code: str = "") -> None:
        self._send(failure=_failure(kind, message, traceback, error_code))

    def send_worker_failure(self, kind: ExitKind | None, message: str, traceback: str, error_code: str = "") -> None:
        self._send(worker_failure=_failure(kind, message, traceback, error_code))

    def send_finished(self) -> None:
        self._send(finished=rank_pb2.RankFinished(batches_completed=self.batches_completed))

    def flush(self, timeout_seconds: float = _FLUSH_SECONDS) -> bool:
        with self._lock:
            return self._lock.wait_for(lambda: not self._pending, timeout_seconds)

    def close(self) -> None:
        """Ends the connection and its thread without ending the process. It may be called twice."""
        self._is_closed = True
        self._wake()
        self._thread.join(_FLUSH_SECONDS)

    def _send(self, **content: Any) -> None:
        payload = rank_pb2.RankMessage(**content).SerializeToString()
        with self._lock:
            is_idle = not self._pending
            # A frame is appended whole under the lock, so frames of several threads do not mix.
            self._pending += frame.pack(payload)
            if is_idle:
                self._send_pending()
            is_stuck = bool(self._pending)
        if is_stuck:
            self._wake()

    def _send_pending(self) -> None:
        """Sends what the socket takes now. The caller holds the lock. The thread detects a broken connection."""
        try:
            del self._pending[: self._socket.send(self._pending)]
        except BlockingIOError:
            return
        except OSError:
            self._pending.clear()
        if not self._pending:
            self._lock.notify_all()

    def _wake(self) -> None:
        try:
            os.write(self._wake_writer, b"w")
        except BlockingIOError:
            return

    def _serve(self) -> None:
        received = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_reader, selectors.EVENT_READ)
            selector.register(self._socket, selectors.EVENT_READ)
            while not self._is_closed:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._pending else 0)
                selector.modify(self._socket, wanted)
                for key, events in selector.select():
                    if key.fileobj == self._wake_reader:
                        os.read(self._wake_reader, 4096)
                    elif not self._serve_socket(events, received):
                        self._socket.close()
                        self._on_lost()
                        return
        self._socket.close()

    def _serve_socket(self, events: int, received: bytearray) -> bool:
        """Sends and receives once. Returns False when the runner is gone."""
        if events & selectors.EVENT_WRITE:
            with self._lock:
                self._send_pending()
        if not events & selectors.EVENT_READ:
            return True
        try:
            chunk = self._socket.recv(65536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        received += chunk
        self._take_frames(received)
        return bool(chunk)

    def _take_frames(self, received: bytearray) -> None:
        for body in frame.take_bodies(received):
            message = rank_pb2.RunnerMessage.FromString(body)
            if message.HasField("preempt"):
                self.preemption_ends_at = time.monotonic() + message.preempt.grace_seconds
                # An empty reason must not read as "not preempted".
                self._preemption = message.preempt.reason or "preempted"
            elif message.HasField("fusion_answer"):
                with self._lock:
                    self._fusion = message.fusion_answer
                    self._lock.notify_all()
            elif message.HasField("trial_answer"):
                with self._lock:
                    # An answer that comes too late is of no use any more.
                    if message.trial_answer.number in self._trial_answers:
                        self._trial_answers[message.trial_answer.number] = message.trial_answer
                        self._lock.notify_all()
            elif message.HasField("trace"):
                self._on_trace(message.trace.batches)

    def _on_trace(self, batches: int) -> None:
        """Keeps the order for the trainer, or refuses it. The scheduler knows which trials have a trainer, but that
        trainer may have ended since, or run in another process of this rank."""
        with self._lock:
            if self.takes_traces:
                self._trace = batches
                return
        if self.takes_traces is not None:
            _log.warning("the ordered trace is refused: training is over")


def _failure(kind: ExitKind | None, message: str, traceback: str, error_code: str) -> rank_pb2.RankFailure:
    return rank_pb2.RankFailure(
        kind=enum_number(kind) if kind else None,  # type: ignore[arg-type]  # the enum is an int at run time
        message=message,
        traceback=traceback,
        failed_at=time.time(),
        error_code=error_code,
    )


def _end_process() -> None:
    sys.stderr.write("gangline: the trial runner of this rank is gone; the rank ends\n")
    sys.stderr.flush()
    os._exit(EXIT_CODE_RUNNER_LOST)


_current: Link | None = None


def connect() -> Link:
    """Returns the connection of this process. The first call makes it; without a runner it is the local twin.

    A worker that a script starts for its rank has a connection of its own, beside that of the rank itself.
    """
    global _current  # noqa: PLW0603  a process has one trial runner
    if _current is None:
        path, cluster = os.environ.get(SOCKET_KEY), get_cluster_info()
        _current = RunnerLink(path, worker.find_place(cluster).rank) if path and cluster else LocalLink()
    return _current


def take_place(rank: int, local_rank: int) -> None:
    """Takes the place that a script names for this process, also on a connection that exists already."""
    worker.name_place(rank, local_rank)
    if isinstance(_current, RunnerLink):
        _current.send_rank(rank)


def _forget() -> None:
    """Forgets the parent's connection in a fork: frames of two processes must not mix."""
    global _current  # noqa: PLW0603  a process has one trial runner
    _current = None


os.register_at_fork(after_in_child=_forget)
