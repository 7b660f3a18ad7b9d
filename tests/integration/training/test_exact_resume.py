"""A trial that goes on after a pause or a restart, on as many ranks, is bit for bit the one that nothing interrupted:
also where ranks keep what no other rank knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gangline.cluster_info import CheckpointInfo
from gangline.pytorch import load_checkpoint
from tests.support.rank import RunningTrial, Trial, run_trial, start_trial
from tests.support.trial_source import LINEAR, linear_config

# torch orders the gradients of a bucket anew after the first step of a process.
_WIDE = LINEAR.replace("nn.Tanh(), ", "nn.Tanh(), nn.Linear(8, 8), ")
_POWERSGD = {"gradient_compression": {"hook": "powersgd", "rank": 1, "start_step": 3}}
_CASES = [
    ("ddp", _POWERSGD, "sgd", 2),
    ("ddp", _POWERSGD, "adamw", 3),
    ("zero1", _POWERSGD, "adamw", 2),
    ("zero1", {}, "adamw", 2),
    ("zero1", {"aggregation_frequency": 2}, "sgd", 2),
]


def _trial(case: tuple[str, dict[str, object], str, int], batches: int, latest: CheckpointInfo | None = None) -> Trial:
    strategy, optimizations, optimizer, size = case
    config = linear_config({"batches": batches}, parallelism=strategy, optimizations=optimizations)
    hparams = {"global_batch_size": 12, "optimizer": optimizer}
    return Trial({"model_def.py": _WIDE}, config, hparams, size, latest)


def _run(directory: Path, trial: Trial) -> RunningTrial:
    running, codes = run_trial(directory, trial)
    assert codes == [0] * trial.size, running.output(0)
    return running


def _state(running: RunningTrial) -> dict[str, Any]:
    return load_checkpoint(running.latest_checkpoint().url)


def _assert_equal(actual: Any, expected: Any, place: str = "") -> None:
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), place
        for key, value in expected.items():
            _assert_equal(actual[key], value, f"{place}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), place
        for position, value in enumerate(expected):
            _assert_equal(actual[position], value, f"{place}[{position}]")
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(actual, expected), f"{place}: {(actual.double() - expected.double()).abs().max()}"
    else:
        assert actual == expected, place


def _check(whole: RunningTrial, resumed: RunningTrial) -> None:
    expected, actual = _state(whole), _state(resumed)
    for part in ("models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict", "rank_state"):
        _assert_equal(actual[part], expected[part], part)
    losses = whole.runner.metric("training", "loss")
    again = resumed.runner.metric("training", "loss")
    assert again == {batch: losses[batch] for batch in again}


@pytest.mark.parametrize("case", _CASES, ids=str)
def test_restarted_trial_is_the_same_bit_for_bit(tmp_path: Path, case: tuple[str, dict[str, object], str, int]) -> None:
    """Twice: after some steps with compressed gradients, and after the first step of an attempt."""
    whole = _run(tmp_path / "whole", _trial(case, 14))
    first = _run(tmp_path / "first", _trial(case, 6))
    second = _run(
        tmp_path / "second",
        _trial(case, 6 + int(str(case[1].get("aggregation_frequency", 1))), first.latest_checkpoint()),
    )
    third = _run(tmp_path / "third", _trial(case, 14, second.latest_checkpoint()))
    _check(whole, third)


@pytest.mark.parametrize("case", [_CASES[0], _CASES[3]], ids=str)
def test_paused_trial_is_the_same_bit_for_bit(tmp_path: Path, case: tuple[str, dict[str, object], str, int]) -> None:
    with start_trial(tmp_path / "paused", _trial(case, 1_000_000)) as paused:
        paused.runner.wait_for(lambda: bool(paused.runner.of(1, "first_step")), "the first step of rank 1")
        paused.runner.preempt("a more urgent trial")
        assert paused.wait() == [0] * case[-1]
    batches = paused.latest_checkpoint().batches_completed + 5
    resumed = _run(tmp_path / "resumed", _trial(case, batches, paused.latest_checkpoint()))
    _check(_run(tmp_path / "whole", _trial(case, batches)), resumed)
