"""New reports of metrics, read and written as JSON once for all streams that follow the same trials."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gangline.domain.history import StoredMetrics
from services.gateway.http import log_model
from services.gateway.http.live.shared_reading import SharedReading

# Sets of trials whose newest reports are kept, and reports of each, and the length of their JSON. A report may have
# thousands of metrics.
MAX_FEEDS = 100
MAX_KEPT = 500
MAX_KEPT_CHARACTERS = 500_000
# Reports, and values in them, that are sent at once. A client that is further behind reads its series anew.
MAX_BEHIND = 1000
MAX_VALUES = 100_000
# Least time between two readings of the same trials.
FRESH_SECONDS = 0.1

Read = Callable[[int, int], Awaitable[list[StoredMetrics]]]


@dataclass
class _Feed:
    # Invariant: `kept` has all reports with an id from above `floor_id` to `head_id`, in their order.
    floor_id: int
    head_id: int
    kept: deque[tuple[int, str]] = field(default_factory=deque)
    num_characters: int = 0
    reading: SharedReading = field(default_factory=lambda: SharedReading(FRESH_SECONDS))

    def keep(self, entry: tuple[int, str]) -> None:
        self.kept.append(entry)
        self.head_id = entry[0]
        self.num_characters += len(entry[1])

    async def extend(self, read: Read) -> None:
        """Adds the reports that are newer than what it has."""
        rows = await read(self.head_id, MAX_BEHIND + 1)
        if _is_too_much(rows):
            # The readers of this feed are too far behind as well.
            self.kept.clear()
            self.num_characters = 0
            self.floor_id = self.head_id = rows[-1].id
            return
        for row in rows:
            self.keep(_entry(row))
        while len(self.kept) > MAX_KEPT or self.num_characters > MAX_KEPT_CHARACTERS:
            self.drop_oldest()

    def drop_oldest(self) -> None:
        self.floor_id, text = self.kept.popleft()
        self.num_characters -= len(text)


class MetricsFeed:
    def __init__(self) -> None:
        self._feeds: OrderedDict[tuple[str, ...], _Feed] = OrderedDict()

    async def since(self, trial_ids: tuple[str, ...], after_id: int, read: Read) -> list[tuple[int, str]] | None:
        """Returns the reports after an id, each with its JSON; None if there are more than MAX_BEHIND, or with more
        than MAX_VALUES. read: returns reports of these trials after an id, at most so many."""
        feed = self._feeds.get(trial_ids)
        if feed is None:
            feed = self._feeds[trial_ids] = _Feed(after_id, after_id)
        self._feeds.move_to_end(trial_ids)
        while len(self._feeds) > MAX_FEEDS:
            self._feeds.popitem(last=False)
        if after_id >= feed.floor_id:
            await feed.reading.refresh(lambda: feed.extend(read))
        if after_id >= feed.floor_id:
            return [entry for entry in feed.kept if entry[0] > after_id]
        rows = await read(after_id, MAX_BEHIND + 1)
        return None if _is_too_much(rows) else [_entry(row) for row in rows]


def _is_too_much(rows: Sequence[StoredMetrics]) -> bool:
    return len(rows) > MAX_BEHIND or sum(len(row.point.metrics) for row in rows) > MAX_VALUES


def _entry(row: StoredMetrics) -> tuple[int, str]:
    return row.id, log_model.StoredMetrics.model_validate(row).model_dump_json(by_alias=True)
