"""Which etcd may keep a cluster's state."""

from __future__ import annotations

import pytest

from gangline.domain.etcd_version import answers_progress_requests, is_safe, may_lose_entries, parse_version


@pytest.mark.parametrize(
    ("text", "is_known_safe", "loses", "progress"),
    [
        ("3.4.21", False, False, False),
        ("3.4.22", True, False, False),
        ("3.4.23", True, False, False),
        ("3.5.0", False, True, False),
        ("3.5.2", False, True, False),
        ("3.5.3", False, False, False),
        ("3.5.5", False, False, False),
        ("3.5.6", True, False, False),
        ("3.5.16", True, False, True),
        ("3.6.0-rc.1", True, False, True),
        ("unknown", False, False, False),
    ],
)
def test_verdicts(text: str, is_known_safe: bool, loses: bool, progress: bool) -> None:
    version = parse_version(text)
    assert is_safe(version) is is_known_safe
    assert may_lose_entries(version) is loses
    assert answers_progress_requests(version) is progress
