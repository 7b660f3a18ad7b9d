"""A plain batch, which leaves out the contexts of other batches: when a batch is one, and that it has their results."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from gangline import pytorch
from gangline.pytorch.trial import context as trial_context
from gangline.pytorch.trial.update import ParameterUpdate
from tests.support.small_trial import DATA, SmallTrial, fit

BATCHES = 6


@dataclass(frozen=True, slots=True)
class _Features:
    """Features of one training, of which some make its batches other than plain."""

    aggregation_frequency: int
    averages: bool
    mixed_precision: str
    rounds: int
    profiled: tuple[int, int] | None  # first and last measured batch
    has_scaler: bool
    clips: bool
    clears_itself: bool
    has_closure: bool
    passes: int  # backward passes of a batch

    def has_plain(self, batch: int) -> bool:
        is_measured = self.profiled is not None and self.profiled[0] <= batch <= self.profiled[1]
        is_whole = self.aggregation_frequency == self.rounds == 1
        return is_whole and self.mixed_precision == "O0" and not is_measured

    def init(self) -> dict[str, Any]:
        optimizations = {
            "aggregation_frequency": self.aggregation_frequency,
            "average_aggregated_gradients": self.averages,
            "mixed_precision": self.mixed_precision,
        }
        profiling: dict[str, Any] = {"enabled": self.profiled is not None}
        if self.profiled is not None:
            profiling |= dict(zip(("begin_on_batch", "end_after_batch"), self.profiled, strict=True))
        return {
            "hparams": {"global_batch_size": 4},
            "exp_conf": {"optimizations": optimizations, "profiling": profiling},
        }


def _draw(seed: int) -> _Features:
    """Returns features; about a third of the seeds has plain batches, as do all whose number is divisible by 3."""
    rng = Random(seed)
    is_whole = seed % 3 == 0
    frequency = 1 if is_whole else rng.choice([1, 2, 3])
    rounds = 1 if is_whole else rng.choice([1, 2])
    precision = "O0" if is_whole else rng.choice(["O0", "bf16"])
    has_scaler = rng.random() < 0.3
    # The trial's own clearing and closures need one call for each step, and torch has no closure with a scaler.
    makes_steps = frequency == rounds == 1
    return _Features(
        aggregation_frequency=frequency,
        averages=rng.random() < 0.5,
        mixed_precision=precision,
        rounds=rounds,
        profiled=(2, 3) if rng.random() < 0.5 else None,
        has_scaler=has_scaler,
        clips=rng.random() < 0.5,
        clears_itself=makes_steps and rng.random() < 0.4,
        has_closure=makes_steps and not has_scaler and rng.random() < 0.4,
        passes=rng.choice([1, 1, 2]),
    )


class _Trial(SmallTrial):
    """Trains a small model with these features."""

    features: _Features

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        torch.manual_seed(5)
        self.model = context.wrap_model(nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9))
        enabled = self.features.has_scaler
        self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=8.0)) if enabled else None

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(DATA, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        features, context = self.features, self.context
        if features.clears_itself:
            self.optimizer.zero_grad()
        loss = ((self.model(batch[0]) - 0.5) ** 2).mean()
        scaled = self.scaler.scale(loss) if self.scaler else loss
        for number in range(features.passes):
            context.backward(scaled, retain_graph=number + 1 < features.passes)
        context.step_optimizer(
            self.optimizer,
            clip_grads=(lambda parameters: context.clip_grad_norm(parameters, 0.5)) if features.clips else None,
            auto_zero_grads=not features.clears_itself,
            scaler=self.scaler,
            closure=(lambda: loss) if features.has_closure else None,
        )
        return {"loss": loss}


class _Reports(pytorch.PyTorchCallback):
    def __init__(self) -> None:
        self.metrics: list[Any] = []

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.metrics.append((dict(avg_metrics), [metrics["loss"].item() for metrics in batch_metrics]))


def _train(features: _Features, *, allows_plain: bool) -> tuple[list[torch.Tensor], list[Any], list[bool]]:
    """Returns the parameters and their momentum after the training, the reported metrics, and which batches were
    plain."""
    are_plain: list[bool] = []
    begin = ParameterUpdate.begin_batch
    reports = _Reports()

    def begin_batch(update: ParameterUpdate, is_step_batch: bool, weight: float = 1.0) -> bool:
        are_plain.append(begin(update, is_step_batch, weight))
        update._is_plain_batch = allows_plain and update._is_plain_batch
        return update._is_plain_batch

    class Trial(_Trial):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"reports": reports}

    Trial.features = features
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial_context, "_rounds_of", lambda core: features.rounds)
        patch.setattr(ParameterUpdate, "begin_batch", begin_batch)
        trial = fit(Trial, init=features.init(), max_length=pytorch.Batch(BATCHES), checkpoint_policy="none")
    state = [value for entry in trial.optimizer.state.values() for value in entry.values() if value is not None]
    return [*trial.model.parameters(), *state], reports.metrics, are_plain


@pytest.mark.parametrize("seed", range(18))
def test_plain_batches_have_the_results_of_the_general_way(seed: int) -> None:
    features = _draw(seed)
    tensors, metrics, are_plain = _train(features, allows_plain=True)
    expected_tensors, expected_metrics, _ = _train(features, allows_plain=False)
    expected = [features.has_plain(batch) for batch in range(BATCHES) for _ in range(features.rounds)]
    assert are_plain == expected
    assert metrics == expected_metrics
    assert len(tensors) == len(expected_tensors) == 8
    assert all(torch.equal(tensor, other) for tensor, other in zip(tensors, expected_tensors, strict=True))


def test_a_batch_with_a_weight_of_its_own_is_not_plain() -> None:
    with pytorch.init() as context:
        assert context.update.begin_batch(is_step_batch=True)
        assert not context.update.begin_batch(is_step_batch=True, weight=0.5)
        assert not context.update.begin_batch(is_step_batch=False)
        context.update.leave_batch()


def test_fp16_makes_no_batch_plain() -> None:
    with pytorch.init(exp_conf={"optimizations": {"mixed_precision": "fp16"}}) as context:
        assert not context.update.begin_batch(is_step_batch=True)
        context.update.leave_batch()


def test_between_batches_nothing_is_plain() -> None:
    """A callback's backward pass has the weight and the scaling of the batch before it, as ever."""
    with pytorch.init() as context:
        context.update.begin_batch(is_step_batch=True)
        context.update.leave_batch()
        assert not context.update._is_plain_batch
