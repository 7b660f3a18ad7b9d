"""GPU health from the driver's events and counters to the scheduler: the real nvidia-ml-py over a stand-in driver."""

from __future__ import annotations

from pathlib import Path
from signal import SIGTERM

import pytest

from services.agent.devices.gpu_health import REMAP_PENDING
from services.agent.devices.xid import RESET
from tests.support.agent_process import AgentProcess, wait_until
from tests.support.nvml import StandInNvml, gpu_uuid, mig_uuid
from tests.support.stand_in_scheduler import StandInScheduler

LOST = f"NVML says of GPU 3: GPU is lost; {RESET}"


@pytest.fixture
def nvml(nvml: StandInNvml) -> StandInNvml:
    nvml.break_queries([])
    return nvml


async def _spawn(agent: AgentProcess, nvml: StandInNvml, visible: str) -> None:
    environment = {**nvml.environment, "CUDA_VISIBLE_DEVICES": visible}
    await agent.start("--slots", "auto", "--no-warm", environment=environment, library=nvml.library)


async def _start(agent: AgentProcess, scheduler: StandInScheduler, nvml: StandInNvml, visible: str) -> None:
    """Returns once it is connected and watches all of its GPUs. On a busy machine it never misses its lease."""
    scheduler.lease_seconds = 30.0
    await _spawn(agent, nvml, visible)
    await scheduler.wait_for(lambda: scheduler.hellos)
    wanted = {int(index) for index in visible.split(",")}
    await wait_until(lambda: nvml.watched() == wanted)


def _slot(uuid: str) -> str:
    return f"a1/{uuid}"


def _count(agent: AgentProcess, kind: str) -> float:
    prefix = f'gangline_agent_gpu_xid_total{{kind="{kind}"}} '
    (line,) = [line for line in agent.scrape().splitlines() if line.startswith(prefix)]
    return float(line.removeprefix(prefix))


async def test_lost_gpu_is_taken_out_of_use_and_comes_back(
    scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml
) -> None:
    await _start(agent, scheduler, nvml, "3,4,6")
    assert scheduler.problems == {}
    nvml.break_queries([(3, "memory")])
    nvml.raise_xid(3, 79)
    # A check may come between the two, and then the next one completes the words.
    problem = f"XID 79 (it has fallen off the bus), then {LOST}"
    await scheduler.wait_for(lambda: scheduler.problems == {_slot(gpu_uuid(3)): problem})
    assert {len(message.slots) for message in scheduler.slots} == {3}, "all slots, in a message of their own"
    assert len(scheduler.hellos) == 1
    await wait_until(lambda: nvml.watched() == {4, 6})
    nvml.break_queries([])
    await scheduler.wait_for(lambda: not scheduler.problems)
    await wait_until(lambda: nvml.watched() == {3, 4, 6})
    assert "a slot became unhealthy" in agent.log()
    assert "a slot is healthy again" in agent.log()
    assert _count(agent, "hardware") == 1


async def test_application_fault_changes_nothing(
    scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml
) -> None:
    await _start(agent, scheduler, nvml, "3,4")
    for code in (31, 13, 31, 43, 45, 31):
        nvml.raise_xid(3, code)
    await wait_until(lambda: _count(agent, "application") == 6)
    # Two bad checks, so several checks have seen GPU 3 since.
    nvml.break_queries([(4, "memory")])
    await scheduler.wait_for(lambda: scheduler.problems)
    assert list(scheduler.problems) == [_slot(gpu_uuid(4))]


async def test_memory_error_needs_a_reset(scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml) -> None:
    await _start(agent, scheduler, nvml, "1,3")
    await wait_until(lambda: "gpu_memory_bytes{" in agent.scrape())  # a check has seen no errors
    nvml.break_queries([(3, "ecc=2"), (3, "pending=1")])
    nvml.raise_xid(3, 95)
    await scheduler.wait_for(lambda: scheduler.problems)
    assert scheduler.problems[_slot(gpu_uuid(3))] in {
        f"XID 95 (uncontained memory error), then {REMAP_PENDING}",
        f"2 uncorrected memory errors, then XID 95 (uncontained memory error); {RESET}",
        f"2 uncorrected memory errors, then XID 95 (uncontained memory error), then {REMAP_PENDING}",
    }
    # Another GPU is broken and mended by checks meanwhile; errors that stay keep GPU 3 out of use.
    nvml.break_queries([(1, "memory"), (3, "ecc=2")])
    await scheduler.wait_for(lambda: len(scheduler.problems) == 2)
    nvml.break_queries([(3, "ecc=2")])
    await scheduler.wait_for(lambda: list(scheduler.problems) == [_slot(gpu_uuid(3))])
    nvml.break_queries([])
    await scheduler.wait_for(lambda: not scheduler.problems)


