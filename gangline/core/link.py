"""The messages of a rank to its trial runner, and the runner's orders.

Owns the one connection of this process; `runner_wire.py` carries its messages. Called by gangline.rank.entrypoint,
gangline.core and gangline.pytorch.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from gangline.cluster_info import get_cluster_info
from gangline.core import worker
from gangline.core.runner_wire import FLUSH_SECONDS, RunnerWire
from gangline.domain.history import MetricsPoint
from gangline.domain.state import ExitKind
from gangline.errors import unavailable
from gangline.protocol import wire
from gangline.v1 import rank_pb2

SOCKET_KEY = "GANGLINE_RUNNER_SOCKET"
# Limit for an answer about the trial. The trial runner itself gives up earlier, and says why.
_ANSWER_SECONDS = 20.0
_log = logging.getLogger("gangline")


class Link:
    """The messages that a rank sends to its trial runner, its questions, and the runner's orders.

    path: of the runner's unix socket; None off the cluster, where nothing is sent, there are no orders, and only the
    trial's own metadata are known. on_lost: see RunnerWire.
    """

    def __init__(self, path: str | None = None, rank: int = 0, on_lost: Callable[[], None] | None = None) -> None:
        self.batches_completed = 0  # the newest count that was sent
        # Whether a trainer runs that polls `take_trace`; None before the first one. Each progress message carries it.
        self.takes_traces: bool | None = None
        # time of time.monotonic at which the runner kills a preempted rank; None while unknown
        self.preemption_ends_at: float | None = None
        self._trace = 0
        self._preemption: str | None = None
        self._fusion: rank_pb2.FusionAnswer | None = None
        # Open questions by their numbers, with the answers that have arrived.
        self._trial_answers: dict[int, rank_pb2.TrialAnswer | None] = {}
        self._num_queries = 0
        self._metadata_json = ""
        self._has_stepped = False
        self._is_stopping = False
        # Guards what the thread of the wire writes.
        self._lock = threading.Condition()
        self._wire = RunnerWire(path, rank, self._on_message, on_lost) if path is not None else None

    @property
    def preemption(self) -> str | None:
        """Returns the reason why this rank is asked to stop after a checkpoint; None while it is not."""
        return self._preemption

    def take_trace(self) -> int:
        """Returns how many batches to trace, once for each order. It returns 0 without an order, and on ranks other
        than the chief."""
        with self._lock:
            batches, self._trace = self._trace, 0
        return batches

    def send_metrics(self, point: MetricsPoint, *, units: float | None = None, at: float | None = None) -> None:
        """Sends metrics. units: of a validation, the length trained in the searcher's unit; None where unknown. at:
        when they were gathered, in seconds since 1970; None for now."""
        self.batches_completed = max(self.batches_completed, point.batches_completed)
        if self._wire is None:
            return
        # The scheduler decides by validations.
        send = self._wire.send if point.group == "validation" else self._wire.report
        send(metrics=wire.to_proto(point), units=units, at=time.time() if at is None else at)

    def send_progress(
        self, batches_completed: int, batches_total: int, samples_per_second: float, seconds_per_batch: float
    ) -> None:
        self.batches_completed = max(self.batches_completed, batches_completed)
        if self._wire is None:
            return
        self._wire.report(
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
        """Reports a checkpoint, or with the state DELETING one that is no longer needed. checkpoint: a types.proto
        Checkpoint, whose trial_id and experiment_id the runner's peer fills in."""
        self._send(checkpoint=checkpoint)

    def send_waiting(self, text: str) -> None:
        """Reports that this rank waits, and for what; an empty text ends the wait."""
        self._send(waiting=rank_pb2.RankWaiting(text=text))

    def send_first_step(self) -> None:
        """Reports the first step. Only the first call has an effect."""
        if not self._has_stepped:
            self._has_stepped = True
            self._send(first_step=rank_pb2.RankFirstStep(at=time.time()))

    def find_fusion(self, family: str, timeout_seconds: float) -> list[Any]:
        """Returns the types.proto FusionRecords of this family; an empty list when no answer arrives in time. Chief
        only."""
        if self._wire is None:
            return []
        self._wire.send(fusion_query=rank_pb2.RankFusionQuery(family=family))
        with self._lock:
            self._lock.wait_for(lambda: self._fusion is not None and self._fusion.family == family, timeout_seconds)
            answer = self._fusion
        return list(answer.records) if answer is not None and answer.family == family else []

    def send_fusion(self, record: Any) -> None:
        """Sends a record to be kept for later trials. Chief only. record: a types.proto FusionRecord."""
        self._send(fusion_record=record)

    def forget_fusion(self, key: str) -> None:
        """Reports that the record of this key is wrong. Chief only."""
        self._send(fusion_forget=rank_pb2.RankFusionForget(key=key))

    def send_metadata(self, metadata_json: str) -> None:
        """Reports the trial's metadata, which replace earlier ones."""
        self._metadata_json = metadata_json
        self._send(trial_metadata=metadata_json)

    def send_strategy_choice(self, text: str) -> None:
        """Reports what `parallelism: auto` has chosen. Chief only. text: see gangline.config.strategy_choice."""
        self._send(strategy_choice=text)

    def send_stored_files(self, changed_ns_by_path: Mapping[str, int]) -> None:
        """Reports files whose content is in a checkpoint, so that the runner does not name them as lost.
        changed_ns_by_path: the time of the last change in nanoseconds, by the path below the working folder."""
        self._send(stored_files=rank_pb2.RankStoredFiles(changed_ns_by_path=changed_ns_by_path))

    def find_trial(self) -> Any:
        """Returns the rank.proto TrialAnswer of the scheduler: the trial's metadata and the experiment's best
        validation. Everything that this rank has sent before counts. Raises GanglineError `core.no_answer` when no
        answer arrives within about 20 seconds."""
        if self._wire is None:
            return rank_pb2.TrialAnswer(metadata_json=self._metadata_json)
        with self._lock:
            self._num_queries += 1
            number = self._num_queries
            self._trial_answers[number] = None
        self._wire.send(trial_query=rank_pb2.RankTrialQuery(number=number))
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
        """Reports that this rank obeys a preemption: it ends after a checkpoint. Only the first call has an effect."""
        if not self._is_stopping:
            self._is_stopping = True
            self._send(stopping=rank_pb2.RankStopping())

    def send_failure(self, kind: ExitKind | None, message: str, traceback: str, error_code: str = "") -> None:
        """Reports the exception that ends this rank. kind: None lets the runner classify the failure from its other
        evidence. error_code: of a GanglineError."""
        self._send(failure=_failure(kind, message, traceback, error_code))

    def send_worker_failure(self, kind: ExitKind | None, message: str, traceback: str, error_code: str = "") -> None:
        """Reports the failure of a process that the rank has started. It counts where the rank then fails without a
        cause of its own."""
        self._send(worker_failure=_failure(kind, message, traceback, error_code))

    def send_finished(self) -> None:
        self._send(finished=rank_pb2.RankFinished(batches_completed=self.batches_completed))

    def send_rank(self, rank: int) -> None:
        """Reports the rank of this process, where it became known only after the connection was made."""
        if self._wire is not None:
            self._wire.send_rank(rank)

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> bool:
        """Waits until the socket to the runner has taken all messages. Returns False when that took longer than
        timeout_seconds."""
        return self._wire is None or self._wire.flush(timeout_seconds)

    def close(self) -> None:
        """Ends the connection and its thread without ending the process. It may be called twice."""
        if self._wire is not None:
            self._wire.close()

    def _send(self, **content: Any) -> None:
        if self._wire is not None:
            self._wire.send(**content)

    def _on_message(self, message: rank_pb2.RunnerMessage) -> None:
        """Called in the thread of the wire."""
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
        kind=wire.enum_number(kind) if kind else None,  # type: ignore[arg-type]  # the enum is an int at run time
        message=message,
        traceback=traceback,
        failed_at=time.time(),
        error_code=error_code,
    )


_current: Link | None = None


def connect() -> Link:
    """Returns the connection of this process. The first call makes it; without a runner it sends nothing.

    A worker that a script starts for its rank has a connection of its own, beside that of the rank itself.
    """
    global _current  # noqa: PLW0603  a process has one trial runner
    if _current is None:
        path, cluster = os.environ.get(SOCKET_KEY), get_cluster_info()
        _current = Link(path, worker.find_place(cluster).rank) if path and cluster else Link()
    return _current


def take_place(rank: int, local_rank: int) -> None:
    """Takes the place that a script names for this process, also on a connection that exists already."""
    worker.name_place(rank, local_rank)
    if _current is not None:
        _current.send_rank(rank)


def _forget() -> None:
    """Forgets the parent's connection in a fork: frames of two processes must not mix."""
    global _current  # noqa: PLW0603  a process has one trial runner
    _current = None


os.register_at_fork(after_in_child=_forget)
