"""The profile's account of the exchange between ranks: all of it in every strategy, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.event_file import read_scalars
from tests.support.gang import run_gang
from tests.support.traffic_work import Measured, Run, collectives, measure, measure_models, measure_slow_backward, train

# Far above what other work on the machine adds to a step.
_LATE_SECONDS = 1.0
_OF_TWO = ("ddp", "zero1", "zero2", "zero3")
_STRATEGIES = [*((2, strategy) for strategy in _OF_TWO), (4, "hsdp")]


def _is_nearly(seconds: float) -> bool:
    return 0.9 * _LATE_SECONDS < seconds < 1.9 * _LATE_SECONDS


def _is_small(seconds: float) -> bool:
    return 0 < seconds < 0.5 * _LATE_SECONDS


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
        for batch in (2, 4, 6, 8):
            communication = scalars["profiling/communication_seconds"][batch]
            assert 0 < communication <= scalars["profiling/step_seconds"][batch]
            assert 0 <= scalars["profiling/hidden_communication_seconds"][batch] <= communication


@pytest.mark.parametrize(
    ("strategy", "moment"),
    # Before its forward pass DistributedDataParallel sends buffers only.
    [*((strategy, "backward") for strategy in _OF_TWO), ("zero2", "forward"), ("zero3", "forward")],
)
def test_waiting_for_a_late_rank_is_communication(strategy: str, moment: str, tmp_path: Path) -> None:
    prompt, late = run_gang(2, tmp_path, measure, strategy, {moment: [1]}, _LATE_SECONDS)
    assert _is_nearly(prompt.seconds)
    assert prompt.seconds <= prompt.step_seconds
    assert prompt.hidden < 0.5 * prompt.seconds
    assert _is_small(late.seconds)
    assert prompt.afterwards == late.afterwards == 0


def test_copies_of_a_part_are_awaited_too(tmp_path: Path) -> None:
    """Ranks 2 and 3 hold a copy of what 0 and 1 hold; only the reduction over the copies joins the two pairs."""
    results = run_gang(4, tmp_path, measure, "hsdp", {"forward": [2, 3]}, _LATE_SECONDS)
    assert all(_is_nearly(measured.seconds) for measured in results[:2])
    assert all(_is_small(measured.seconds) for measured in results[2:])


def test_parameters_that_follow_the_step_count(tmp_path: Path) -> None:
    prompt, late = run_gang(2, tmp_path, measure, "zero1", {"step": [1]}, _LATE_SECONDS)
    assert _is_nearly(prompt.seconds)
    assert _is_small(late.seconds)
    assert late.step_seconds >= _LATE_SECONDS


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


def test_model_without_a_backward_pass_in_a_step_adds_nothing(tmp_path: Path) -> None:
    both, single, again = run_gang(2, tmp_path, measure_models, "ddp", _LATE_SECONDS)[0]
    assert _is_nearly(both)
    assert _is_small(single)
    assert _is_nearly(again)
