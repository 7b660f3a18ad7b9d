"""The message about an etcd that cannot be written to, and since when."""

from __future__ import annotations

import asyncio
import time

import pytest

from gangline.domain.resource import EtcdHealth
from services.common.etcd import HealthWatch
from services.common.etcd.health import word_problem
from tests.support.wait import until

THREE = ["h1:2379", "h2:2379", "h3:2379"]


@pytest.mark.parametrize(
    ("endpoints", "num_answering", "problem"),
    [
        (
            THREE,
            1,
            "etcd has no quorum: 1 of 3 members answers; nothing can be submitted or changed until 2 do",
        ),
        (
            THREE,
            0,
            "etcd does not answer (h1:2379, h2:2379, h3:2379); nothing can be submitted or changed until 2 of its 3 "
            "members answer again",
        ),
        (
            THREE,
            2,
            "etcd has no leader, though 2 of 3 members answer; nothing can be submitted or changed until they have "
            "elected one",
        ),
        (["h1:2379"], 0, "etcd does not answer (h1:2379); nothing can be submitted or changed until it answers again"),
        (
            ["h1:2379"],
            1,
            "etcd at h1:2379 answers but serves no reads, so it has no quorum; nothing can be submitted or changed "
            "until it has one",
        ),
        (
            [*THREE, "h4:2379", "h5:2379"],
            2,
            "etcd has no quorum: 2 of 5 members answer; nothing can be submitted or changed until 3 do",
        ),
    ],
)
def test_the_sentence_counts_members(endpoints: list[str], num_answering: int, problem: str) -> None:
    assert word_problem(endpoints, num_answering) == problem


async def test_the_time_of_an_outage_counts_from_its_first_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.common.etcd.health.WATCH_SECONDS", 0.01)
    monkeypatch.setattr("services.common.etcd.health.OUTAGE_WATCH_SECONDS", 0.01)
    healths = [
        EtcdHealth(True, 3, 3),
        EtcdHealth(False, 3, 1, "no quorum"),
        EtcdHealth(False, 3, 0, "no answer"),
        EtcdHealth(True, 3, 3),
    ]
    seen: list[EtcdHealth] = []

    async def examine() -> EtcdHealth:
        seen.append(watch.health)
        if not healths:
            await asyncio.Event().wait()
        return healths.pop(0)

    watch = HealthWatch(examine)
    running = asyncio.create_task(watch.run())
    await until(lambda: len(seen) == 5, "five examinations")
    running.cancel()
    _, good, lost, silent, back = seen
    assert (good.since, good.is_available) == (0.0, True)
    assert (lost.since, lost.problem, silent.problem) == (silent.since, "no quorum", "no answer")
    assert back.since >= lost.since > 0


async def test_examinations_are_due_at_the_same_times_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.common.etcd.health.WATCH_SECONDS", 0.5)
    times: list[float] = []

    async def examine() -> EtcdHealth:
        times.append(time.monotonic())
        return EtcdHealth(True, 1, 1)

    # The first one begins with the watch, in the middle of a period.
    await asyncio.sleep((0.25 - time.monotonic()) % 0.5)
    running = asyncio.create_task(HealthWatch(examine).run())
    await until(lambda: len(times) == 4, "four examinations")
    running.cancel()
    late_seconds = [at % 0.5 for at in times[1:]]
    assert min(late_seconds) < 0.1, late_seconds