async def test_contained_memory_error_changes_nothing(
    scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml
) -> None:
    """The GPU goes on, although it wants a reset some day."""
    await _start(agent, scheduler, nvml, "3,4")
    await wait_until(lambda: "gpu_memory_bytes{" in agent.scrape())
    for code in (48, 63, 94, 45):
        nvml.raise_xid(3, code)
    await wait_until(lambda: _count(agent, "contained") == 2)
    nvml.break_queries([(3, "ecc=1"), (3, "pending=1")])
    nvml.raise_xid(4, 79)
    nvml.break_queries([(3, "ecc=1"), (3, "pending=1"), (4, "memory")])
    await scheduler.wait_for(lambda: scheduler.problems)
    assert list(scheduler.problems) == [_slot(gpu_uuid(4))]


async def test_fault_of_one_mig_device(scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml) -> None:
    await _start(agent, scheduler, nvml, "2")
    await wait_until(lambda: "gpu_memory_bytes{" in agent.scrape())
    nvml.raise_xid(2, 95, instance=(7, 0))
    await wait_until(lambda: _count(agent, "hardware") == 1)
    nvml.break_queries([(2, "ecc=1")])
    await scheduler.wait_for(lambda: scheduler.problems)
    assert list(scheduler.problems) == [_slot(mig_uuid(2, 0))]
    assert "XID 95" in scheduler.problems[_slot(mig_uuid(2, 0))]


async def test_gpu_without_events(scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml) -> None:
    """Checks alone find the fault."""
    nvml.break_queries([(3, "noevents")])
    await _spawn(agent, nvml, "3")
    await scheduler.wait_for(lambda: scheduler.hellos)
    nvml.break_queries([(3, "noevents"), (3, "handle")])
    await scheduler.wait_for(lambda: scheduler.problems)
    assert scheduler.problems == {_slot(gpu_uuid(3)): LOST}
    assert nvml.watched() == set()


async def test_double_bit_error_without_an_xid(
    scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml
) -> None:
    await _start(agent, scheduler, nvml, "3")
    nvml.break_queries([(3, "recovery=1")])
    nvml.raise_double_bit_error(3)
    await scheduler.wait_for(lambda: scheduler.problems)
    assert scheduler.problems[_slot(gpu_uuid(3))].endswith(f"the driver says: {RESET}")


async def test_watch_that_fails_is_started_again(
    scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml
) -> None:
    await _start(agent, scheduler, nvml, "3,4")
    nvml.break_queries([(4, "events")])
    await wait_until(lambda: "the watch for XIDs ended" in agent.log())
    nvml.break_queries([])
    await wait_until(lambda: nvml.watched() == {3, 4})
    nvml.raise_xid(3, 31)
    await wait_until(lambda: _count(agent, "application") == 1)
    assert scheduler.problems == {}


async def test_driver_that_goes_away(scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml) -> None:
    await _start(agent, scheduler, nvml, "3,4")
    nvml.break_queries([(0, "init")])
    await scheduler.wait_for(lambda: len(scheduler.problems) == 2)
    assert "NVML is not usable (Driver Not Loaded)" in scheduler.problems[_slot(gpu_uuid(4))]
    nvml.break_queries([])
    await scheduler.wait_for(lambda: not scheduler.problems)


async def test_hello_carries_the_newest_health(
    scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml
) -> None:
    await _start(agent, scheduler, nvml, "3,4")
    nvml.break_queries([(3, "memory")])
    await scheduler.wait_for(lambda: scheduler.problems)
    known = len(scheduler.hellos)
    scheduler.drop_streams()
    assert [slot.problem for slot in (await scheduler.wait_greeted(known)).agent.slots] == [LOST, ""]


async def test_agent_ends_although_the_driver_hangs(
    scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml
) -> None:
    await _start(agent, scheduler, nvml, "3,4")
    nvml.break_queries([(3, "hang")])
    await wait_until(nvml.is_hung)
    assert agent.end(SIGTERM) == 0


async def test_wrong_settings(agent: AgentProcess, tmp_path: Path) -> None:
    process = agent.spawn("--health-confirmations", "1")
    assert process.wait(30) == 2
    assert "health_confirmations" in agent.log()
