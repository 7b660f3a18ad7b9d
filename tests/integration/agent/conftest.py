"""A scheduler that records, an agent process that connects to it, and a stand-in of the NVIDIA driver for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.agent_process import AgentProcess
from tests.support.nvml import StandInNvml
from tests.support.stand_in_scheduler import StandInScheduler


@pytest.fixture
async def scheduler() -> AsyncIterator[StandInScheduler]:
    scheduler = StandInScheduler()
    await scheduler.start()
    yield scheduler
    await scheduler.stop()


@pytest.fixture
def agent(tmp_path: Path, scheduler: StandInScheduler) -> Iterator[AgentProcess]:
    assert scheduler.address
    agent = AgentProcess(tmp_path, [scheduler.address])
    yield agent
    agent.close()


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> StandInNvml:
    return StandInNvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(nvml_library: StandInNvml) -> StandInNvml:
    """GPU 7 is lost, and no event was raised yet."""
    nvml_library.break_queries([(7, "name")])
    nvml_library.forget_events()
    return nvml_library
