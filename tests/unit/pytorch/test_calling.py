"""Arguments of a trial's methods go by their names, in whatever order and number they stand."""

from __future__ import annotations

from typing import Any

import pytest

from gangline import pytorch
from gangline.errors import GanglineError
from gangline.pytorch.trial.calling import evaluate_call, train_call
from tests.support.small_trial import SmallTrial, fit


class _Swapped:
    def train_batch(self, batch: Any, batch_idx: int, epoch_idx: int) -> Any:
        return batch, epoch_idx, batch_idx

    def evaluate_batch(self, batch: Any, debug: bool = False) -> Any:
        return batch, debug


class _KeywordOnly:
    def train_batch(self, *, batch: Any, batch_idx: int, epoch_idx: int) -> Any:
        return batch, epoch_idx, batch_idx

    def evaluate_batch(self, *, batch_idx: int, batch: Any) -> Any:
        return batch, batch_idx


class _OtherName:
    def train_batch(self, rows: Any, batch_idx: int, epoch_idx: int, scale: float = 1.0) -> Any:
        return rows, epoch_idx, batch_idx

    def evaluate_batch(self, rows: Any, debug: bool = False, batch_idx: int = -1) -> Any:
        return rows, batch_idx, debug


class _HalfNamed:
    def train_batch(self, rows: Any, epoch_idx: int, index: int) -> Any:
        return rows, epoch_idx, index

    def evaluate_batch(self, *arguments: Any) -> Any:
        return arguments


class _NoNames:
    def train_batch(self, rows: Any, epoch: int, index: int) -> Any:
        return rows, epoch, index

    def evaluate_batch(self, rows: Any, index: int) -> Any:
        return rows, index


class _Anything:
    def train_batch(self, **arguments: Any) -> Any:
        return tuple(arguments[name] for name in ("batch", "epoch_idx", "batch_idx"))

    def evaluate_batch(self, rows: Any) -> Any:
        return (rows,)


@pytest.mark.parametrize(
    ("trial", "evaluated"),
    [
        (_Swapped(), ("rows", False)),
        (_KeywordOnly(), ("rows", 7)),
        (_OtherName(), ("rows", 7, False)),
        (_HalfNamed(), ("rows",)),
        (_NoNames(), ("rows", 7)),
        (_Anything(), ("rows",)),
    ],
)
def test_each_argument_gets_what_it_names(trial: Any, evaluated: tuple[Any, ...]) -> None:
    assert train_call(trial)("rows", 1, 5) == ("rows", 1, 5)
    assert evaluate_call(trial)("rows", 7) == evaluated


class _TooFew:
    def train_batch(self, batch: Any, index: int) -> Any: ...

    def evaluate_batch(self) -> Any: ...


class _Mixed:
    def train_batch(self, batch: Any, batch_idx: int, epoch: int) -> Any: ...

    def evaluate_batch(self, batch: Any, batch_idx: int, scale: float) -> Any: ...


@pytest.mark.parametrize(
    ("trial", "training", "evaluation"),
    [
        (_TooFew(), "_TooFew.train_batch takes batch, index", "_TooFew.evaluate_batch takes nothing"),
        (
            _Mixed(),
            "_Mixed.train_batch takes batch, batch_idx, epoch",
            "_Mixed.evaluate_batch takes batch, batch_idx, scale",
        ),
    ],
)
def test_what_cannot_be_called_is_told_before_training(trial: Any, training: str, evaluation: str) -> None:
    with pytest.raises(GanglineError) as caught:
        train_call(trial)
    assert caught.value.message == f"{training}; define it as (self, batch, epoch_idx, batch_idx)"
    with pytest.raises(GanglineError) as caught:
        evaluate_call(trial)
    assert caught.value.message == f"{evaluation}; define it as (self, batch) or (self, batch, batch_idx)"


def test_trainer_calls_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    class Swapped(SmallTrial):
        def train_batch(self, batch: Any, batch_idx: int, epoch_idx: int) -> Any:  # type: ignore[override]  # by name
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch: Any, debug: bool = False) -> Any:  # type: ignore[override]  # no index
            assert debug is False
            return super().evaluate_batch(batch)

    monkeypatch.chdir(tmp_path)
    trial = fit(Swapped, max_length=pytorch.Batch(5))
    assert [place[:2] for place in trial.seen] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4)]
