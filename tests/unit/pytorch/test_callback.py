"""Hooks under their earlier names are called in the place of the present ones."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from gangline import pytorch
from gangline.pytorch.trial.callback import start_epoch
from tests.support.small_trial import SmallTrial, fit


class _Old(pytorch.PyTorchCallback):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_validation_step_start(self) -> None:
        self.calls.append("start")

    def on_validation_step_end(self, metrics: dict[str, Any]) -> None:
        self.calls.append(f"end with {sorted(metrics)}")

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        self.calls.append("checkpoint")


class _New(_Old):
    """The present name comes first where both are there."""

    def on_validation_start(self) -> None:
        self.calls.append("new start")


def test_earlier_names() -> None:
    old, new = _Old(), _New()

    class Hooked(SmallTrial):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"old": old, "new": new}

    fit(Hooked, max_length=pytorch.Batch(1))
    assert old.calls == ["start", "end with ['error']", "checkpoint"]
    assert new.calls == ["new start", "end with ['error']", "checkpoint"]


class _Told(pytorch.PyTorchCallback):
    """Adds what happens to it to a list that the test holds. fails: the hook that raises."""

    def __init__(self, name: str, calls: list[str], fails: str = "") -> None:
        self.name, self.calls, self.fails = name, calls, fails

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        self.best = float("inf")
        self._tell(f"startup at {first_batch_idx}", "startup")

    def on_trial_shutdown(self) -> None:
        self._tell("shutdown", "shutdown")

    def state_dict(self) -> dict[str, Any]:
        return {"best": 0.5}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]

    def _tell(self, what: str, hook: str) -> None:
        self.calls.append(f"{self.name} {what}")
        if self.fails == hook:
            raise RuntimeError(f"{hook} of {self.name}")


def _told(callbacks: list[_Told], has_loader: bool = True) -> type[SmallTrial]:
    class Hooked(SmallTrial):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {callback.name: callback for callback in callbacks}

        def build_training_data_loader(self) -> pytorch.DataLoader:
            callbacks[0].calls.append("loader")
            if not has_loader:
                raise ValueError("no loader")
            return super().build_training_data_loader()

    return Hooked


def test_startup_comes_before_loaders_and_before_state_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calls: list[str] = []
    callback = _Told("one", calls)
    fit(_told([callback]), max_length=pytorch.Batch(2))
    (folder,) = Path("checkpoints").iterdir()
    fit(_told([callback]), max_length=pytorch.Batch(3), latest_checkpoint=folder.name)
    assert calls == ["one startup at 0", "loader", "one shutdown", "one startup at 2", "loader", "one shutdown"]
    assert callback.best == 0.5


def test_shutdown_hides_no_error_and_no_other_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    calls: list[str] = []
    callbacks = [_Told("one", calls, "shutdown"), _Told("two", calls, "shutdown"), _Told("three", calls)]
    with pytest.raises(ValueError, match="no loader"):
        fit(_told(callbacks, has_loader=False), max_length=pytorch.Batch(1))
    assert calls[-3:] == ["one shutdown", "two shutdown", "three shutdown"]
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [text.split("failed")[0] for text in messages] == [
        "on_trial_shutdown of the callback one ",
        "on_trial_shutdown of the callback two ",
    ]
    calls.clear()
    with pytest.raises(RuntimeError, match="shutdown of one"):
        fit(_told(callbacks), max_length=pytorch.Batch(1))
    assert calls[-3:] == ["one shutdown", "two shutdown", "three shutdown"]


def test_only_what_was_started_is_shut_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    calls: list[str] = []
    with pytest.raises(RuntimeError, match="startup of two"):
        fit(
            _told([_Told("one", calls), _Told("two", calls, "startup"), _Told("three", calls)]),
            max_length=pytorch.Batch(1),
        )
    assert calls == ["one startup at 0", "two startup at 0", "one shutdown"]


def test_an_old_hook_without_the_epoch_is_called() -> None:
    calls: list[object] = []

    class Old(pytorch.PyTorchCallback):
        def on_training_epoch_start(self) -> None:  # type: ignore[override]  # as old code has it
            calls.append("old")

    class New(pytorch.PyTorchCallback):
        def on_training_epoch_start(self, epoch_idx: int) -> None:
            calls.append(epoch_idx)

    for callback in (Old(), New()):
        start_epoch(callback, 3)
    assert calls == ["old", 3]


def test_a_training_report_is_made_at_validations_and_checkpoints_too(capsys: pytest.CaptureFixture[str]) -> None:
    """As often as in Determined: 7 times for 32 batches with a checkpoint after 5 and a validation after 10."""
    ends: list[tuple[int, int]] = []

    class Counting(pytorch.PyTorchCallback):
        def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
            assert set(avg_metrics) == {"loss"}
            ends.append((trials[0].context.current_train_batch(), len(batch_metrics)))

    trials: list[SmallTrial] = []

    class Hooked(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            trials.append(self)

        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"counting": Counting()}

    fit(
        Hooked,
        max_length=pytorch.Batch(32),
        checkpoint_period=pytorch.Batch(5),
        validation_period=pytorch.Batch(10),
        checkpoint_policy="none",
    )
    assert ends == [(5, 5), (10, 5), (15, 5), (20, 5), (25, 5), (30, 5), (32, 2)]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(words[2]) for words in lines if words[0] == "training"] == [batches for batches, _ in ends]
    assert [int(words[2]) for words in lines if words[0] == "validation"] == [10, 20, 30, 32]
