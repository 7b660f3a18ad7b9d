"""Hooks under their earlier names are called in the place of the present ones."""

from __future__ import annotations

from typing import Any

from gangline import pytorch
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
