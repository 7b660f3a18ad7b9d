"""A connection of a rank to its trial runner, over the runner's unix socket.

Each frame holds a RankMessage or a RunnerMessage. Frequent reports go over a second socket, which the runner reads less
often; it reads it before each message of the first one. So no report arrives after a message that was sent later, but
reports may arrive before a message that was sent earlier. Sending never waits for the runner. A background thread sends
what a socket does not take at once. The thread starts with the connection, which is made after the fork, in the rank. A
lost runner ends the rank. Made by link.py.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from gangline import frame, unix_socket
from gangline.domain.state import ExitKind
from gangline.errors import unavailable
from gangline.protocol.wire import enum_number
from gangline.report_socket import ReportSender
from gangline.v1 import rank_pb2

# The exit code of a rank that has lost its runner.
EXIT_CODE_RUNNER_LOST = 70
# How long the end of a rank waits for its last messages to be sent.
FLUSH_SECONDS = 10.0
# Limit for an answer about the trial. The trial runner itself gives up earlier, and says why.
_ANSWER_SECONDS = 20.0
_log = logging.getLogger("gangline")


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
        self._path, self._rank = path, rank
        # Made for the first report; None where the runner has no such socket, as one of an earlier version.
        self._reports: ReportSender | None = None
        # Frames that wait for the reports before them.
        self._behind = bytearray()
        self._has_reported = False
        self._send(hello=self._hello())
        self._thread = threading.Thread(target=self._serve, name="gangline-link", daemon=True)
        self._thread.start()

    @property
    def preemption(self) -> str | None:
        return self._preemption

    def send_rank(self, rank: int) -> None:
        """Reports the rank of this process, where it became known only after the connection was made."""
        self._rank = rank
        if self._reports is not None:
            self._report(hello=self._hello())
        self._send(hello=self._hello())

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
        *,
        at: float | None = None,
    ) -> None:
        self.batches_completed = max(self.batches_completed, batches_completed)
        point = rank_pb2.RankMetrics(
            group=group,
            batches_completed=batches_completed,
            metrics=metrics,
            units=units,
            values_json=values_json,
            at=time.time() if at is None else at,
        )
        # The scheduler decides by validations.
        send = self._send if group == "validation" else self._report
        send(metrics=point)

    def send_progress(
        self, batches_completed: int, batches_total: int, samples_per_second: float, seconds_per_batch: float
    ) -> None:
        self.batches_completed = max(self.batches_completed, batches_completed)
        self._report(
            progress=rank_pb2.RankProgress(
                batches_completed=batches_completed,
                batches_total=batches_total,
                samples_per_second=samples_per_second,
                seconds_per_batch=seconds_per_batch,
                takes_traces=bool(self.takes_traces),
                at=time.time(),
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

    def send_stored_files(self, changed_ns_by_path: Mapping[str, int]) -> None:
        self._send(stored_files=rank_pb2.RankStoredFiles(changed_ns_by_path=changed_ns_by_path))

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

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> bool:
        with self._lock:
            return self._lock.wait_for(
                lambda: not (self._pending or self._behind or self._has_stuck_reports), timeout_seconds
            )

    def close(self) -> None:
        """Ends the connection and its thread without ending the process. It may be called twice."""
        self._is_closed = True
        self._wake()
        self._thread.join(FLUSH_SECONDS)

    def _hello(self) -> rank_pb2.RankHello:
        return rank_pb2.RankHello(rank=self._rank, pid=os.getpid())

    def _report(self, **content: Any) -> None:
        """Sends over the second socket where the runner has one."""
        with self._lock:
            if not self._has_reported:
                self._has_reported = True
                with suppress(OSError):
                    self._reports = ReportSender(self._path)
                    self._send_report(rank_pb2.RankMessage(hello=self._hello()).SerializeToString())
            packet = rank_pb2.RankMessage(**content).SerializeToString()
            was_stuck = self._has_stuck_reports
            if self._reports is None or not self._reports.takes(packet):
                self._send_frame(frame.pack(packet))
            else:
                self._send_report(packet)
            is_newly_stuck = self._has_stuck_reports and not was_stuck
        if is_newly_stuck:
            self._hurry()

    @property
    def _has_stuck_reports(self) -> bool:
        return self._reports is not None and self._reports.is_stuck

    def _send_report(self, packet: bytes | None) -> None:
        """Sends a report, or those that are stuck, and then what waits behind them. The caller holds the lock."""
        reports = self._reports
        if reports is None:
            return
        try:
            if packet is None:
                reports.send_waiting()
            else:
                reports.send(packet)
        except OSError:
            # The runner has closed this socket alone.
            for unsent in reports.give_up():
                self._send_frame(frame.pack(unsent))
        if not self._has_stuck_reports and self._behind:
            behind, self._behind = self._behind, bytearray()
            self._send_frame(behind)

    def _hurry(self) -> None:
        """Has the runner read the reports now: it does so before each message, also before an empty one."""
        with self._lock:
            self._send_now(frame.pack(rank_pb2.RankMessage().SerializeToString()))
        self._wake()

    def _send(self, **content: Any) -> None:
        with self._lock:
            self._send_frame(frame.pack(rank_pb2.RankMessage(**content).SerializeToString()))

    def _send_frame(self, content: bytes | bytearray) -> None:
        """Sends frames after all reports before them. The caller holds the lock."""
        if self._has_stuck_reports:
            self._behind += content
        else:
            self._send_now(content)

    def _send_now(self, content: bytes | bytearray) -> None:
        """The caller holds the lock."""
        is_idle = not self._pending
        # A frame is appended whole under the lock, so frames of several threads do not mix.
        self._pending += content
        if is_idle:
            self._send_pending()
        if self._pending:
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
                self._watch_reports(selector)
                for key, events in selector.select():
                    if key.fileobj == self._wake_reader:
                        os.read(self._wake_reader, 4096)
                    elif key.fileobj is self._reports:
                        self._send_stuck_reports()
                    elif not self._serve_socket(events, received):
                        self._socket.close()
                        self._on_lost()
                        return
        self._socket.close()
        if self._reports is not None:
            self._reports.close()

    def _watch_reports(self, selector: selectors.BaseSelector) -> None:
        """Waits for the second socket only while reports are stuck."""
        reports = self._reports
        if reports is None:
            return
        is_watched = reports.fileno() in selector.get_map()
        if reports.is_stuck and not is_watched:
            selector.register(reports, selectors.EVENT_WRITE)
        elif is_watched and not reports.is_stuck:
            selector.unregister(reports)

    def _send_stuck_reports(self) -> None:
        with self._lock:
            self._send_report(None)
            self._lock.notify_all()
            is_stuck = self._has_stuck_reports
        if is_stuck:
            self._hurry()

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
