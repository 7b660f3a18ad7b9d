"""Keeps the cache of code archives within the agent's limits, and counts its downloads as metrics.

Owns no file: services/common/code_cache.py does. Trial runners prune after each download; this module removes archives
that have become too old, and applies the limits of a changed configuration. The disk monitor calls it with each check,
in a thread.
"""

from __future__ import annotations

import time

import structlog

from services.agent.machine import metrics
from services.common.code_cache import CodeCache, CodeLimits

log = structlog.get_logger(__name__)


class CodeUpkeep:
    """The upkeep of one agent's cache. Downloads before the start of this agent are not counted again."""

    def __init__(self, cache: CodeCache, limits: CodeLimits) -> None:
        self._cache = cache
        self._limits = limits
        self._seen = cache.load_count()
        try:
            cache.write_limits(limits)
        except OSError as error:
            log.error("cannot write the limits of the code cache; runners use their own", error=str(error))

    def run(self) -> None:
        """Prunes, and updates the metrics."""
        self._cache.prune(self._limits, time.time())
        metrics.code_cache_bytes.set(self._cache.num_bytes())
        count = self._cache.load_count()
        # Smaller counters belong to a file that was damaged or removed and has begun again.
        metrics.code_fetches.inc(max(0, count.fetches - self._seen.fetches))
        metrics.code_fetched_bytes.inc(max(0, count.num_bytes - self._seen.num_bytes))
        self._seen = count
