"""A loss that is no number ends the trial before anything of it is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangline import pytorch
from gangline.domain.state import ExitKind
from gangline.errors import GanglineError
from gangline.launch.failure import describe
from tests.support.small_trial import SmallTrial, fit


class _Diverging(SmallTrial):
    """Its loss is infinite from the sixth batch on."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = super().train_batch(batch, epoch_idx, batch_idx)
        return {"loss": loss * (float("inf") if batch_idx >= 5 else 1.0), "precision": float("nan")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"reporting_period": pytorch.Batch(2), "checkpoint_period": pytorch.Batch(4)},
            "loss is inf at batch 6; the newest checkpoint is of batch 4. Lower the learning rate or clip the "
            "gradients; optimizations.nonfinite_loss: ignore trains on",
        ),
        ({"reporting_period": pytorch.Batch(100), "checkpoint_period": pytorch.Batch(7)}, "loss is inf at batch 7;"),
        ({"reporting_period": pytorch.Batch(100)}, "loss is inf at batch 8; there is no checkpoint yet."),
    ],
)
def test_trial_stops_at_the_next_report_or_checkpoint(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(GanglineError) as caught:
        fit(_Diverging, max_length=pytorch.Batch(8), checkpoint_policy="none", **arguments)
    assert caught.value.code == "training.nonfinite_loss"
    assert caught.value.message.startswith(message)
    # Trying again would only repeat it.
    assert describe(caught.value).kind is ExitKind.NONFINITE_METRIC


def test_it_may_be_ignored() -> None:
    init = {"exp_conf": {"optimizations": {"nonfinite_loss": "ignore"}}}
    fit(_Diverging, max_length=pytorch.Batch(8), init=init)
    assert len(list(Path("checkpoints").iterdir())) == 1
