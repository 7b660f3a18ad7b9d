"""Constant traffic between a service and etcd: it writes, watches and keeps a lease, through one client.

Tests let it run while they break members of the cluster, and check afterwards that nothing was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from prometheus_client import REGISTRY

from services.common.etcd import EtcdClient, Put
from tests.support.wait import until

ROOT = "/gangline/v1/test/"
# One try that hangs, a pause, and a busy machine.
MAX_GAP_SECONDS = 6.0


@dataclass
class Traffic:
    """A writer, a watcher and a lease that share one client."""

    client: EtcdClient
    acknowledged: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    max_gap_seconds: float = 0.0
    is_lease_lost: bool = False

    @contextlib.asynccontextmanager
    async def flowing(self) -> AsyncIterator[Traffic]:
        first = (await self.client.commit([Put(ROOT + "start", b"")])).revision
        async with self.client.keep_lease(10, beat_seconds=0.3) as lease:
            tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._watch(first + 1))]
            await until(lambda: len(self.seen) >= 10, "the first writes")
            yield self
            for task in tasks:
                assert not task.done(), f"ended early: {task!r}"
                task.cancel()
            await asyncio.wait(tasks)
            self.is_lease_lost = lease.lost.is_set()

    async def _write(self) -> None:
        last = time.monotonic()
        while True:
            self.acknowledged.append((await self.client.commit([Put(ROOT + "counter", b"")])).revision)
            now = time.monotonic()
            self.max_gap_seconds, last = max(self.max_gap_seconds, now - last), now
            await asyncio.sleep(0.01)

    async def _watch(self, revision: int) -> None:
        async for batch in self.client.watch(ROOT, revision):
            self.seen.append(batch.revision)

    async def has_moved_on(self) -> None:
        """Waits for more writes than were on their way, and for the watch to have seen all of them."""
        wanted = len(self.acknowledged) + 20
        await until(lambda: len(self.acknowledged) >= wanted, "writes at another member", seconds=20)
        last = self.acknowledged[-1]
        await until(lambda: bool(self.seen) and self.seen[-1] >= last, "the watch at another member", seconds=20)

    def check(self) -> None:
        assert set(self.acknowledged) <= set(self.seen)
        assert self.seen == sorted(set(self.seen)), "a revision came twice or out of order"
        assert self.max_gap_seconds < MAX_GAP_SECONDS
        assert not self.is_lease_lost


def count_rotations() -> float:
    """How often clients of this process have moved to another endpoint."""
    return REGISTRY.get_sample_value("gangline_etcd_rotations_total") or 0.0
