"""GPU slots by the real nvidia-ml-py over a stand-in driver library: MIG, CUDA_VISIBLE_DEVICES, GPUs that fail."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from services.agent.devices.xid import REBOOT, RESET
from tests.support.agent_process import AgentProcess, wait_until
from tests.support.nvml import StandInNvml, gpu_uuid, mig_uuid
from tests.support.source import ROOT
from tests.support.stand_in_scheduler import StandInScheduler

PROGRAM = """
import dataclasses, json
from gangline.errors import GanglineError
from services.agent.devices.slot import load_slots
from services.agent.devices.nvml import look_at_gpu
try:
    slots = load_slots("a1", "auto")
    gpus = sorted({(device.index, device.bus_id) for device in slots.devices if device.is_known})
    looks = [look_at_gpu(index, bus_id) for index, bus_id in gpus]
    print(json.dumps({
        "slots": [dataclasses.asdict(slot) for slot in slots.slots],
        "samples": [dataclasses.asdict(sample) for look in looks for sample in look.samples],
        "readings": {index: dataclasses.asdict(look.reading) for (index, _), look in zip(gpus, looks)},
    }))
except GanglineError as error:
    print(json.dumps({"error": [error.code, error.message]}))
"""
MIG_0, MIG_2 = mig_uuid(2, 0), mig_uuid(2, 2)


def _load(nvml: StandInNvml, visible: str | None = None) -> dict[str, Any]:
    environment = {**nvml.environment, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _uuids(answer: dict[str, Any]) -> list[str]:
    return [slot["uuid"] for slot in answer["slots"]]


def test_all_devices(nvml: StandInNvml) -> None:
    answer = _load(nvml)
    assert _uuids(answer) == [
        gpu_uuid(0),
        gpu_uuid(1),
        MIG_0,
        MIG_2,
        gpu_uuid(3),
        gpu_uuid(4),
        gpu_uuid(5),
        gpu_uuid(6),
        gpu_uuid(7),
    ]
    by_uuid = {slot["uuid"]: slot for slot in answer["slots"]}
    assert by_uuid[gpu_uuid(0)] == {
        "id": f"a1/{gpu_uuid(0)}",
        "kind": "GPU",
        "uuid": gpu_uuid(0),
        "model": "Stand-in GPU",
        "memory_bytes": 80 << 30,
        "is_healthy": True,
        "problem": "",
        "availability": "ENABLED",
    }
    assert by_uuid[MIG_2]["memory_bytes"] == 10 << 30
    assert by_uuid[MIG_2]["is_healthy"]
    problems = {uuid: slot["problem"] for uuid, slot in by_uuid.items() if not slot["is_healthy"]}
    assert problems == {
        gpu_uuid(5): "GPU 5 has MIG enabled and no MIG device; create one or disable MIG",
        gpu_uuid(7): f"NVML says of GPU 7: GPU is lost; {RESET}",
    }


def test_samples(nvml: StandInNvml) -> None:
    samples = {sample["uuid"]: sample for sample in _load(nvml)["samples"]}
    assert samples[gpu_uuid(6)]["utilization_ratio"] == 0.6
    assert samples[MIG_0] == {
        "uuid": MIG_0,
        "utilization_ratio": None,
        "memory_used_bytes": 1 << 30,
        "memory_total_bytes": 10 << 30,
    }


def test_readings(nvml: StandInNvml) -> None:
    """A reading that a GPU does not support is no fault: GPU 0 counts no errors, GPU 2 with its MIG devices no rows."""
    nvml.break_queries(
        [(0, "ecc=7"), (1, "ecc=3"), (1, "pending=1"), (2, "pending=1"), (3, "failed=1"), (4, "recovery=2")]
    )
    readings = _load(nvml)["readings"]
    quiet = {"problem": "", "num_uncorrected": 0, "is_remap_pending": False, "has_remap_failed": False}
    assert readings == {
        "0": {**quiet, "num_uncorrected": None},
        "1": {**quiet, "num_uncorrected": 3, "is_remap_pending": True},
        "2": quiet,
        "3": {**quiet, "has_remap_failed": True},
        "4": {**quiet, "problem": f"the driver says: {REBOOT}"},
        **{str(index): quiet for index in (5, 6, 7)},
    }


def test_gpu_that_is_lost_while_it_tells_of_its_errors(nvml: StandInNvml) -> None:
    nvml.break_queries([(6, "errors")])
    assert _load(nvml)["readings"]["6"]["problem"] == f"NVML says of GPU 6: GPU is lost; {RESET}"


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("1,0", [gpu_uuid(1), gpu_uuid(0)]),
        ("GPU-4,GPU-10000000-aaaa-bbbb-cccc-dddddddddddd", [gpu_uuid(4), gpu_uuid(1)]),
        ("2", [MIG_0, MIG_2]),
        (MIG_2, [MIG_2]),
        ("MIG-22,MIG-20", [MIG_2, MIG_0]),
        (f"MIG-{gpu_uuid(2)}/9/0", [MIG_2]),
        ("0,-1,3", [gpu_uuid(0)]),
        ("0,0", [gpu_uuid(0)]),
    ],
)
def test_visible_devices(nvml: StandInNvml, visible: str, uuids: list[str]) -> None:
    assert _uuids(_load(nvml, visible)) == uuids


def test_visible_device_that_is_none(nvml: StandInNvml) -> None:
    """CUDA would hide what follows; a slot that says what is wrong is better than one that is silently gone."""
    answer = _load(nvml, "0,9,GPU-ff,3")
    assert [slot["id"] for slot in answer["slots"]] == [
        f"a1/{gpu_uuid(0)}",
        "a1/gpu-9",
        "a1/GPU-ff",
        f"a1/{gpu_uuid(3)}",
    ]
    assert [slot["problem"] for slot in answer["slots"]] == [
        "",
        "CUDA_VISIBLE_DEVICES names '9', which is no device that NVML lists",
        "CUDA_VISIBLE_DEVICES names 'GPU-ff', which is no device that NVML lists",
        "",
    ]


@pytest.mark.parametrize("query", ["handle", "pci", "uuid", "name", "memory"])
def test_gpu_that_fails_a_query(nvml: StandInNvml, query: str) -> None:
    nvml.break_queries([(3, query)])
    slots = _load(nvml)["slots"]
    assert len(slots) == 9
    (broken,) = [slot for slot in slots if "GPU is lost" in slot["problem"]]
    is_nameless = query in {"handle", "pci", "uuid"}
    restart = "; then restart the agent" if is_nameless else ""
    assert broken["problem"] == f"NVML says of GPU 3: GPU is lost; {RESET}{restart}"
    assert broken["id"] == ("a1/gpu-3" if is_nameless else f"a1/{gpu_uuid(3)}")


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


async def test_gpu_metrics(scheduler: StandInScheduler, agent: AgentProcess, nvml: StandInNvml) -> None:
    await agent.start("--slots", "auto", environment={**nvml.environment, "CUDA_VISIBLE_DEVICES": "6,7"})
    await scheduler.wait_connected()
    await wait_until(lambda: f'gpu_utilization_ratio{{uuid="{gpu_uuid(6)}"}} 0.6' in agent.scrape())
    page = agent.scrape()
    assert f'gangline_agent_gpu_memory_used_bytes{{uuid="{gpu_uuid(6)}"}} 1.073741824e+09' in page
    assert 'gangline_agent_slots{state="free"} 1.0' in page
    assert 'gangline_agent_slots{state="unhealthy"} 1.0' in page
    assert "gangline_agent_stream_connected 1.0" in page
