"""Measures how much of its machine a rank uses: its processes, its GPU, and the machine as a whole.

Owns one background thread that takes a sample every second while it is on; `take` returns the means since the last
call. It needs psutil. It reads a GPU through NVML where the package nvidia-ml-py is installed. Used by
gangline.core.profiler and by the trainer's profile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import psutil

from gangline.domain.visible_device import ORDER_KEY, PCI_ORDER, device_name

# Default interval between two samples.
SECONDS = 1.0


class LoadSampler:
    """Samples the load in a background thread. start and stop may be called any number of times. read: returns one
    sample, replaceable for tests."""

    def __init__(self, read: Callable[[], dict[str, float]] | None = None, seconds: float = SECONDS) -> None:
        self._read = read or _Reading().read
        self._seconds = seconds
        self._sums: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._is_over.clear()
            self._thread = threading.Thread(target=self._serve, name="gangline-load", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()
            self._thread = None

    def take(self) -> dict[str, float]:
        """Returns the means since the last call; empty when no sample was taken."""
        with self._lock:
            means = {name: total / count for name, (total, count) in self._sums.items()}
            self._sums = {}
        return means

    def _serve(self) -> None:
        self._read()  # the first sample only starts the counters
        while not self._is_over.wait(self._seconds):
            seen = self._read()
            with self._lock:
                for name, value in seen.items():
                    total, count = self._sums.get(name, (0.0, 0))
                    self._sums[name] = (total + value, count + 1)


class _Reading:
    """Reads one sample. cpu_percent: of this rank and its processes, 100 for one core; machine_cpu_percent: 100 for all
    cores; machine_sent_bytes and machine_received_bytes: each second, over all interfaces but the loopback."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._last: tuple[float, float] | None = None
        self._last_traffic = (0, 0)
        self._gpu = open_gpu(os.environ)

    def read(self) -> dict[str, float]:
        used, memory = self._family()
        traffic = read_traffic()
        now = time.monotonic()
        sample = {"memory_bytes": float(memory), "machine_cpu_percent": psutil.cpu_percent()}
        if self._last is not None and now > self._last[0]:
            seconds = now - self._last[0]
            sample["cpu_percent"] = max(0.0, 100 * (used - self._last[1]) / seconds)
            # An interface that has gone takes its counters away.
            sample["machine_sent_bytes"] = max(0, traffic[0] - self._last_traffic[0]) / seconds
            sample["machine_received_bytes"] = max(0, traffic[1] - self._last_traffic[1]) / seconds
        self._last, self._last_traffic = (now, used), traffic
        return {**sample, **self._gpu()}

    def _family(self) -> tuple[float, int]:
        """Returns the CPU seconds and resident bytes of this process and its descendants, such as loader workers."""
        seconds, memory = 0.0, 0
        for process in (self._process, *self._process.children(recursive=True)):
            # A process may end between the listing and the reading of its counters.
            with suppress(psutil.Error), process.oneshot():
                # Counts the children that have ended for this process only. Those of a descendant would be counted
                # twice.
                times = process.cpu_times()
                own = process.pid == self._process.pid
                seconds += times.user + times.system + (times.children_user + times.children_system if own else 0)
                memory += process.memory_info().rss
        return seconds, memory


def read_traffic() -> tuple[int, int]:
    """Returns the bytes that the machine's interfaces have sent and received, without the loopback."""
    counters = [each for name, each in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    return sum(each.bytes_sent for each in counters), sum(each.bytes_recv for each in counters)


def open_gpu(environment: Mapping[str, str]) -> Callable[[], dict[str, float]]:
    """Returns a function that reads this rank's GPU: its utilization in percent and its used memory, each where the
    device reports it. Without a GPU the function returns nothing."""
    name = device_name(environment)
    if not name:
        return dict
    try:
        import pynvml  # noqa: PLC0415  only where there may be a GPU
    except ImportError:
        return dict
    try:
        pynvml.nvmlInit()
        if name.isdigit() and not _has_nvmls_order(environment, pynvml):
            return dict
        by_name = pynvml.nvmlDeviceGetHandleByIndex if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID
        handle: Any = by_name(int(name) if name.isdigit() else name)
    except pynvml.NVMLError:
        return dict
    queries: dict[str, Callable[[], float]] = {
        "gpu_percent": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "gpu_memory_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
    }

    def read() -> dict[str, float]:
        sample = {}
        for key, query in queries.items():
            # A MIG device reports its memory and no utilization.
            with suppress(pynvml.NVMLError):
                sample[key] = float(query())
        return sample

    return read


def _has_nvmls_order(environment: Mapping[str, str], pynvml: Any) -> bool:
    """Whether CUDA's numbers of GPUs are those of NVML. Without a setting CUDA begins with the fastest one, which makes
    a difference on machines with several models only. Raises NVMLError."""
    if environment.get(ORDER_KEY) == PCI_ORDER:
        return True
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    return len({pynvml.nvmlDeviceGetName(handle) for handle in handles}) == 1
