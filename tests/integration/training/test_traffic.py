"""The profile's account of the exchange between ranks: all of it in every strategy, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from gangline import pytorch
from gangline.config.optimization import parse_optimizations
from gangline.pytorch.parallel import Strategy, choose_strategy
from gangline.pytorch.parallel.divided.shard_meter import parameter_groups
from gangline.pytorch.profile.clock import StepClock
from gangline.pytorch.profile.traffic import Traffic
from tests.support.event_file import read_scalars
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang
from tests.support.points_trial import Net, PointsTrial, WholePointsTrial, make_optimizer

# Far above what other work on the machine adds to a step.
_LATE_SECONDS = 1.0
_OF_TWO = ("ddp", "zero1", "zero2", "zero3")
_STRATEGIES = [*((2, strategy) for strategy in _OF_TWO), (4, "hsdp")]


def _is_nearly(seconds: float) -> bool:
    return 0.9 * _LATE_SECONDS < seconds < 1.9 * _LATE_SECONDS


def _is_small(seconds: float) -> bool:
    return 0 < seconds < 0.5 * _LATE_SECONDS


def _waited(prompt: Measured, late: Measured) -> bool:
    """Whether the prompt rank alone waited for the late one; a busy machine adds to the communication of both."""
    return _is_nearly(prompt.seconds) and 0 < late.seconds < prompt.seconds - 0.5 * _LATE_SECONDS


@dataclass(frozen=True, slots=True)
class Run:
    """One training under a Trainer. name: of its folder."""

    name: str
    strategy: str
    is_profiled: bool
    is_whole: bool = False
    aggregation: int = 1


def train(directory: Path, runs: Sequence[Run]) -> list[tuple[list[float], dict[str, torch.Tensor]]]:
    """Losses of each run, and its model."""
    return [_train(directory / run.name, run) for run in runs]


@in_folder
def _train(directory: Path, run: Run) -> tuple[list[float], dict[str, torch.Tensor]]:
    configuration = {
        "parallelism": run.strategy,
        "scheduling_unit": 2,
        "optimizations": {"aggregation_frequency": run.aggregation},
    }
    with pytorch.init(hparams={"global_batch_size": 8}, exp_conf=configuration) as context:
        trial = (WholePointsTrial if run.is_whole else PointsTrial)(context)
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(4),
            validation_period=pytorch.Batch(3),
            checkpoint_policy="none",
            profiling_enabled=run.is_profiled,
        )
        return trial.recorder.losses, context.get_full_model_state(trial.model)


@pytest.mark.parametrize(("size", "strategy"), _STRATEGIES)
def test_profile_tells_it_and_changes_nothing(size: int, strategy: str, tmp_path: Path) -> None:
    variants = {"plain": {}, "whole": {"is_whole": True}, "aggregated": {"aggregation": 2}}
    runs = [
        Run(f"{name}-{is_profiled}", strategy, is_profiled, **options)  # type: ignore[arg-type]  # as written above
        for name, options in variants.items()
        for is_profiled in (False, True)
    ]
    for by_run in run_gang(size, tmp_path / "gang", train, tmp_path, runs):
        for without, profiled in zip(by_run[::2], by_run[1::2], strict=True):
            assert without[0] == profiled[0]
            assert all(torch.equal(value, profiled[1][name]) for name, value in without[1].items())
    for name in variants:
        assert "profiling/communication_seconds" not in read_scalars(tmp_path / f"{name}-False" / "tensorboard")
        scalars = read_scalars(tmp_path / f"{name}-True" / "tensorboard")
        for batch in (2, 4):
            communication = scalars["profiling/communication_seconds"][batch]
            assert 0 < communication <= scalars["profiling/step_seconds"][batch]
            assert 0 <= scalars["profiling/hidden_communication_seconds"][batch] <= communication


_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds a step on this rank, and in collectives that came after measuring had stopped."""

    seconds: float
    hidden: float
    step_seconds: float
    afterwards: float


