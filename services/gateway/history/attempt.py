"""Selects the reports of a trial that count, where several attempts have trained the same batches.

A newer attempt continues from a checkpoint and trains later batches again. From its first report on it replaces what
older attempts reported: their rows at its first batch and later ones belong to an abandoned branch of the training.
Rows are never deleted for that; a reader may ask for one attempt, or for all. `training` and `validation` count the
same batches, so each of them also ends what older attempts reported under the other one after that batch. Other
groups may count something else, and are judged by themselves.

`metric_attempts` has the first batch of each attempt, trial and group. The writer moves it in the transaction that
stores the reports. Everything here blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from gangline.domain.history import ALL_ATTEMPTS
from services.gateway.history import table
from services.gateway.history.database import upsert

_LINKED = ("training", "validation")

# The key of a row of `metric_attempts`: trial, group and attempt.
Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class AttemptExtent:
    """The attempts and batches of some reports; batches None for a block of an earlier version."""

    least_attempt: int = 0
    greatest_attempt: int = 0
    least_batches: int | None = None
    greatest_batches: int | None = None


@dataclass(frozen=True, slots=True)
class BatchRange:
    """A range of batches, with both ends."""

    first: int = 0
    last: int | None = None  # None for no end

    def has(self, batches: int) -> bool:
        return self.first <= batches and (self.last is None or batches <= self.last)

    def has_all(self, extent: AttemptExtent) -> bool | None:
        """Whether all reports of this extent are in the range; False for none of them, None if it is not known."""
        if self == EVERY_BATCH:
            return True
        if extent.least_batches is None or extent.greatest_batches is None:
            return None
        if extent.greatest_batches < self.first or (self.last is not None and extent.least_batches > self.last):
            return False
        return True if self.has(extent.least_batches) and self.has(extent.greatest_batches) else None


EVERY_BATCH = BatchRange()


@dataclass(frozen=True, slots=True)
class ReportSelection:
    """Selects reports of one trial and group."""

    attempt: int | None = None  # reports of this attempt alone; None for those that count
    firsts: tuple[tuple[int, int], ...] = ()  # each attempt with the first batch that it replaces
    batch_range: BatchRange = EVERY_BATCH  # reports of these batches alone

    @property
    def is_whole(self) -> bool:
        """Whether every report is selected, so that summaries need no look at attempts. A second attempt may replace
        reports of an earlier version, which name no attempt."""
        is_one_attempt = self.attempt is None and all(number <= 1 for number, _ in self.firsts)
        return is_one_attempt and self.batch_range == EVERY_BATCH

    def has(self, attempt: int, batches: int) -> bool:
        if not self.batch_range.has(batches):
            return False
        if self.attempt is not None:
            return attempt == self.attempt
        return batches < self._end_of(attempt)

    def has_all(self, extent: AttemptExtent) -> bool | None:
        """Whether all of these reports are selected; False for none of them, None where each has to be looked at."""
        in_range = self.batch_range.has_all(extent)
        if in_range is False:
            return False
        of_attempts = self._has_attempts(extent)
        return None if of_attempts and in_range is None else of_attempts

    def _has_attempts(self, extent: AttemptExtent) -> bool | None:
        if self.attempt is not None:
            if extent.least_attempt <= self.attempt <= extent.greatest_attempt:
                return True if extent.least_attempt == extent.greatest_attempt else None
            return False
        # A newer attempt ends no earlier than an older one.
        if self._end_of(extent.least_attempt) == math.inf:
            return True
        if extent.least_batches is None or extent.greatest_batches is None:
            return None
        if extent.greatest_batches < self._end_of(extent.least_attempt):
            return True
        return False if extent.least_batches >= self._end_of(extent.greatest_attempt) else None

    def _end_of(self, attempt: int) -> float:
        """Returns the first batch of this attempt that a newer one replaces."""
        return min((first for newer, first in self.firsts if newer > attempt), default=math.inf)


def read_selection(
    connection: sa.Connection, trial_id: str, group: str, attempt: int | None, batch_range: BatchRange = EVERY_BATCH
) -> ReportSelection:
    """Returns the selection for a reader's choice: None for the reports that count, ALL_ATTEMPTS, or one attempt."""
    if attempt == ALL_ATTEMPTS:
        return ReportSelection(batch_range=batch_range)
    if attempt is not None:
        return ReportSelection(attempt, batch_range=batch_range)
    attempts = table.metric_attempts
    groups = {group, *_LINKED} if group in _LINKED else {group}
    rows = connection.execute(
        sa.select(attempts.c.metric_group, attempts.c.attempt, attempts.c.first_batches).where(
            attempts.c.trial_id == trial_id, attempts.c.metric_group.in_(groups)
        )
    )
    firsts: dict[int, int] = {}
    for row in rows:
        first = row.first_batches + (row.metric_group != group)
        firsts[row.attempt] = min(first, firsts.get(row.attempt, first))
    return ReportSelection(None, tuple(sorted(firsts.items())), batch_range)


def of_attempt(attempt: int | None) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions on rows of `metrics`, of any trials and groups. attempt: as in `read_selection`."""
    rows, attempts = table.metrics, table.metric_attempts
    own = sa.func.coalesce(rows.c.attempt, 0)
    if attempt == ALL_ATTEMPTS:
        return []
    if attempt is not None:
        return [own == attempt]
    replaces = sa.or_(
        sa.and_(
            attempts.c.metric_group == rows.c.metric_group,
            attempts.c.first_batches <= rows.c.batches_completed,
        ),
        sa.and_(
            rows.c.metric_group.in_(_LINKED),
            attempts.c.metric_group.in_(_LINKED),
            attempts.c.first_batches < rows.c.batches_completed,
        ),
    )
    newer = sa.select(attempts.c.attempt).where(
        attempts.c.trial_id == rows.c.trial_id, attempts.c.attempt > own, replaces
    )
    return [~newer.correlate(rows).exists()]


def note_attempts(connection: sa.Connection, first_batches: Mapping[Key, int]) -> None:
    """Records the first batch of each attempt; an earlier one that is on record stays."""
    rows = [
        {"trial_id": trial_id, "metric_group": group, "attempt": attempt, "first_batches": first}
        for (trial_id, group, attempt), first in first_batches.items()
    ]
    upsert(connection, table.metric_attempts, rows, _is_earlier)


def _is_earlier(new: Any, old: Any) -> sa.ColumnElement[bool]:
    is_earlier: sa.ColumnElement[bool] = new.first_batches < old.first_batches
    return is_earlier


def extent_of(attempts_and_batches: Sequence[tuple[int, int]]) -> AttemptExtent:
    """Returns the extent of at least one report."""
    attempts, batches = zip(*attempts_and_batches, strict=True)
    return AttemptExtent(min(attempts), max(attempts), min(batches), max(batches))
