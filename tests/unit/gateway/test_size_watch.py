"""The sizes that the gateway measures for Prometheus."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from prometheus_client import REGISTRY

from gangline.domain.experiment import Checkpoint
from services.common import keys
from services.gateway.history.database import open_database
from services.gateway.size_watch import SizeWatch
from services.gateway.storage.storage import Storage
from tests.support.stand_in_mirror import StandInMirror
from tests.support.wait import until


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = open_database(f"sqlite:///{tmp_path}/history.db")
    yield engine
    engine.dispose()


def _watch(engine: sa.Engine, storage: object, *checkpoints: Checkpoint) -> SizeWatch:
    mirror = StandInMirror()
    for checkpoint in checkpoints:
        mirror.put(keys.checkpoint(checkpoint.id), checkpoint)
    return SizeWatch(cast("Any", mirror), engine, cast("Any", storage))


def _value(name: str) -> float:
    return REGISTRY.get_sample_value(f"gangline_gateway_{name}") or 0.0


async def test_every_size_is_measured(engine: sa.Engine, tmp_path: Path) -> None:
    first = Checkpoint("c1", "1.1", 1, 5, "file:///c1", {"a": 10, "b": 20})
    second = Checkpoint("c2", "1.1", 1, 6, "file:///c2", {"a": 12})
    watch = _watch(engine, Storage(str(tmp_path)), first, second)
    watch.measure()
    assert _value("checkpoint_bytes") == 42
    await until(lambda: _value("database_bytes") > 10_000, "a size of the database", 20)
    await until(lambda: 0 < _value("storage_free_bytes") <= _value("storage_bytes"), "a size of the storage", 20)


async def test_storage_that_hangs_costs_one_thread(engine: sa.Engine) -> None:
    goes_on = threading.Event()

    class HangingStorage:
        @property
        def local_folder(self) -> None:
            goes_on.wait(30)

    def threads() -> int:
        return sum(thread.name == "storage" for thread in threading.enumerate())

    watch = _watch(engine, HangingStorage())
    try:
        for _ in range(3):
            watch.measure()
        assert threads() == 1
        assert math.isnan(_value("storage_bytes"))
    finally:
        goes_on.set()
    await until(lambda: threads() == 0, "the end of the thread", 20)
    watch.measure()
    await until(lambda: _value("database_bytes") > 10_000, "a size of the database", 20)
