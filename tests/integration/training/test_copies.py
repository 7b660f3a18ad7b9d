"""Copies of a tensor on several ranks stay the same: parameters that drift apart end the trial, and buffers that each
rank fills from its own records are warned of once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from gangline.pytorch import load_checkpoint
from tests.support import copies_work as work
from tests.support.gang import run_gang

_REPLICAS: dict[str, Any] = {
    "hsdp": "hsdp",
    "whole replicas": {"strategy": "pipeline", "stages": 2},
    "divided replicas": {"strategy": "pipeline", "stages": 2, "replicas": "zero2"},
}
_NAME = r"blocks\.0\.widen\.weight"


def _check_refused(results: list[tuple[str, Any]], owner: str, what: str = "a model") -> None:
    pattern = (
        rf"training\.drift: {_NAME} differs between {owner}s by 0\.\d+ of its largest value at batch {work.EPOCH}, "
        rf"so each {owner} trains {what} of its own; there is no checkpoint yet\. Make gradients"
    )
    for refusal, _ in results:
        assert re.match(pattern, refusal), refusal


def _check_allowed(results: list[tuple[str, Any]], owner: str) -> None:
    assert [refusal for refusal, _ in results] == [""] * len(results)
    # Once, on the chief.
    rounding = [[text for text in texts if "rounding" in text] for _, texts in results]
    assert [len(texts) for texts in rounding] == [1] + [0] * (len(results) - 1)
    assert re.match(rf"{_NAME} differs between {owner}s by \d", rounding[0][0])


def test_replicas_that_drift_apart_end_with_the_parameters_name(tmp_path: Path) -> None:
    runs = [(kind, it) for kind in (work.PerturbingTrial, work.RoundingTrial) for it in _REPLICAS.values()]
    by_rank = run_gang(4, tmp_path / "gang", work.run_all, runs, tmp_path, work.EPOCH + 2)
    by_run = list(zip(*by_rank, strict=True))
    for results in by_run[: len(_REPLICAS)]:
        _check_refused(list(results), "replica")
    for results in by_run[len(_REPLICAS) :]:
        _check_allowed(list(results), "replica")


def test_copies_that_a_step_would_overwrite_or_two_stages_hold(tmp_path: Path) -> None:
    runs = [
        (work.PerturbingTrial, "zero1"),
        (work.TiedTrial, "pipeline"),
        (work.TiedRoundingTrial, "pipeline"),
    ]
    by_rank = run_gang(2, tmp_path / "gang", work.run_all, runs, tmp_path, work.EPOCH + 2)
    divided, tied, rounded = (list(results) for results in zip(*by_rank, strict=True))
    _check_refused(divided, "rank")
    _check_refused(tied, "stage", "a weight")
    _check_allowed(rounded, "stage")


_OWN_RECORDS = "differs between {}s, as each fills it from its own records; {}. Fill it from the records of all ranks"
_RANK_0 = "validations and checkpoints have those of rank 0"
_IN_PASSES = "each forward pass gives all ranks those of rank 0, which validations and checkpoints have too"
_OF_TWO: dict[str, tuple[Any, str]] = {
    "ddp": ("ddp", _OWN_RECORDS.format("rank", _IN_PASSES)),
    "no broadcast": (
        {"strategy": "ddp", "broadcast_buffers": False},
        _OWN_RECORDS.format("rank", "each rank validates with its own, and checkpoints have those of rank 0"),
    ),
    "zero2": ("zero2", _OWN_RECORDS.format("rank", _RANK_0)),
}


def _buffers(texts: list[str]) -> list[str]:
    return [text for text in texts if text.startswith("buffer ")]


def test_buffers_that_ranks_fill_apart_are_warned_of_once(tmp_path: Path) -> None:
    runs: list[Any] = [(work.QueueTrial, parallelism) for parallelism, _ in _OF_TWO.values()]
    others = [(work.JointQueueTrial, "ddp"), (work.NormTrial, "zero2")]
    chief, second = run_gang(2, tmp_path / "gang", work.run_all, [*runs, *others], tmp_path, 6)
    assert [refusal for refusal, _ in (*chief, *second)] == [""] * 2 * len([*runs, *others])
    for (_, text), (_, warnings) in zip(_OF_TWO.values(), chief, strict=False):
        (warning,) = _buffers(warnings)
        assert re.match(rf"buffer blocks\.[01]\.queue {re.escape(text)}", warning)
    # Of what all ranks fill alike, and of what has a warning of its own, there is none.
    assert [_buffers(warnings) for _, warnings in (*chief[len(runs) :], *second)] == [[]] * (len(others) + len(second))


def test_buffers_that_replicas_of_a_stage_fill_apart_are_warned_of(tmp_path: Path) -> None:
    runs = [(work.QueueTrial, _REPLICAS["whole replicas"])]
    by_rank = run_gang(4, tmp_path / "gang", work.run_all, runs, tmp_path, 6)
    (warning,) = _buffers(by_rank[0][0][1])
    text = _OWN_RECORDS.format("replica", "validations and checkpoints have those of the first replica")
    assert re.match(rf"buffer blocks\.[01]\.queue {re.escape(text)}", warning)


def test_a_checkpoint_has_the_buffers_of_rank_0_where_each_rank_keeps_its_own(tmp_path: Path) -> None:
    chief, second = run_gang(2, tmp_path / "gang", work.save_apart, tmp_path)
    (path,) = (path.parent for path in tmp_path.glob("checkpoints/*/metadata.json"))
    (saved,) = load_checkpoint(path)["models_state_dict"]
    names = ("blocks.0.queue", "blocks.1.queue")
    assert not any(torch.equal(chief[name], second[name]) for name in names)
    assert all(torch.equal(chief[name], saved[name]) for name in names)


@pytest.fixture(autouse=True)
def _stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
