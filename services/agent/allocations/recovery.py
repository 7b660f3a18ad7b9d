"""PURE: the verdict of a starting agent on each allocation that it finds in its journal.

`Findings` come from disk and kernel; `plan_recovery` decides. One rule is behind every case. Slots count as free only
when no process of their old allocation is alive, and an accepted allocation ends with exactly one report. The journal
module reads the disk, and the roster carries the verdict out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from services.agent.allocations.journal_record import JournalRecord, Phase


class RecoveryVerdict(StrEnum):
    """The action for one folder of the journal."""

    KEEP = "KEEP"  # it has ended: report it until the scheduler sends Forget
    START = "START"  # it was accepted, and no runner was started yet
    ADOPT = "ADOPT"  # its runner lives: watch it
    CONCLUDE = "CONCLUDE"  # its runner is gone: report how it ended
    KILL = "KILL"  # a process lives that no allocation may own: kill it, then report
    DISCARD = "DISCARD"  # it was never accepted: the agent stopped before its record was complete


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings on one folder."""

    record: JournalRecord | None  # None if there is none or it cannot be read; `problem` then names it
    has_spec: bool  # whether spec.json exists and is readable
    is_alive: bool  # whether the runner's lock is held, or its process lives
    has_exit: bool  # whether the runner left its exit.json
    problem: str = ""  # names the unreadable file; empty if there is none
    was_tried: bool = False  # whether the runner may have been started although the record does not note it


def plan_recovery(findings: Findings) -> RecoveryVerdict:
    """Returns the verdict for one folder. The same findings give the same verdict, so a second crash changes
    nothing."""
    if findings.record is None:
        return _plan_without_record(findings)
    if not findings.record.is_live:
        return RecoveryVerdict.KILL if findings.is_alive else RecoveryVerdict.KEEP
    if findings.is_alive:
        return RecoveryVerdict.ADOPT
    is_unstarted = findings.record.phase is Phase.ACCEPTED and not findings.has_exit and not findings.was_tried
    if is_unstarted and findings.has_spec:
        return RecoveryVerdict.START
    return RecoveryVerdict.CONCLUDE


def _plan_without_record(findings: Findings) -> RecoveryVerdict:
    if findings.is_alive:
        # Training continues although a file of the journal is broken, as long as its slots are known.
        return RecoveryVerdict.ADOPT if findings.has_spec else RecoveryVerdict.KILL
    if findings.problem or findings.has_exit:
        return RecoveryVerdict.CONCLUDE
    # The runner starts after the record is complete. So without any record no runner was started, and no slot was
    # promised.
    return RecoveryVerdict.DISCARD
