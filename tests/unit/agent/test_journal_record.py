"""A journal record and the ways in which it may change."""

from __future__ import annotations

import pytest

from gangline.domain.state import ExitKind
from services.agent.allocations.journal_record import (
    JournalRecord,
    JournalStop,
    Phase,
    Process,
    find_holders,
    format_record,
    mark_ended,
    mark_started,
    mark_stopping,
    parse_record,
)

ACCEPTED = JournalRecord("1.1.1", 7, ("a1/0", "a1/1"), accepted_at=100.0)
RUNNER = Process(4242, 99, "boot")


def _stop(kind: ExitKind, deadline_at: float) -> JournalStop:
    return JournalStop(kind, f"{kind} by {deadline_at}", deadline_at)


def test_text_and_back() -> None:
    record = mark_stopping(mark_started(ACCEPTED, RUNNER), _stop(ExitKind.PREEMPTED, 130.0))
    record = mark_ended(record, {"allocationId": "1.1.1", "exit": {"kind": "EXIT_KIND_KILLED"}})
    assert parse_record(format_record(record)) == record
    assert parse_record(format_record(ACCEPTED)) == ACCEPTED


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no JSON"),
        ("[]", "no journal record of version 1"),
        ('{"version": 2}', "no journal record of version 1"),
        ('{"version": 1}', "a field is missing or wrong: 'process'"),
        (format_record(ACCEPTED).replace("ACCEPTED", "DREAMING"), "'DREAMING' is not a valid Phase"),
        (format_record(ACCEPTED).replace("ACCEPTED", "ENDED"), "ENDED without a status"),
    ],
)
def test_unreadable(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_record(text)


def test_a_terminal_state_never_changes() -> None:
    ended = mark_ended(ACCEPTED, {"exit": {}})
    assert mark_started(ended, RUNNER) == ended
    assert mark_stopping(ended, _stop(ExitKind.KILLED, 1.0)) == ended
    assert mark_ended(ended, {"exit": {"kind": "EXIT_KIND_COMPLETED"}}) == ended


@pytest.mark.parametrize(
    ("orders", "kind", "deadline_at"),
    [
        ([(ExitKind.PREEMPTED, 50.0), (ExitKind.KILLED, 60.0)], ExitKind.KILLED, 50.0),
        ([(ExitKind.KILLED, 60.0), (ExitKind.PREEMPTED, 50.0)], ExitKind.KILLED, 50.0),
        ([(ExitKind.PREEMPTED, 50.0), (ExitKind.PREEMPTED, 90.0)], ExitKind.PREEMPTED, 50.0),
    ],
)
def test_orders_only_get_stricter(orders: list[tuple[ExitKind, float]], kind: ExitKind, deadline_at: float) -> None:
    record = ACCEPTED
    for order in orders:
        record = mark_stopping(record, _stop(*order))
    assert record.stop is not None
    assert (record.stop.kind, record.stop.deadline_at) == (kind, deadline_at)


def test_holders_of_slots() -> None:
    running = mark_started(ACCEPTED, RUNNER)
    assert find_holders([running], "2.1.1", ["a1/1", "a1/2"]) == ("1.1.1",)
    assert find_holders([running], "2.1.1", ["a1/2"]) == ()
    assert find_holders([running], "1.1.1", ["a1/1"]) == ()
    assert find_holders([mark_ended(running, {"exit": {}})], "2.1.1", ["a1/1"]) == ()
    assert running.phase is Phase.RUNNING
