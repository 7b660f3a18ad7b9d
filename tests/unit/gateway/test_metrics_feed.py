"""Reports that streams share: each reader gets each report after its id once, and little is kept for them."""

from __future__ import annotations

import json

import pytest

from gangline.domain.history import MetricsPoint, StoredMetrics
from services.gateway.http.live import metrics_feed
from services.gateway.http.live.metrics_feed import MetricsFeed

TRIALS = ("7.1",)


class Stored:
    """Reports in a database, and the ids after which they were read."""

    def __init__(self) -> None:
        self.reports: list[StoredMetrics] = []
        self.asked: list[int] = []

    def report(self, num_metrics: int = 1) -> None:
        number = len(self.reports) + 1
        metrics = {f"m{n}": 1.0 for n in range(num_metrics)}
        self.reports.append(StoredMetrics(number, "7.1", 1e9, MetricsPoint("training", number, metrics), 1))

    async def read(self, after_id: int, limit: int) -> list[StoredMetrics]:
        self.asked.append(after_id)
        return [report for report in self.reports if report.id > after_id][:limit]

    async def since(self, feed: MetricsFeed, after_id: int) -> list[int] | None:
        entries = await feed.since(TRIALS, after_id, self.read)
        if entries is None:
            return None
        assert [json.loads(text)["id"] for _, text in entries] == [id_ for id_, _ in entries]
        return [id_ for id_, _ in entries]


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.setattr(metrics_feed, "FRESH_SECONDS", 0.0)
    return Stored()


async def test_readers_share_what_is_kept(stored: Stored) -> None:
    feed = MetricsFeed()
    for _ in range(3):
        stored.report()
    assert await stored.since(feed, 0) == [1, 2, 3]
    assert await stored.since(feed, 1) == [2, 3]
    assert await stored.since(feed, 3) == []
    # Each looks for newer ones alone.
    assert stored.asked == [0, 3, 3]


@pytest.mark.parametrize(("limit", "most"), [("MAX_KEPT", 2), ("MAX_KEPT_CHARACTERS", 300)])
async def test_what_is_not_kept_is_read_again(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(metrics_feed, limit, most)
    feed = MetricsFeed()
    for _ in range(10):
        stored.report()
    everything = list(range(1, 11))
    for _ in range(2):
        assert await stored.since(feed, 0) == everything
    assert stored.asked == [0, 0, 0]
    assert await stored.since(feed, 9) == [10]


@pytest.mark.parametrize(("limit", "most"), [("MAX_BEHIND", 5), ("MAX_VALUES", 50)])
async def test_a_reader_too_far_behind_is_told(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(metrics_feed, limit, most)
    feed = MetricsFeed()
    for _ in range(6):
        stored.report(10)
    assert await stored.since(feed, 0) is None
    assert await stored.since(feed, 1) == [2, 3, 4, 5, 6]
    stored.report(10)
    assert await stored.since(feed, 6) == [7]
