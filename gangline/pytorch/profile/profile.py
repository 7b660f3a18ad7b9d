"""Profile of a trial: the cost of its steps and the load of its ranks, as metrics of the group "profiling".

Owns when it measures (the section `profiling`, or Trainer.fit's profiling_enabled) and its report: means over the
ranks. Without profiling it costs a few checks of a flag. The training loop drives it.
"""

from __future__ import annotations

import torch

from gangline.core.load import LoadSampler
from gangline.core.profiler import GROUP
from gangline.domain.settled.record import SettledProfiling
from gangline.pytorch.profile.clock import StepClock
from gangline.pytorch.profile.trace import Trace
from gangline.pytorch.profile.traffic import Traffic

# The one number of which `mean` makes a sum.
SUMMED = "samples_per_second"


class Profile:
    """Measures steps. The loop calls begin_batch and end_batch around each batch, take at each training report, and
    close at the end."""

    group = GROUP

    def __init__(self, setting: SettledProfiling, clock: StepClock, traffic: Traffic) -> None:
        self._setting = setting
        self._clock = clock
        self._traffic = traffic
        self._load = LoadSampler()
        self._records = 0

    @property
    def is_measuring(self) -> bool:
        return self._clock.is_running

    def begin_batch(self, batch: int) -> None:
        """Starts or stops to measure, before the batch is taken from the loader. batch: counts all batches of the trial
        from 0."""
        if self._setting.covers(batch) == self.is_measuring:
            return
        if self.is_measuring:
            self._stop()
        else:
            self._clock.is_running = True
            self._load.start()
            self._traffic.start()

    def end_batch(self, records: int, has_exchanged: bool) -> None:
        """Counts a batch. records: of this rank. has_exchanged: whether its gradients were exchanged."""
        if not self.is_measuring:
            return
        self._clock.end_step()
        self._records += records
        if has_exchanged:
            self._traffic.end_step()

    def take(self) -> dict[str, float]:
        """Returns this rank's means since the last call; empty when nothing was measured. A wait for other ranks counts
        as part of the phase that waits."""
        steps, seconds = self._clock.take()
        if not steps:
            return {}
        total_seconds = sum(seconds.values())
        means = {f"{name}_seconds": total / steps for name, total in seconds.items()}
        means["step_seconds"] = total_seconds / steps
        means[SUMMED] = self._records / total_seconds if total_seconds > 0 else 0.0
        means.update(self._traffic.take(steps))
        means.update(self._load.take())
        self._records = 0
        return means

    def close(self) -> None:
        """Stops to measure, also when training failed. May be called twice."""
        if self.is_measuring:
            self._stop()

    def _stop(self) -> None:
        self._clock.is_running = False
        self._load.stop()
        self._traffic.stop()


def mean(by_rank: list[dict[str, float]]) -> dict[str, float]:
    """Returns the means over the ranks that have the number. samples_per_second is the sum, because ranks train in
    parallel."""
    names = {name for values in by_rank for name in values}
    means = {}
    for name in sorted(names):
        values = [values[name] for values in by_rank if name in values]
        means[name] = sum(values) if name == SUMMED else sum(values) / len(values)
    return means


def open_profile(
    setting: SettledProfiling, *, clock: StepClock, trace: Trace, traffic: Traffic, device: torch.device, batches: int
) -> Profile:
    """Returns the profile of a trial. batches: completed before this process began. torch's profiler also traces a
    range of batches, unless the trial configured it itself."""
    if device.type == "cuda" and setting.enabled and setting.sync_timings:
        clock.synchronize_with(lambda: torch.cuda.synchronize(device))
    first, last = setting.begin_on_batch, setting.end_after_batch
    if setting.enabled and first is not None and last is not None and last >= batches and not trace.is_configured:
        trace.configure_range(max(0, first - batches), last - batches)
    return Profile(setting, clock, traffic)
