"""PURE: the gateway's own records: a trial runner's delivery, the scope of a reading, and the gateway's health.

gangline.domain.history has the contents of deliveries, and gangline.domain.view has the views.

Replaces implausible numbers in deliveries; metrics that are numbers stay as they are. Leaves out values of metrics that
no reader could show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gangline.domain.history import LogLine, MetricsPoint, ProgressPoint
from gangline.domain.limits import plausible_amount, plausible_count, plausible_time
from gangline.domain.metric_value import admit_values
from gangline.domain.resource import EtcdHealth


@dataclass(frozen=True, slots=True)
class IngestRecord:
    """Holds one record of a spool."""

    sequence: int  # counts from 1 within its spool
    at: float
    content: LogLine | MetricsPoint | ProgressPoint


@dataclass(frozen=True, slots=True)
class IngestBatch:
    """Holds records of one spool in the order of their sequence numbers."""

    spool_id: str
    experiment_id: int
    trial_id: str
    records: tuple[IngestRecord, ...]
    # All records up to it are settled with this batch, including records that were left out. 0 for the last record's
    # number.
    last_sequence: int = 0

    @property
    def attempt(self) -> int:
        """Returns the attempt of the trial that fills this spool, by the allocation's id with which the spool's begins;
        0 for another id."""
        number = self.spool_id.partition("/")[0].removeprefix(f"{self.trial_id}.")
        return int(number) if number.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class Scope:
    """Names the history that a caller asks for."""

    experiment_id: int
    trial_id: str = ""  # empty for all trials
    group: str = ""  # empty for all metrics
    attempt: int | None = None  # one attempt of each trial, or ALL_ATTEMPTS; None for the reports of metrics that count


@dataclass(frozen=True, slots=True)
class Health:
    """Describes the gateway's health."""

    status: str
    has_leader: bool
    revision: int  # the newest revision of etcd that is mirrored
    etcd: EtcdHealth
    problem: str  # why nothing can be changed now; empty if changes are possible


def has_values(record: IngestRecord) -> bool:
    """Returns whether the record has metrics that are no numbers, which `plausible_record` parses."""
    return isinstance(record.content, MetricsPoint) and bool(record.content.values_json)


def plausible_record(record: IngestRecord, now: float) -> IngestRecord:
    """Returns the record with plausible numbers; the same object where nothing is replaced. now: by the gateway's
    clock."""
    at, content = plausible_time(record.at, now), _plausible_content(record.content)
    return record if at == record.at and content is record.content else replace(record, at=at, content=content)


def _plausible_content(content: LogLine | MetricsPoint | ProgressPoint) -> LogLine | MetricsPoint | ProgressPoint:
    """Returns the same object where nothing is replaced."""
    if isinstance(content, LogLine):
        return content
    completed = plausible_count(content.batches_completed)
    if isinstance(content, MetricsPoint):
        values_json, _ = admit_values(content.values_json)
        is_same = completed == content.batches_completed and values_json == content.values_json
        return content if is_same else replace(content, batches_completed=completed, values_json=values_json)
    total, rate = plausible_count(content.batches_total), plausible_amount(content.samples_per_second)
    progress = ProgressPoint(completed, total, rate)
    return content if progress == content else progress
