"""The hidden time of a GPU's collectives: work in a stream of its own beside the computation, until that waits for it.

Kernels that only pass time stand for the collectives, as those need several GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in __all__

from gangline.config.optimization import parse_optimizations
from gangline.pytorch.parallel.divided.fully_sharded import Zero3Strategy
from gangline.pytorch.parallel.divided.shard_meter import ShardMeter
from gangline.pytorch.parallel.whole.ddp import DdpStrategy
from gangline.pytorch.parallel.whole.exchange import Exchange
from gangline.pytorch.profile.clock import StepClock
from gangline.pytorch.profile.traffic import Traffic

_CYCLES = 200_000_000
# torch leaves much of it untyped.
_cuda: Any = torch.cuda


@pytest.fixture(scope="module")
def device() -> Iterator[torch.device]:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    dist.init_process_group("cpu:gloo,cuda:nccl", store=HashStore(), rank=0, world_size=1)
    yield torch.device("cuda", 0)
    dist.destroy_process_group()


@pytest.fixture
def meter(device: torch.device) -> Iterator[ShardMeter]:
    shard_meter = ShardMeter(device, lambda: [], has_copies=False)
    _cuda._sleep(1)
    torch.cuda.synchronize()
    shard_meter.start(lambda: True)
    yield shard_meter
    shard_meter.stop()


def _kernel_seconds() -> float:
    begin, end = _cuda.Event(enable_timing=True), _cuda.Event(enable_timing=True)
    begin.record()
    _cuda._sleep(_CYCLES)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _run_beside(meter: ShardMeter, side: torch.cuda.Stream, share: float, wait: Callable[[], None]) -> None:
    """A collective, and beside it a computation that takes that share of its time and then waits."""
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), meter.under_way():
        _cuda._sleep(_CYCLES)
    _cuda._sleep(int(share * _CYCLES))
    wait()


def test_what_the_computation_waits_for_is_not_hidden(meter: ShardMeter) -> None:
    seconds = _kernel_seconds()
    side = _cuda.Stream()
    _run_beside(meter, side, 0.25, lambda: torch.cuda.current_stream().wait_stream(side))
    meter.end_step()
    _run_beside(meter, side, 0.25, lambda: torch.cuda.current_stream().wait_event(side.record_event()))
    meter.end_step()
    communication, hidden = meter.take()
    assert communication == pytest.approx(2 * seconds, rel=0.1)
    assert hidden == pytest.approx(0.5 * seconds, rel=0.1)


def test_what_ends_before_the_computation_does_is_hidden(meter: ShardMeter) -> None:
    seconds = _kernel_seconds()
    side = _cuda.Stream()
    _run_beside(meter, side, 1.5, lambda: torch.cuda.current_stream().wait_stream(side))
    communication, hidden = meter.take()
    assert communication == pytest.approx(seconds, rel=0.1)
    assert hidden == pytest.approx(seconds, rel=0.1)


def test_collective_in_the_stream_of_the_computation_is_not_hidden(meter: ShardMeter) -> None:
    seconds = _kernel_seconds()
    with meter.under_way():
        _cuda._sleep(_CYCLES)
    communication, hidden = meter.take()
    assert communication == pytest.approx(seconds, rel=0.1)
    assert hidden == 0


def test_ending_a_step_waits_for_nothing(meter: ShardMeter) -> None:
    with meter.under_way():
        _cuda._sleep(_CYCLES)
    meter.end_step()
    assert not torch.cuda.current_stream().query()
    assert meter.take()[0] > 0


def test_streams_wait_as_before_once_measuring_has_stopped(meter: ShardMeter) -> None:
    assert torch.cuda.Stream.wait_event.__module__ != "torch.cuda.streams"
    meter.stop()
    assert torch.cuda.Stream.wait_event.__module__ == "torch.cuda.streams"


@pytest.mark.parametrize("name", ["ddp", "zero3"])
def test_measuring_changes_no_parameter(device: torch.device, name: str) -> None:
    states = []
    for is_measured in (False, True):
        torch.manual_seed(3)
        net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4))).to(device)
        exchange = Exchange(parse_optimizations({}))
        strategy = DdpStrategy(device, {}, exchange) if name == "ddp" else Zero3Strategy(device)
        model = strategy.prepare_model(net)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        clock = StepClock()
        clock.is_running = is_measured
        traffic = Traffic(strategy.traffic_meters() if is_measured else (), clock)
        traffic.start()
        for _ in range(4):
            with clock.phase("forward"):
                model(torch.ones(8, 64, device=device)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            traffic.end_step()
        assert set(traffic.take(4)) == (
            {"communication_seconds", "hidden_communication_seconds"} if is_measured else set()
        )
        traffic.stop()
        states.append(strategy.full_model_state(model))
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
