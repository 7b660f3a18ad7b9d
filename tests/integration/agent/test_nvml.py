"""GPU slots by the real nvidia-ml-py over a stand-in driver library: MIG, CUDA_VISIBLE_DEVICES, GPUs that fail."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_process import AgentProcess, wait_until
from tests.support.nvml import StandInNvml
from tests.support.source import ROOT
from tests.support.stand_in_scheduler import StandInScheduler

PROGRAM = """
import dataclasses, json
from gangline.errors import GanglineError
from services.agent.slot import load_slots
from services.agent.nvml import sample_devices
try:
    slots = load_slots("a1", "auto")
    print(json.dumps({
        "slots": [dataclasses.asdict(slot) for slot in slots.slots],
        "samples": [dataclasses.asdict(sample) for sample in sample_devices()],
    }))
except GanglineError as error:
    print(json.dumps({"error": [error.code, error.message]}))
"""
MIG_0, MIG_2 = "MIG-20000000-aaaa-bbbb-cccc-dddddddddddd", "MIG-22000000-aaaa-bbbb-cccc-dddddddddddd"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> StandInNvml:
    return StandInNvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(library: StandInNvml) -> StandInNvml:
    library.break_queries([(7, "name")])
    return library


@pytest.fixture
async def scheduler() -> AsyncIterator[StandInScheduler]:
    scheduler = StandInScheduler()
    await scheduler.start()
    yield scheduler
    await scheduler.stop()


@pytest.fixture
def agent(tmp_path: Path, scheduler: StandInScheduler) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path, [scheduler.address])
    yield agent
    agent.close()


def _load(nvml: StandInNvml, visible: str | None = None) -> dict[str, Any]:
    environment = {**nvml.environment, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _gpu(index: int) -> str:
    return f"GPU-{index}0000000-aaaa-bbbb-cccc-dddddddddddd"


def _uuids(found: dict[str, Any]) -> list[str]:
    return [slot["uuid"] for slot in found["slots"]]


def test_all_devices(nvml: StandInNvml) -> None:
    found = _load(nvml)
    assert _uuids(found) == [_gpu(0), _gpu(1), MIG_0, MIG_2, _gpu(3), _gpu(4), _gpu(5), _gpu(6), _gpu(7)]
    by_uuid = {slot["uuid"]: slot for slot in found["slots"]}
    assert by_uuid[_gpu(0)] == {
        "id": f"a1/{_gpu(0)}",
        "kind": "GPU",
        "uuid": _gpu(0),
        "model": "Stand-in GPU",
        "memory_bytes": 80 << 30,
        "is_healthy": True,
        "problem": "",
    }
    assert by_uuid[MIG_2]["memory_bytes"] == 10 << 30
    assert by_uuid[MIG_2]["is_healthy"]
    problems = {uuid: slot["problem"] for uuid, slot in by_uuid.items() if not slot["is_healthy"]}
    assert problems == {
        _gpu(5): "GPU 5 has MIG enabled and no MIG device; create one or disable MIG",
        _gpu(7): "NVML says of GPU 7: GPU is lost",
    }


def test_samples(nvml: StandInNvml) -> None:
    samples = {sample["uuid"]: sample for sample in _load(nvml)["samples"]}
    assert samples[_gpu(6)]["utilization_ratio"] == 0.6
    assert samples[MIG_0] == {
        "uuid": MIG_0,
        "utilization_ratio": None,
        "memory_used_bytes": 1 << 30,
        "memory_total_bytes": 10 << 30,
    }


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("1,0", [_gpu(1), _gpu(0)]),
        ("GPU-4,GPU-10000000-aaaa-bbbb-cccc-dddddddddddd", [_gpu(4), _gpu(1)]),
        ("2", [MIG_0, MIG_2]),
        (MIG_2, [MIG_2]),
        ("MIG-22,MIG-20", [MIG_2, MIG_0]),
        (f"MIG-{_gpu(2)}/9/0", [MIG_2]),
        ("0,-1,3", [_gpu(0)]),
        ("0,0", [_gpu(0)]),
    ],
)
def test_visible_devices(nvml: StandInNvml, visible: str, uuids: list[str]) -> None:
    assert _uuids(_load(nvml, visible)) == uuids


def test_visible_device_that_is_none(nvml: StandInNvml) -> None:
    """CUDA would hide what follows; a slot that says what is wrong is better than one that is silently gone."""
    found = _load(nvml, "0,9,GPU-ff,3")
    assert [slot["id"] for slot in found["slots"]] == [f"a1/{_gpu(0)}", "a1/gpu-9", "a1/GPU-ff", f"a1/{_gpu(3)}"]
    assert [slot["problem"] for slot in found["slots"]] == [
        "",
        "CUDA_VISIBLE_DEVICES names '9', which is no device that NVML lists",
        "CUDA_VISIBLE_DEVICES names 'GPU-ff', which is no device that NVML lists",
        "",
    ]


@pytest.mark.parametrize("query", ["handle", "uuid", "name", "memory"])
def test_gpu_that_fails_a_query(nvml: StandInNvml, query: str) -> None:
    nvml.break_queries([(3, query)])
    slots = _load(nvml)["slots"]
    assert len(slots) == 9
    (broken,) = [slot for slot in slots if "GPU is lost" in slot["problem"]]
    assert broken["problem"] == "NVML says of GPU 3: GPU is lost"
    assert broken["id"] == ("a1/gpu-3" if query in {"handle", "uuid"} else f"a1/{_gpu(3)}")


@pytest.mark.parametrize(
    ("visible", "fault", "message"),
    [
        ("", None, "CUDA_VISIBLE_DEVICES='' hides all 9 devices"),
        ("-1", None, "CUDA_VISIBLE_DEVICES='-1' hides all 9 devices"),
        (None, "init", "NVML is not usable here (Driver Not Loaded)"),
        (None, "count", "NVML is not usable here (it does not tell how many GPUs there are: GPU is lost)"),
    ],
)
def test_no_gpu(nvml: StandInNvml, visible: str | None, fault: str | None, message: str) -> None:
    if fault is not None:
        nvml.break_queries([(0, fault)])
    assert _load(nvml, visible)["error"] == [
        "agent.no_gpus",
        f"no GPU to offer: {message}; start the agent with --slots N for N artificial CPU slots",
    ]


async def test_agent_reports_health_as_it_changes(
    scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml
) -> None:
    await agent.start("--slots", "auto", environment=nvml.environment)
    await scheduler.wait_for(lambda: scheduler.hellos)
    first = {slot.id for slot in scheduler.hellos[0].agent.slots}
    assert _problems(scheduler) == {5, 7}
    nvml.break_queries([(1, "memory"), (4, "handle")])
    await scheduler.wait_for(lambda: _problems(scheduler) == {1, 4, 5})
    assert {slot.id for slot in scheduler.hellos[-1].agent.slots} == first, "slots never come or go"
    nvml.break_queries([])
    await scheduler.wait_for(lambda: _problems(scheduler) == {5})
    nvml.break_queries([(0, "init")])
    await scheduler.wait_for(lambda: len(_problems(scheduler)) == 8)
    assert "NVML is not usable" in scheduler.hellos[-1].agent.slots[0].problem
    await wait_until(lambda: "a slot became unhealthy" in agent.log())


async def test_gpu_metrics(scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml) -> None:
    await agent.start("--slots", "auto", environment={**nvml.environment, "CUDA_VISIBLE_DEVICES": "6,7"})
    await scheduler.wait_connected()
    await wait_until(lambda: f'gpu_utilization_ratio{{uuid="{_gpu(6)}"}} 0.6' in agent.scrape())
    page = agent.scrape()
    assert f'gangline_agent_gpu_memory_used_bytes{{uuid="{_gpu(6)}"}} 1.073741824e+09' in page
    assert 'gangline_agent_slots{state="free"} 1.0' in page
    assert 'gangline_agent_slots{state="unhealthy"} 1.0' in page
    assert "gangline_agent_stream_connected 1.0" in page


def _problems(scheduler: StandInScheduler) -> set[int]:
    """The GPUs, by index, of which the newest hello reports a problem."""
    slots = scheduler.hellos[-1].agent.slots
    return {int(slot.uuid.partition("-")[2][0]) for slot in slots if not slot.is_healthy}
