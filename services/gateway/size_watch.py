"""Measures the size of the database, of the storage and of the checkpoints, for Prometheus.

Runs as one long-lived task. Each measurement is a blocking call in a thread. A call that has not returned is left in
its thread and not repeated, so a storage or a database that hangs costs one thread.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
from collections.abc import Callable

import sqlalchemy as sa
import structlog

from services.gateway.history.database import measure_database
from services.gateway.mirror import metrics
from services.gateway.mirror.mirror import Mirror
from services.gateway.storage.storage import Storage

_log = structlog.get_logger(__name__)

# Sizes change slowly, and a PostgreSQL reads the size of each of its files.
PERIOD_SECONDS = 60.0


class SizeWatch:
    """Sets the gauges of sizes. Several gateways of one cluster measure the same values."""

    def __init__(self, mirror: Mirror, engine: sa.Engine, storage: Storage) -> None:
        self._mirror = mirror
        self._measurements: dict[str, Callable[[], None]] = {
            "database": lambda: metrics.DATABASE_BYTES.set(measure_database(engine)),
            "storage": lambda: _measure_storage(storage),
        }
        self._running: dict[str, threading.Thread] = {}
        for gauge in (metrics.DATABASE_BYTES, metrics.STORAGE_BYTES, metrics.STORAGE_FREE_BYTES):
            gauge.set(math.nan)

    async def run(self) -> None:
        """Measures until it is cancelled."""
        while True:
            self.measure()
            await asyncio.sleep(PERIOD_SECONDS)

    def measure(self) -> None:
        """Starts every measurement whose last one has ended."""
        checkpoints = self._mirror.state.checkpoints.all()
        metrics.CHECKPOINT_BYTES.set(sum(sum(checkpoint.file_bytes.values()) for checkpoint in checkpoints))
        for name, measurement in self._measurements.items():
            running = self._running.get(name)
            if running is None or not running.is_alive():
                self._running[name] = threading.Thread(target=_run, args=(name, measurement), name=name, daemon=True)
                self._running[name].start()


def _measure_storage(storage: Storage) -> None:
    folder = storage.local_folder
    if folder is not None:
        usage = shutil.disk_usage(folder)
        metrics.STORAGE_BYTES.set(usage.total)
        metrics.STORAGE_FREE_BYTES.set(usage.free)


def _run(name: str, measurement: Callable[[], None]) -> None:
    try:
        measurement()
    except Exception as error:  # noqa: BLE001 - storages and databases raise the errors of their libraries
        _log.warning("a size cannot be measured", of=name, reason=str(error))