def measure(strategy_name: str, late: dict[str, Sequence[int]], seconds: float) -> Measured:
    """late: which ranks come that much later than the others, by the moment: before the "forward" or "backward" pass,
    the "step" of the optimizer, an "evaluation" between two steps, a step after the last "measured" one."""
    training = _Training(choose_strategy(strategy_name, dist.get_world_size(), _CPU, parse_optimizations({})), Net())

    def come(moment: str) -> None:
        if dist.get_rank() in late.get(moment, ()):
            pass_time(seconds)

    training.step(come=lambda moment: None)
    with training.measured():
        for _ in range(2):
            training.step(come)
            come("evaluation")
            with torch.no_grad():
                training.model(torch.ones(2, 6))
    come("measured")
    training.step(come=lambda moment: None)
    return training.found()


class _Training:
    def __init__(self, strategy: Strategy, model: nn.Module) -> None:
        self.model = strategy.prepare_model(model)
        self._optimizer = strategy.prepare_optimizer(make_optimizer(self.model, "sgd"))
        self._clock = StepClock()
        self._traffic = Traffic(strategy.traffic_meters(), self._clock)
        self._found: dict[str, float] = {}
        self._step_seconds = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        self._clock.is_running = True
        self._traffic.start()
        yield
        self._traffic.stop()
        self._clock.is_running = False
        steps, seconds = self._clock.take()
        self._found, self._step_seconds = self._traffic.take(steps), sum(seconds.values()) / steps

    def step(self, come: Callable[[str], None]) -> None:
        come("forward")
        with self._clock.phase("forward"):
            loss = self.model(torch.ones(2, 6)).sum()
            come("backward")
            loss.backward()
            come("step")
            self._optimizer.step()
            self._optimizer.zero_grad()
        self._clock.end_step()
        if self._clock.is_running:
            self._traffic.end_step()

    def found(self) -> Measured:
        return Measured(
            seconds=self._found["communication_seconds"],
            hidden=self._found["hidden_communication_seconds"],
            step_seconds=self._step_seconds,
            afterwards=self._traffic.take(1)["communication_seconds"],
        )


def pass_time(seconds: float) -> Any:
    """Nothing comes of it: being late is what the others are to see."""
    threading.Event().wait(seconds)


@pytest.mark.parametrize(
    ("strategy", "moment"),
    # Before its forward pass DistributedDataParallel sends buffers only.
    [*((strategy, "backward") for strategy in _OF_TWO), ("zero2", "forward"), ("zero3", "forward")],
)
def test_waiting_for_a_late_rank_is_communication(strategy: str, moment: str, tmp_path: Path) -> None:
    prompt, late = run_gang(2, tmp_path, measure, strategy, {moment: [1]}, _LATE_SECONDS)
    assert _waited(prompt, late), (prompt, late)
    assert prompt.seconds <= prompt.step_seconds
    assert prompt.hidden < 0.5 * prompt.seconds
    assert prompt.afterwards == late.afterwards == 0


def test_copies_of_a_part_are_awaited_too(tmp_path: Path) -> None:
    """Ranks 2 and 3 hold a copy of what 0 and 1 hold; only the reduction over the copies joins the two pairs."""
    results = run_gang(4, tmp_path, measure, "hsdp", {"forward": [2, 3]}, _LATE_SECONDS)
    assert all(_waited(prompt, late) for prompt in results[:2] for late in results[2:]), results


def test_parameters_that_follow_the_step_count(tmp_path: Path) -> None:
    prompt, late = run_gang(2, tmp_path, measure, "zero1", {"step": [1]}, _LATE_SECONDS)
    assert _waited(prompt, late), (prompt, late)
    assert late.step_seconds >= _LATE_SECONDS


def collectives() -> list[list[str]]:
    """Returns the collectives that hsdp calls for each divided module before, during and after measuring; from the
    middle on the first module gathers with an object of the trial's own.
    """
    strategy = choose_strategy("hsdp", dist.get_world_size(), _CPU, parse_optimizations({}))
    model: Any = strategy.prepare_model(Net())
    (meter,) = strategy.traffic_meters()

    def names() -> list[str]:
        groups = [
            group for module in model.modules() if isinstance(module, FSDPModule) for group in parameter_groups(module)
        ]
        parts_of_groups = [
            (group._all_gather_comm, group._reduce_scatter_comm, group._all_reduce_hook) for group in groups
        ]
        return [type(part).__name__ for parts in parts_of_groups for part in parts]

    before = names()
    meter.start(lambda: True)
    during = names()
    model.set_custom_all_gather(OwnGather())
    meter.stop()
    # A rank that ends closes its links, and another one may still be making its own.
    dist.barrier()
    return [before, during, names()]


