"""The messages of a rank to its trial runner, and the runner's orders.

Owns the one connection of this process, and its twin off the cluster. Called by gangline.rank.entrypoint, gangline.core
and gangline.pytorch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from gangline.cluster_info import get_cluster_info
from gangline.core import worker
from gangline.core.runner_link import FLUSH_SECONDS, RunnerLink
from gangline.domain.state import ExitKind
from gangline.v1 import rank_pb2

SOCKET_KEY = "GANGLINE_RUNNER_SOCKET"


class Link(Protocol):
    """The messages that a rank sends to its trial runner, its questions, and the runner's orders."""

    batches_completed: int  # the newest count that was sent
    # Whether a trainer runs that polls `take_trace`; None before the first one. Each progress message carries it.
    takes_traces: bool | None
    # time of time.monotonic at which the runner kills a preempted rank; None while unknown
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
        *,
        at: float | None = None,
    ) -> None:
        """Sends metrics. units: of a validation, the length trained in the searcher's unit; None where unknown.
        values_json: the metrics that are no numbers, by name. at: when they were gathered, in seconds since 1970; None
        for now."""
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

    def send_stored_files(self, changed_ns_by_path: Mapping[str, int]) -> None:
        """Reports files whose content is in a checkpoint, so that the runner does not name them as lost.
        changed_ns_by_path: the time of the last change in nanoseconds, by the path below the working folder."""
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

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> bool:
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
        *,
        at: float | None = None,
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

    def send_stored_files(self, changed_ns_by_path: Mapping[str, int]) -> None:
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

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> bool:
        return True


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
