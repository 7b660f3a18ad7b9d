"""Replaces implausible numbers in reports of runners and agents, and refuses checkpoints that readers cannot show.

The intake calls it with each report before any part of it is committed. A trial reports through its runner, so a user's
program may choose every number. Each replacement is counted; an allocation causes one line in the log.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import structlog

from gangline.domain.allocation import ExitReport
from gangline.domain.document import check_document
from gangline.domain.experiment import Checkpoint
from gangline.domain.id import check_checkpoint_id
from gangline.domain.limits import plausible_amount, plausible_count, plausible_time
from gangline.domain.state import CheckpointState
from gangline.domain.storage.checkpoint_import import is_import_id
from gangline.domain.storage.storage_url import check_checkpoint_place, check_file_inside, check_storage_url
from gangline.errors import invalid
from gangline.v1 import ingest_pb2, runner_pb2
from services.scheduler.state import metrics

_log = structlog.get_logger(__name__)

_COUNTS = {
    "progress": ("batches_completed", "batches_total"),
    "metrics": ("batches_completed",),
    "checkpoint": ("batches_completed",),
    "fusion": ("num_pairs", "steps", "batch_size", "total_bytes"),
}
_AMOUNTS = {
    "progress": ("seconds_per_batch",),
    "fusion": ("default_step_seconds", "tuned_step_seconds", "alpha_seconds", "bytes_per_second"),
}
_TIMES = {"fusion": ("created_at",)}
# The kinds of reports, in /metrics and in the log, that are not called like their field.
_LABELS = {"metrics": "validation"}
# Reports that hold only a text.
_TEXTS = ("forgotten_fusion", "metadata", "strategy_choice", "waiting")
_PHASES = ("runner_up_at", "rendezvous_at", "ranks_up_at", "first_step_at")


class Screening:
    """storage_url: the cluster's storage, whose protocol a checkpoint's URL may have."""

    def __init__(self, storage_url: str) -> None:
        self._storage_url = storage_url
        self._warned: set[str] = set()

    def report(self, allocation_id: str, report: runner_pb2.TrialReport, now: float) -> runner_pb2.TrialReport:
        """Returns the same report in the form of this version, with plausible numbers. A checkpoint's times stay: they
        need the agent's clock."""
        screened = _of_now(report)
        report_kind = screened.WhichOneof("report")
        if report_kind is None or report_kind in _TEXTS:
            return screened
        message = getattr(screened, report_kind)
        replaced = [
            _put(message, name, plausible_count(getattr(message, name))) for name in _COUNTS.get(report_kind, ())
        ]
        replaced += [
            _put(message, name, plausible_amount(getattr(message, name))) for name in _AMOUNTS.get(report_kind, ())
        ]
        replaced += [
            _put(message, name, plausible_time(getattr(message, name), now)) for name in _TIMES.get(report_kind, ())
        ]
        if report_kind == "running":
            timeline = message.timeline
            replaced += [_put(timeline, name, plausible_time(getattr(timeline, name), now)) for name in _PHASES]
        elif report_kind == "checkpoint":
            sizes = {path: plausible_count(size) for path, size in message.file_bytes.items()}
            replaced.append(sizes != dict(message.file_bytes))
            message.file_bytes.update(sizes)
        elif report_kind == "metrics":
            replaced.append(_put(screened, "units", plausible_amount(screened.units)))
        elif report_kind == "fusion":
            sizes_of_buckets = [plausible_count(size) for size in message.bucket_bytes]
            replaced.append(sizes_of_buckets != list(message.bucket_bytes))
            message.bucket_bytes[:] = sizes_of_buckets
        self._count(allocation_id, _LABELS.get(report_kind, report_kind), sum(replaced))
        return screened

    def time(self, allocation_id: str, report_kind: str, at: float, now: float) -> float:
        """Returns one time by the leader's clock, replaced where it is implausible."""
        plausible_at = plausible_time(at, now)
        self._count(allocation_id, report_kind, int(plausible_at != at))
        return plausible_at

    def exit(self, allocation_id: str, report: ExitReport, now: float) -> ExitReport:
        batches = report.batches_completed
        screened = replace(
            report,
            failed_at=plausible_time(report.failed_at, now),
            ended_at=plausible_time(report.ended_at, now),
            batches_completed=None if batches is None else plausible_count(batches),
        )
        self._count(allocation_id, "exit", int(screened != report))
        return screened

    def check_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Raises GanglineError `checkpoint.id`, `place`, `path`, `storage.*` or `document.invalid`."""
        check_checkpoint_id(checkpoint.id)
        if checkpoint.state is not CheckpointState.DELETING:
            if is_import_id(checkpoint.id):
                # Everyone can compute the id of an import from its content, and a record of it would be taken for that.
                text = f"{checkpoint.id} is an id for imported checkpoints, so no trial reports it; save under another"
                raise invalid("checkpoint.id", text)
            check_storage_url(checkpoint.url, self._storage_url)
            check_checkpoint_place(checkpoint.url, checkpoint.id)
            for path in checkpoint.file_bytes:
                check_file_inside(path)
            check_document(checkpoint.metadata_json or "{}", f"the metadata of checkpoint {checkpoint.id}")

    def forget(self, allocation_id: str) -> None:
        self._warned.discard(allocation_id)

    def _count(self, allocation_id: str, report_kind: str, num_replaced: int) -> None:
        if not num_replaced:
            return
        metrics.IMPLAUSIBLE_VALUES.labels(report_kind).inc(num_replaced)
        if allocation_id not in self._warned:
            self._warned.add(allocation_id)
            _log.warning(
                "a report has implausible numbers, which are replaced", allocation_id=allocation_id, kind=report_kind
            )


def _of_now(report: runner_pb2.TrialReport) -> runner_pb2.TrialReport:
    """Returns a copy of the report. Runners of an earlier version report a validation in another message."""
    if report.WhichOneof("report") != "validation":
        copy = runner_pb2.TrialReport()
        copy.CopyFrom(report)
        return copy
    earlier = report.validation
    return runner_pb2.TrialReport(
        sequence=report.sequence,
        metrics=ingest_pb2.MetricsPoint(
            group="validation", batches_completed=earlier.batches_completed, metrics=earlier.metrics
        ),
        units=earlier.units if earlier.HasField("units") else None,
    )


def _put(message: Any, name: str, value: float) -> bool:
    """Sets the value. Returns whether it differs from the reported one."""
    if getattr(message, name) == value:
        return False
    setattr(message, name, value)
    return True