class OwnGather:
    """A gather object of the trial's own, which is never called."""


def test_nothing_stays_around_the_collectives(tmp_path: Path) -> None:
    """But what a trial has put there itself."""
    for before, during, after in run_gang(4, tmp_path, collectives):
        assert not set(before).intersection(during)
        assert after == ["OwnGather", *before[1:]]


@pytest.mark.parametrize("moment", ["evaluation", "measured"])
def test_what_lies_outside_the_measured_steps_does_not_count(moment: str, tmp_path: Path) -> None:
    """The last rank comes late to a forward pass that is no part of them."""
    results: list[Measured] = run_gang(2, tmp_path, measure, "zero3", {moment: [1]}, _LATE_SECONDS)
    assert all(_is_small(measured.seconds) for measured in results)
    assert all(measured.afterwards == 0 for measured in results)


def measure_slow_backward(strategy_name: str, seconds: float) -> Measured:
    """Measures a model whose last gradients are produced `seconds` later, each in a bucket of its own."""
    optimizations = parse_optimizations({"tensor_fusion_threshold": 0})
    model = nn.Sequential(nn.Linear(6, 6), Slow(seconds), nn.Linear(6, 3))
    training = _Training(choose_strategy(strategy_name, dist.get_world_size(), _CPU, optimizations), model)
    # torch makes the buckets after the first step.
    for _ in range(2):
        training.step(come=lambda moment: None)
    with training.measured():
        training.step(come=lambda moment: None)
    return training.found()


class Slow(nn.Module):
    """Changes nothing, and takes its time in the backward pass."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(lambda gradient: pass_time(self.seconds))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return x


def test_exchange_beside_the_backward_pass_is_hidden(tmp_path: Path) -> None:
    for measured in run_gang(2, tmp_path, measure_slow_backward, "ddp", _LATE_SECONDS):
        assert measured.hidden >= 0.9 * _LATE_SECONDS
        assert _is_small(measured.seconds - measured.hidden)


def test_exchange_that_is_waited_for_is_not_hidden(tmp_path: Path) -> None:
    """On the CPU a divided model's collectives are all of this kind."""
    for measured in run_gang(2, tmp_path, measure_slow_backward, "zero3", _LATE_SECONDS):
        assert measured.hidden == 0
        assert _is_small(measured.seconds)
        assert measured.step_seconds >= _LATE_SECONDS


def measure_models(strategy_name: str, seconds: float) -> list[float]:
    """Communication of each of three steps, of which all but the second have a backward pass through the second model,
    where the last rank is late each time."""
    strategy = choose_strategy(strategy_name, dist.get_world_size(), _CPU, parse_optimizations({}))
    first, second = (strategy.prepare_model(nn.Linear(6, 3)) for _ in range(2))
    clock = StepClock()
    clock.is_running = True
    traffic = Traffic(strategy.traffic_meters(), clock)
    traffic.start()
    step_seconds = []
    for models in ([first, second], [first], [first, second]):
        for model in models:
            with clock.phase("forward"):
                loss = model(torch.ones(2, 6)).sum()
                if model is second and dist.get_rank() == dist.get_world_size() - 1:
                    pass_time(seconds)
                loss.backward()
        traffic.end_step()
        step_seconds.append(traffic.take(1)["communication_seconds"])
    return step_seconds


def test_model_without_a_backward_pass_in_a_step_adds_nothing(tmp_path: Path) -> None:
    both, single, again = run_gang(2, tmp_path, measure_models, "ddp", _LATE_SECONDS)[0]
    assert _is_nearly(both)
    assert _is_small(single)
    assert _is_nearly(again)
