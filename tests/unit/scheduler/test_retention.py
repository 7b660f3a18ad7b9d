"""Which checkpoints may go: never one that a trial goes on from, and none that belongs to the best or the latest."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

import pytest

from gangline.domain.experiment import Checkpoint
from services.scheduler.state.retention import Retention, find_superfluous

_RETENTION = Retention(experiment_best=0, trial_best=1, trial_latest=1, metric="loss", smaller_is_better=True)


def _checkpoint(name: str, trial: str, batches: int, loss: float | None = None) -> Checkpoint:
    metadata = {"validation_metrics": {} if loss is None else {"loss": loss}}
    return Checkpoint(name, trial, 1, batches, f"/s/checkpoints/{name}", metadata_json=json.dumps(metadata))


_ALL = [
    _checkpoint("a", "1.1", 10, 0.5),
    _checkpoint("b", "1.1", 20, 0.2),
    _checkpoint("c", "1.1", 30, 0.4),
    _checkpoint("d", "1.1", 40),
    _checkpoint("e", "1.2", 10, 0.3),
    _checkpoint("f", "1.2", 20, 0.3),
]


def _gone(retention: Retention = _RETENTION, needed: Collection[str] = ()) -> str:
    return "".join(checkpoint.id for checkpoint in find_superfluous(_ALL, retention, needed))


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ({}, "ac"),
        ({"trial_best": 0}, "abce"),
        ({"trial_latest": 0}, "acdf"),
        ({"trial_latest": 2}, "a"),
        ({"trial_best": 2}, "a"),
        ({"smaller_is_better": False}, "bc"),
        ({"trial_best": 0, "trial_latest": 0}, "abcdef"),
        ({"trial_best": 0, "trial_latest": 0, "experiment_best": 2}, "acdf"),
        ({"metric": "accuracy"}, "abce"),
    ],
)
def test_best_and_latest_stay(changes: dict[str, object], gone: str) -> None:
    assert _gone(replace(_RETENTION, **changes)) == gone  # type: ignore[arg-type]  # fields by name


def test_what_somebody_goes_on_from_stays() -> None:
    assert _gone(replace(_RETENTION, trial_best=0, trial_latest=0), needed={"c"}) == "abdef"


def test_the_latest_is_the_one_of_most_batches_whatever_the_clocks_said() -> None:
    """Among checkpoints of equally many batches, as of two attempts, the newer one counts."""
    early_clock = [replace(checkpoint, created_at=100.0 - checkpoint.batches_completed) for checkpoint in _ALL[:4]]
    only_latest = replace(_RETENTION, trial_best=0)
    assert "".join(checkpoint.id for checkpoint in find_superfluous(early_clock, only_latest)) == "abc"
    again = [replace(_ALL[3], id="older", created_at=1.0), replace(_ALL[3], id="newer", created_at=2.0)]
    assert [checkpoint.id for checkpoint in find_superfluous(again, only_latest)] == ["older"]


def test_metadata_of_other_makers_is_nobody_s_best() -> None:
    losses = ('"low"', "true", "NaN", "-Infinity", "1" + 400 * "0")
    texts = ("{}", "", *(f'{{"validation_metrics": {{"loss": {loss}}}}}' for loss in losses))
    strange = [replace(_ALL[0], metadata_json=text) for text in texts]
    only_best = replace(_RETENTION, trial_latest=0)
    for checkpoint in strange:
        assert find_superfluous([checkpoint], only_best) == [checkpoint]
