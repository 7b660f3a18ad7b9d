"""An agent on a host that is busy: its heartbeats must come in time for a short lease."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.agent_process import AgentProcess, make_spec
from tests.support.stand_in_scheduler import StandInScheduler

BUSY_SECONDS = 7.5
# On the core that the agent has as well: a load average of 20 on two cores. The other cores stay free for other tests.
BUSY_PROCESSES = 10
# A heartbeat is due after a fifth of it.
LEASE_SECONDS = 4.0
LONGEST_GAP_SECONDS = 2.2
START_SECONDS = 0.5
SPIN = "while True: pass"
# Writes and syncs without a pause, as a checkpoint does.
WRITE = """
import os, sys
while True:
    with open(sys.argv[1], "wb") as file:
        file.write(bytes(1 << 24))
        file.flush()
        os.fsync(file.fileno())
"""


@pytest.fixture
async def scheduler() -> AsyncIterator[StandInScheduler]:
    scheduler = StandInScheduler()
    scheduler.lease_seconds = LEASE_SECONDS
    await scheduler.start()
    yield scheduler
    await scheduler.stop()


@contextmanager
def busy_host(folder: Path, agent_pid: int) -> Iterator[None]:
    """Processes of normal priority that use all of one core, to which the agent is confined, and two that keep the disk
    busy."""
    commands = [[sys.executable, "-c", SPIN]] * BUSY_PROCESSES
    commands += [[sys.executable, "-c", WRITE, str(folder / f"written-{number}")] for number in range(2)]
    processes = [subprocess.Popen(command) for command in commands]
    core = min(os.sched_getaffinity(0))
    try:
        for pid in (agent_pid, *(process.pid for process in processes)):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.wait()


async def test_no_heartbeat_is_late_on_a_busy_host(scheduler: StandInScheduler, tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, [scheduler.address])
    try:
        await agent.start("--no-warm")
        await scheduler.wait_for(lambda: scheduler.pulses)
        assert agent.process is not None
        with busy_host(tmp_path, agent.process.pid):
            began_at = time.monotonic()
            number = 0
            # Starts of trials make the agent write its journal.
            while time.monotonic() - began_at < BUSY_SECONDS:
                number += 1
                await scheduler.wait_connected()
                scheduler.start_allocation(make_spec(f"{number}.1.1", [f"a1/{number % 2}"], {"code": 3}))
                await asyncio.sleep(START_SECONDS)
        times = [at for at, _ in scheduler.pulses]
        gaps = sorted(later - earlier for earlier, later in pairwise(times))
        assert len(gaps) >= BUSY_SECONDS / (LEASE_SECONDS / 5) / 2
        assert gaps[-1] < LONGEST_GAP_SECONDS, gaps
    finally:
        agent.close()
