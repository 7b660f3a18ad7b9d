"""PURE: what an agent does about each allocation that it finds in its journal when it starts.

`Found` is what disk and kernel say; `plan_recovery` decides. The rule behind every case: slots count as free only when
nothing of their old allocation is alive, and what was accepted ends with exactly one report. The journal module reads
the disk and the agent carries the verdict out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from services.agent.record import Phase, Record


class Verdict(StrEnum):
    """What to do with one folder of the journal."""

    KEEP = "KEEP"  # it has ended: report it until the scheduler says Forget
    START = "START"  # it was accepted, and nothing was started yet
    ADOPT = "ADOPT"  # its runner lives: watch it
    CONCLUDE = "CONCLUDE"  # its runner is gone: report how it ended
    KILL = "KILL"  # something lives that nobody may own: end it, then report
    DISCARD = "DISCARD"  # it was never accepted: the agent stopped before its record was complete


@dataclass(frozen=True, slots=True)
class Found:
    """record: None when there is none or it cannot be read (then problem says so).

    has_spec: spec.json is there and readable. is_alive: the runner's lock is held, or its process lives. has_exit: the
    runner left its exit.json. problem: names the unreadable file; empty when all is well. was_tried: its start may be
    behind it, although the record does not say so.
    """

    record: Record | None
    has_spec: bool
    is_alive: bool
    has_exit: bool
    problem: str = ""
    was_tried: bool = False


def plan_recovery(found: Found) -> Verdict:
    """One verdict for one folder; the same for the same findings, so that a second crash changes nothing."""
    if found.record is None:
        return _plan_without_record(found)
    if not found.record.is_live:
        return Verdict.KILL if found.is_alive else Verdict.KEEP
    if found.is_alive:
        return Verdict.ADOPT
    is_unstarted = found.record.phase is Phase.ACCEPTED and not found.has_exit and not found.was_tried
    if is_unstarted and found.has_spec:
        return Verdict.START
    return Verdict.CONCLUDE


def _plan_without_record(found: Found) -> Verdict:
    if found.is_alive:
        # Training goes on when a file of ours is broken, as long as we know which slots it uses.
        return Verdict.ADOPT if found.has_spec else Verdict.KILL
    if found.problem or found.has_exit:
        return Verdict.CONCLUDE
    # The runner starts after the record is complete, so without any record nothing was started or promised.
    return Verdict.DISCARD
