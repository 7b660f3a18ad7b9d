"""The load of a rank's machine, and the profiler that reports it."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import psutil
import pytest

from gangline.core import DistributedContext, ProfilerContext
from gangline.core.link import Link
from gangline.core.load import LoadSampler, open_gpu, read_traffic
from gangline.domain.history import MetricsPoint
from gangline.errors import GanglineError


def test_means_of_what_was_seen_since_the_last_time() -> None:
    numbers = itertools.count()
    has_looked = threading.Event()

    def read() -> dict[str, float]:
        number = next(numbers)
        if number == 4:
            has_looked.set()
            sampler._is_over.wait()
        return {"cpu_percent": float(number)}

    sampler = LoadSampler(read, seconds=0.001)
    sampler.start()
    assert has_looked.wait(60)
    # The first look only starts the counters.
    assert sampler.take() == {"cpu_percent": 2.0}
    sampler.stop()
    sampler.stop()


def test_a_real_look_finds_this_process() -> None:
    sampler = LoadSampler(seconds=0.001)
    sampler.start()
    sample: dict[str, float] = {}
    while "cpu_percent" not in sample:
        sample = sampler.take()
    sampler.stop()
    assert sample["memory_bytes"] >= psutil.Process().memory_info().rss / 4
    assert 0 <= sample["machine_cpu_percent"] <= 100
    assert sample["machine_sent_bytes"] >= 0
    assert sample["machine_received_bytes"] >= 0


def test_traffic_of_the_loopback_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counters(NamedTuple):
        bytes_sent: int
        bytes_recv: int

    by_name = {"lo": Counters(1000, 1000), "eth0": Counters(1, 20), "eth1": Counters(2, 40)}
    monkeypatch.setattr(psutil, "net_io_counters", lambda *, pernic: by_name if pernic else None)
    assert read_traffic() == (3, 60)


class _Nvml(ModuleType):
    """GPUs at work, as nvidia-ml-py shows them. models: of the GPUs by their number."""

    NVMLError = RuntimeError

    def __init__(self, *models: str) -> None:
        super().__init__("pynvml")
        self.models = models

    def nvmlInit(self) -> None: ...  # noqa: N802  the library's own names

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.models)

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return self.models[int(handle)]

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        if index >= len(self.models):
            raise self.NVMLError(f"no device {index}")
        return str(index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:  # noqa: N802
        if handle.startswith("MIG-"):
            raise self.NVMLError("not supported")
        return SimpleNamespace(gpu=80)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        if handle.startswith("GPU-shared"):
            raise self.NVMLError("not supported")
        return SimpleNamespace(used=len(handle))


_NUMBERED = {"gpu_percent": 80.0, "gpu_memory_bytes": 1.0}


@pytest.mark.parametrize(
    ("environment", "module", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "GPU-ab"}, _Nvml(), {"gpu_percent": 80.0, "gpu_memory_bytes": 6.0}),
        ({"CUDA_VISIBLE_DEVICES": "MIG-ab"}, _Nvml(), {"gpu_memory_bytes": 6.0}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-shared"}, _Nvml(), {"gpu_percent": 80.0}),
        ({"CUDA_VISIBLE_DEVICES": "0"}, _Nvml(), {}),
        ({"CUDA_VISIBLE_DEVICES": "1"}, _Nvml("H100", "H100"), _NUMBERED),
        ({"CUDA_VISIBLE_DEVICES": "1"}, _Nvml("T4", "H100"), {}),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, _Nvml("T4", "H100"), _NUMBERED),
        ({"CUDA_VISIBLE_DEVICES": ""}, _Nvml("H100"), {}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-ab"}, None, {}),
    ],
)
def test_gpu_of_this_rank_is_read_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    module: ModuleType | None,
    expected: dict[str, float],
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert open_gpu(environment)() == expected


class _Link(Link):
    def __init__(self) -> None:
        super().__init__()
        self.has_reported = threading.Event()
        self.reports: list[tuple[str, Mapping[str, float]]] = []

    def send_metrics(self, point: MetricsPoint, *, units: float | None = None, at: float | None = None) -> None:
        self.reports.append((point.group, point.metrics))
        self.has_reported.set()


def test_profiler_reports_on_the_chief_while_it_is_on() -> None:
    link = _Link()
    profiler = ProfilerContext(DistributedContext(), link)
    profiler.off()
    profiler.on(sampling_interval=0.01, samples_per_report=2)
    with pytest.raises(GanglineError, match=r"call off\(\) between"):
        profiler.on()
    assert link.has_reported.wait(60)
    profiler.off()
    group, metrics = link.reports[0]
    assert group == "profiling"
    assert {"memory_bytes", "machine_cpu_percent"} <= metrics.keys()
    with pytest.raises(GanglineError, match="the interval must be above 0"):
        profiler.on(0)
