"""PURE: makes the time, counts and rates of a trial runner's record plausible.

The metrics themselves stay as they are, NaN and infinities included. Called before records are stored.
"""

from __future__ import annotations

from dataclasses import replace

from gangline.domain.history import LogLine, MetricsPoint, ProgressPoint
from gangline.domain.plausible import plausible_amount, plausible_count, plausible_time
from services.gateway.record import IngestRecord


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
        return content if completed == content.batches_completed else replace(content, batches_completed=completed)
    total, rate = plausible_count(content.batches_total), plausible_amount(content.samples_per_second)
    found = ProgressPoint(completed, total, rate)
    return content if found == content else found
