"""Readings that callers share: those who wait together get one, with its failure."""

from __future__ import annotations

import asyncio

from gangline.errors import GanglineError, unavailable
from services.gateway.http.live.shared_reading import SharedReading

AWAY = unavailable("history.away", "the history cannot be read now")


class Source:
    def __init__(self) -> None:
        self.num_readings = 0
        self.problem: GanglineError | None = None
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def read(self) -> None:
        self.num_readings += 1
        self.begun.set()
        await self.may_end.wait()
        if self.problem is not None:
            raise self.problem


async def test_callers_that_wait_together_share_a_reading_and_its_failure() -> None:
    source, reading = Source(), SharedReading(0.0)
    source.may_end.set()
    source.problem = AWAY
    waiting = [reading.refresh(source.read) for _ in range(3)]
    assert await asyncio.gather(*waiting, return_exceptions=True) == [AWAY, AWAY, AWAY]
    assert source.num_readings == 1
    source.problem = None
    await asyncio.gather(*(reading.refresh(source.read) for _ in range(3)))
    assert source.num_readings == 2


async def test_another_caller_reads_in_place_of_one_that_goes() -> None:
    source, reading = Source(), SharedReading(0.0)
    first, second = (asyncio.create_task(reading.refresh(source.read)) for _ in range(2))
    await source.begun.wait()
    first.cancel()
    source.may_end.set()
    await second
    assert source.num_readings == 2
