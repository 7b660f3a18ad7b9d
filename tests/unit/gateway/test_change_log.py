"""The log of changes names each record once, in the order of changes, and knows what it does not know."""

from __future__ import annotations

import pytest

from services.gateway.mirror.change_log import ChangeLog, Entry, Topic


def experiment(number: int) -> Entry:
    return Topic.EXPERIMENT, number


@pytest.fixture
def log() -> ChangeLog:
    """A log of three records that began at revision 10."""
    log = ChangeLog(max_entries=3)
    log.begin(10)
    for number, revision in ((1, 11), (2, 13), (1, 14), (3, 14)):
        log.note([experiment(number)], revision)
    return log


@pytest.mark.parametrize(
    ("revision", "expected"),
    [
        (9, None),
        (10, [(3, 14), (1, 14), (2, 13)]),
        (12, [(3, 14), (1, 14), (2, 13)]),
        (13, [(3, 14), (1, 14)]),
        (14, []),
        (20, []),
    ],
)
def test_changes_after_a_revision(log: ChangeLog, revision: int, expected: list[tuple[int, int]] | None) -> None:
    found = log.since(revision)
    assert found == (None if expected is None else [(experiment(number), at) for number, at in expected])


def test_a_reader_that_missed_more_than_is_kept_is_told(log: ChangeLog) -> None:
    log.note([experiment(4)], 15)
    assert log.since(12) is None
    assert log.since(13) == [(experiment(4), 15), (experiment(3), 14), (experiment(1), 14)]


def test_a_new_listing_forgets_what_was_before(log: ChangeLog) -> None:
    log.begin(30, 14)
    assert log.since(14) is None
    assert log.since(30) == []


def test_after_a_restore_of_etcd_no_older_revision_means_anything(log: ChangeLog) -> None:
    """Etcd goes back to revision 12, while readers have seen 14."""
    log.begin(12, 14)
    log.note([experiment(9)], 13)
    for revision in (12, 13, 14):
        assert log.since(revision) is None
    log.note([experiment(8)], 16)
    assert log.since(15) == [(experiment(8), 16)]
