"""PURE: the journal's record of one allocation, and the only transitions that it may make.

A record goes ACCEPTED -> RUNNING -> ENDED and never back; ENDED carries the report that the scheduler must get. The
journal writes these records to disk, and the allocation's lifecycle (allocation.py) makes the transitions. This module
uses no clock and no file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from gangline.domain.state import ExitKind

# Written into each record. A record of another version counts as unreadable.
SCHEMA_VERSION = 1


class Phase(StrEnum):
    """ACCEPTED: journaled, no runner known. RUNNING: its runner was started. ENDED: its report is in the journal."""

    ACCEPTED = "ACCEPTED"
    RUNNING = "RUNNING"
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class Process:
    """One process. Its start (clock ticks since boot) and its boot tell it apart from a later process with the same
    pid."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class JournalStop:
    """An order to end."""

    kind: ExitKind  # PREEMPTED (with a checkpoint first) or KILLED
    reason: str
    deadline_at: float  # Unix seconds at which the remaining processes are killed


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """The state of one allocation."""

    allocation_id: str
    epoch: int
    slot_ids: tuple[str, ...]
    accepted_at: float
    phase: Phase = Phase.ACCEPTED
    process: Process | None = None
    stop: JournalStop | None = None
    status: Mapping[str, Any] | None = None  # the final AllocationStatus as proto JSON; None until the record is ENDED
    boot_id: str = ""  # boot of the machine at the acceptance, if the record does not note the start; empty otherwise

    @property
    def is_live(self) -> bool:
        return self.phase is not Phase.ENDED


def mark_started(record: JournalRecord, process: Process | None) -> JournalRecord:
    """Notes that the runner was started. process: None if it is not known which process it is. An ended record stays
    ended."""
    return replace(record, phase=Phase.RUNNING, process=process) if record.is_live else record


def mark_stopping(record: JournalRecord, order: JournalStop) -> JournalRecord:
    """Adds an order to stop. Orders only get stricter: KILLED replaces PREEMPTED, and the earlier deadline is kept."""
    if not record.is_live:
        return record
    return replace(record, stop=order if record.stop is None else _stricter(record.stop, order))


def mark_ended(record: JournalRecord, status: Mapping[str, Any]) -> JournalRecord:
    """Notes the final status. The first one stays, because a terminal state never changes."""
    return replace(record, phase=Phase.ENDED, status=status) if record.is_live else record


def find_holders(records: Iterable[JournalRecord], allocation_id: str, slot_ids: Iterable[str]) -> tuple[str, ...]:
    """Returns the other live allocations that hold one of these slots."""
    wanted = set(slot_ids)
    return tuple(
        record.allocation_id
        for record in records
        if record.is_live and record.allocation_id != allocation_id and wanted.intersection(record.slot_ids)
    )


def format_record(record: JournalRecord) -> str:
    # asdict copies every value, which takes longer than the rest of a write.
    values = {each.name: getattr(record, each.name) for each in fields(JournalRecord)}
    for name in ("process", "stop"):
        part = values[name]
        values[name] = {each.name: getattr(part, each.name) for each in fields(part)} if part else None
    return json.dumps({"version": SCHEMA_VERSION, **values}) + "\n"


def parse_record(text: str) -> JournalRecord:
    """Returns the record of a text that `format_record` wrote. Raises ValueError with a sentence for any other text."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(values, dict) or values.pop("version", None) != SCHEMA_VERSION:
        raise ValueError(f"no journal record of version {SCHEMA_VERSION}")
    try:
        return _read_record(values)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a field is missing or wrong: {error}") from error


def _read_record(values: dict[str, Any]) -> JournalRecord:
    process, stop, status = values["process"], values["stop"], values["status"]
    record = JournalRecord(
        allocation_id=str(values["allocation_id"]),
        epoch=int(values["epoch"]),
        slot_ids=tuple(str(slot_id) for slot_id in values["slot_ids"]),
        accepted_at=float(values["accepted_at"]),
        phase=Phase(values["phase"]),
        process=Process(**process) if process else None,
        stop=JournalStop(**{**stop, "kind": ExitKind(stop["kind"])}) if stop else None,
        status=dict(status) if status is not None else None,
        boot_id=str(values.get("boot_id", "")),
    )
    if record.phase is Phase.ENDED and not record.status:
        raise ValueError("ENDED without a status")
    return record


def _stricter(first: JournalStop, second: JournalStop) -> JournalStop:
    harder = second if second.kind is ExitKind.KILLED and first.kind is not ExitKind.KILLED else first
    return replace(harder, deadline_at=min(first.deadline_at, second.deadline_at))
