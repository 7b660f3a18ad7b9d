"""Records the machine's load while a script trains: the profiler part of the Core API.

Owns the switch and the reports; gangline.core.load describes the readings. The chief reports its own machine.
"""

from __future__ import annotations

import threading

from gangline.core.distributed import DistributedContext
from gangline.core.link import Link
from gangline.core.load import LoadSampler
from gangline.domain.history import MetricsPoint
from gangline.errors import invalid

GROUP = "profiling"


class ProfilerContext:
    """Reports metrics of the group "profiling" on the chief; does nothing on other ranks."""

    def __init__(self, distributed: DistributedContext, link: Link) -> None:
        self._is_chief = distributed.is_chief
        self._link = link
        self._sampler: LoadSampler | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def on(self, sampling_interval: float = 1, samples_per_report: int = 10) -> None:
        """Starts the reports. sampling_interval: seconds between two samples. samples_per_report: each report is the
        mean of this many samples."""
        if sampling_interval <= 0 or samples_per_report < 1:
            raise invalid(
                "core.profiler",
                f"profiler.on({sampling_interval}, {samples_per_report}): the interval must be above 0, the samples "
                "at least 1",
            )
        if self._thread is not None:
            raise invalid("core.profiler", "profiler.on() was called twice; call off() between")
        if not self._is_chief:
            return
        self._sampler = LoadSampler(seconds=sampling_interval)
        self._sampler.start()
        self._is_over.clear()
        seconds = sampling_interval * samples_per_report
        self._thread = threading.Thread(target=self._serve, args=(seconds,), name="gangline-profiler", daemon=True)
        self._thread.start()

    def off(self) -> None:
        """Sends the last report and ends. It may be called when the profiler is off already."""
        if self._thread is None or self._sampler is None:
            return
        self._is_over.set()
        self._thread.join()
        self._sampler.stop()
        self._report(self._sampler)
        self._thread = self._sampler = None

    def _serve(self, seconds: float) -> None:
        while not self._is_over.wait(seconds):
            if self._sampler is not None:
                self._report(self._sampler)

    def _report(self, sampler: LoadSampler) -> None:
        means = sampler.take()
        if means:
            self._link.send_metrics(MetricsPoint(GROUP, self._link.batches_completed, means))
