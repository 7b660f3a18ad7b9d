"""The fusion tuner on CUDA events and NCCL, in a group of one: it ends, changes nothing, and recalls.

What it gains needs several GPUs; what may go wrong on one stream does not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in __all__

import gangline.core
from gangline.config.optimization import parse_optimizations
from gangline.pytorch.fusion.bucket_partition import DEFAULT_CAPS
from gangline.pytorch.fusion.bucketed import BucketedModel
from gangline.pytorch.fusion.meter import Meter
from gangline.pytorch.fusion.tuner import Tuner
from gangline.pytorch.parallel.whole.ddp import DdpStrategy
from gangline.pytorch.parallel.whole.exchange import Exchange
from gangline.pytorch.training.fusion_opening import make_tuner
from gangline.pytorch.trial.context import PyTorchTrialContext
from gangline.pytorch.trial.setting import TrialSetting

_WIDTH = 1024
_OTHER_CAPS = ((4 << 20,), (1 << 20, 8 << 20), (64 << 20,))


@pytest.fixture(scope="module")
def device() -> Iterator[torch.device]:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    dist.init_process_group("cpu:gloo,cuda:nccl", store=HashStore(), rank=0, world_size=1)
    yield torch.device("cuda", 0)
    dist.destroy_process_group()


class Training:
    """24 layers of 4 MiB under DDP with AdamW."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(7)
        optimizations = parse_optimizations({"auto_tune_tensor_fusion": True})
        strategy = DdpStrategy(device, {}, Exchange(optimizations))
        setting = TrialSetting(optimizations=optimizations)
        self.context = PyTorchTrialContext(gangline.core.init(), setting, strategy, device)
        net = nn.Sequential(*(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()) for _ in range(24)))
        self.net = self.context.wrap_model(net)
        self.optimizer = self.context.wrap_optimizer(torch.optim.AdamW(net.parameters(), lr=1e-3))
        self._generator = torch.Generator(device).manual_seed(3)

    @property
    def model(self) -> BucketedModel:
        bucketed = self.context.strategy.bucketed()
        assert bucketed is not None
        return bucketed

    def tuner(self) -> Tuner:
        return make_tuner(self.context, self.model, steps_left=10_000, batch_size=64, saved={})

    def step(self) -> None:
        inputs = torch.randn(64, _WIDTH, device=self.context.device, generator=self._generator)
        self.net(inputs).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds(self, steps: int) -> float:
        self._wait()
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        self._wait()
        return (time.perf_counter() - began) / steps

    def learned(self) -> list[torch.Tensor]:
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return [parameter.detach() for parameter in self.net.parameters()] + states

    def _wait(self) -> None:
        if self.context.device.type == "cuda":
            torch.cuda.synchronize()


def test_tuning_ends_in_time_and_is_recalled(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_FUSION_DIR", str(tmp_path))
    training = Training(device)
    tuner = training.tuner()
    steps = 0
    while tuner.record is None:
        training.step()
        tuner.on_step()
        steps += 1
        assert steps <= 60
    tuner.close()
    again = training.tuner()
    assert again.record == tuner.record
    again.close()


def test_other_buckets_change_nothing_that_is_learned(device: torch.device) -> None:
    plain, changed = Training(device), Training(device)
    for step in range(24):
        if step % 3 == 0:
            changed.model.rewrap(_OTHER_CAPS[step // 3 % len(_OTHER_CAPS)])
        plain.step()
        changed.step()
    for plain_tensor, changed_tensor in zip(plain.learned(), changed.learned(), strict=True):
        assert torch.equal(plain_tensor, changed_tensor)


def test_measured_buckets_are_no_slower_than_the_default(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_FUSION_DIR", str(tmp_path))
    training = Training(device)
    tuner = training.tuner()
    while tuner.record is None:
        training.step()
        tuner.on_step()
    tuner.close()
    tuned = tuner.record.bucket_bytes or DEFAULT_CAPS
    ratios = []
    for _ in range(5):
        seconds = []
        for caps in (DEFAULT_CAPS, tuned):
            training.model.rewrap(caps)
            training.seconds(5)
            seconds.append(training.seconds(20))
        ratios.append(seconds[0] / seconds[1])
    assert statistics.median(ratios) >= 0.98


def test_steps_are_timed_in_the_stream(device: torch.device) -> None:
    """By events, to within the time that the host needs to hand the work over."""
    training = Training(device)
    model = training.model
    training.seconds(5)
    tuner = training.tuner()
    meter = tuner._course.meter
    assert isinstance(meter, Meter)
    began = time.perf_counter()
    steps = []
    for _ in range(10):
        training.step()
        steps.append(meter.end_step())
    meter.clock.settle()
    wall = time.perf_counter() - began
    assert 0 < sum(meter.seconds(step) for step in steps) <= wall * 1.05
    assert all(meter.compute_seconds(step) > 0 for step in steps)
    assert model.is_exchanging
    tuner.close()
