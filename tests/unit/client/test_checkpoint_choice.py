"""Which checkpoints are the best ones, and by which metric."""

from __future__ import annotations

import json

import pytest

from gangline.client.checkpoint_choice import best_checkpoints, choose_order, metrics_of
from gangline.domain.experiment import Checkpoint
from gangline.domain.settled.reading import settle_values
from gangline.domain.state import CheckpointState
from gangline.errors import GanglineError

SETTLED = settle_values({"searcher": {"metric": "accuracy", "smaller_is_better": False}})


def make(
    name: str, metrics: object = None, at: float = 0.0, state: CheckpointState = CheckpointState.COMPLETED
) -> Checkpoint:
    metadata = json.dumps({"validation_metrics": metrics} if metrics is not None else {})
    return Checkpoint(name, "1.1", 1, 10, "", metadata_json=metadata, created_at=at, state=state)


def best(checkpoints: list[Checkpoint], limit: int = 9, *, smaller: bool = True) -> list[str]:
    return [c.id for c in best_checkpoints(checkpoints, "loss", smaller_is_better=smaller, limit=limit)]


def test_searcher_decides_where_the_caller_leaves_it_open() -> None:
    assert choose_order(SETTLED, None, None) == choose_order(SETTLED, "accuracy", None) == ("accuracy", False)
    assert choose_order(settle_values({"searcher": {"metric": "loss"}}), None, None) == ("loss", True)


def test_caller_decides_before_the_searcher() -> None:
    assert choose_order(SETTLED, None, True) == ("accuracy", True)
    assert choose_order(SETTLED, "f1", False) == ("f1", False)


def test_another_metric_needs_a_direction() -> None:
    with pytest.raises(GanglineError) as caught:
        choose_order(SETTLED, "f1", None)
    assert caught.value.code == "checkpoint.no_direction"
    assert "give smaller_is_better" in caught.value.message


def test_order_is_by_the_metric_then_by_age() -> None:
    made = [make("c", {"loss": 0.5}, 3), make("a", {"loss": 0.5}, 1), make("b", {"loss": 0.1}, 2)]
    assert best(made) == ["b", "a", "c"]
    assert best(made, smaller=False) == ["a", "c", "b"]
    assert best(made, 1) == ["b"]
    assert best(made, 0) == []


@pytest.mark.parametrize(
    "metrics", [None, {}, {"acc": 1}, {"loss": "low"}, {"loss": True}, {"loss": float("nan")}, [1]]
)
def test_checkpoint_without_a_finite_value_does_not_count(metrics: object) -> None:
    assert best([make("a", metrics), make("b", {"loss": 1})]) == ["b"]
    assert isinstance(metrics_of(make("a", metrics)), dict)


def test_checkpoint_that_is_being_deleted_does_not_count() -> None:
    assert best([make("a", {"loss": 0}, state=CheckpointState.DELETING), make("b", {"loss": 1})]) == ["b"]


def test_negative_number_is_refused() -> None:
    with pytest.raises(GanglineError) as caught:
        best([], -1)
    assert caught.value.code == "checkpoint.limit"
