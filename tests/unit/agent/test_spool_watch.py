"""What an agent says of records that no gateway has taken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from gangline.domain.resource import UndeliveredRecords
from services.agent.machine import spool_watch
from services.agent.machine.spool_watch import SpoolWatch, list_spools
from services.common.state_folder import StateFolder

NOW = 1000.0


def _left(attempt: int, since_at: float, num_bytes: int = 5) -> UndeliveredRecords:
    return UndeliveredRecords("7.1", f"7.1.{attempt}", num_bytes, since_at)


@pytest.fixture
def told() -> list[tuple[UndeliveredRecords, ...]]:
    return []


@pytest.fixture
def watch(tmp_path: Path, told: list[tuple[UndeliveredRecords, ...]], monkeypatch: pytest.MonkeyPatch) -> SpoolWatch:
    monkeypatch.setattr(SpoolWatch, "_start_drainer", lambda _: None)
    return SpoolWatch(StateFolder(tmp_path), "token", lambda _: False, told.append)


def test_records_that_wait_longer_than_usual_are_reported_until_they_are_gone(
    watch: SpoolWatch, told: list[tuple[UndeliveredRecords, ...]]
) -> None:
    fresh, old, older = _left(3, NOW - 1), _left(2, NOW - 60), _left(1, NOW - 100, 7)
    with capture_logs() as logs:
        watch.take_in([fresh, old, older], NOW)
        watch.take_in([fresh, old, older], NOW + 1)
        assert REGISTRY.get_sample_value("gangline_agent_undelivered_attempts") == 2
        assert REGISTRY.get_sample_value("gangline_agent_undelivered_bytes") == 12
        assert REGISTRY.get_sample_value("gangline_agent_undelivered_age_seconds") == 101
        watch.take_in([], NOW + 2)
    assert told == [(older, old), ()]
    assert sorted((line["log_level"], line["allocation_id"]) for line in logs) == [
        ("info", "7.1.1"), ("info", "7.1.2"), ("warning", "7.1.1"), ("warning", "7.1.2"),
    ]  # fmt: skip
    assert REGISTRY.get_sample_value("gangline_agent_undelivered_attempts") == 0
    assert REGISTRY.get_sample_value("gangline_agent_undelivered_age_seconds") == 0


def test_an_agents_record_stays_small(
    watch: SpoolWatch, told: list[tuple[UndeliveredRecords, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_watch, "MAX_REPORTED", 2)
    watch.take_in([_left(number, NOW - 100 - number) for number in range(1, 5)], NOW)
    assert [each.allocation_id for each in told[0]] == ["7.1.4", "7.1.3"]


def test_only_folders_of_attempts_with_records_count(tmp_path: Path) -> None:
    for name, segments in (("7.1.1-0", (3, 4)), ("7.1.2-1", ()), ("nonsense", (5,))):
        (tmp_path / name).mkdir()
        for number, size in enumerate(segments):
            path = tmp_path / name / f"{number:016d}.seg"
            path.write_bytes(bytes(size))
            os.utime(path, (NOW + number, NOW + number))
    (tmp_path / "drainer.log").touch()
    assert list_spools(tmp_path) == [UndeliveredRecords("7.1", "7.1.1", 7, NOW + 1)]
    assert list_spools(tmp_path / "none") == []
