"""What the streams of trial runners share: which experiments have one, and which spools were warned of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from services.gateway.mirror import metrics
from services.gateway.mirror.notification import NotificationBoard

# One warning for each spool; beyond this number the oldest entries are dropped.
MAX_WARNED_SPOOLS = 1000

log = structlog.get_logger(__name__)


class Deliveries:
    """news: rings an experiment's id when one of its runners has disconnected."""

    def __init__(self, news: NotificationBoard) -> None:
        self._news = news
        self._warned_spool_ids: dict[str, None] = {}
        self._streams_by_experiment_id: Counter[int] = Counter()

    def has_stream(self, experiment_id: int) -> bool:
        """Returns whether a runner of this experiment is connected to this gateway."""
        return self._streams_by_experiment_id[experiment_id] > 0

    @contextmanager
    def connected(self, experiment_id: int) -> Iterator[None]:
        """Counts a runner's stream while it lasts."""
        self._streams_by_experiment_id[experiment_id] += 1
        try:
            with metrics.INGEST_STREAMS.track_inprogress():
                yield
        finally:
            self._streams_by_experiment_id[experiment_id] -= 1
            if not self._streams_by_experiment_id[experiment_id]:
                del self._streams_by_experiment_id[experiment_id]
            self._news.ring((experiment_id,))

    def warn_implausible(self, spool_id: str) -> None:
        if spool_id not in self._warned_spool_ids:
            self._warned_spool_ids[spool_id] = None
            log.warning("records have implausible contents, which are replaced", spool_id=spool_id)
        while len(self._warned_spool_ids) > MAX_WARNED_SPOOLS:
            del self._warned_spool_ids[next(iter(self._warned_spool_ids))]
