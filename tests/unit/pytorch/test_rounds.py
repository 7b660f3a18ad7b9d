"""A trial on fewer slots than its full size: several rounds make one batch, with the numbers of the full gang."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gangline import pytorch
from gangline.cluster_info import ClusterInfo, TrialInfo
from gangline.errors import GanglineError
from gangline.pytorch.trial import context as trial_context
from gangline.pytorch.trial.lr_scheduler import LRScheduler
from tests.support.small_trial import DATA, SmallTrial, fit

SETTING = {"hparams": {"global_batch_size": 12}}
LENGTH = pytorch.Batch(7)


class _Counted(SmallTrial):
    """Twelve records a batch over all ranks; counts its calls and the steps of its scheduler."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        torch.manual_seed(3)
        for parameter in self.model.parameters():
            torch.nn.init.normal_(parameter)
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9))
        scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.scheduler = context.wrap_lr_scheduler(scheduler, LRScheduler.StepMode.STEP_EVERY_BATCH)
        self.num_calls = 0

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(DATA, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.num_calls += 1
        assert batch_idx == self.context.current_train_batch() < LENGTH.length
        return super().train_batch(batch, epoch_idx, batch_idx)


def _in_rounds(monkeypatch: pytest.MonkeyPatch, rounds: int, make: Any = _Counted, **arguments: Any) -> Any:
    monkeypatch.setattr(trial_context, "_rounds_of", lambda core: rounds)
    return fit(make, **{"max_length": LENGTH, "init": SETTING, **arguments})


@pytest.mark.parametrize("rounds", [2, 3, 4, 6])
def test_rounds_train_to_the_same_weights_in_the_same_steps(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    undivided = _in_rounds(monkeypatch, 1)
    part = _in_rounds(monkeypatch, rounds)
    assert (undivided.num_calls, part.num_calls) == (7, 7 * rounds)
    assert part.context.get_global_batch_size() == undivided.context.get_global_batch_size() == 12
    assert part.context.get_per_slot_batch_size() == 12 // rounds
    assert part.context.position == undivided.context.position
    assert part.scheduler.last_epoch == undivided.scheduler.last_epoch == 7
    torch.testing.assert_close(part.model.weight, undivided.model.weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(part.model.bias, undivided.model.bias, rtol=0, atol=1e-6)


def test_rounds_and_aggregated_batches_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    for averages in (True, False):
        config = {"optimizations": {"aggregation_frequency": 2, "average_aggregated_gradients": averages}}
        init = {**SETTING, "exp_conf": config}
        undivided = _in_rounds(monkeypatch, 1, init=init)
        part = _in_rounds(monkeypatch, 3, init=init)
        assert (undivided.num_calls, part.num_calls) == (7, 21)
        torch.testing.assert_close(part.model.weight, undivided.model.weight, rtol=0, atol=1e-6)


class _Reported(pytorch.PyTorchCallback):
    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.metrics.append({name: float(value) for name, value in avg_metrics.items()})


class _Told(_Counted):
    """Reports each batch, with the number of its records."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.reported = _Reported()
        self.records = context.wrap_reducer(sum, name="records", for_validation=False)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"reported": self.reported}

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.records.update(len(batch[0]))  # type: ignore[attr-defined]  # a FunctionReducer, as the call above makes it
        return {"loss": super().train_batch(batch, epoch_idx, batch_idx)}


@pytest.mark.parametrize("rounds", [2, 4])
def test_rounds_divide_the_last_step_of_an_epoch_as_the_full_gang_does(
    monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """The second step has 4 of 12 records: in four rounds two of them repeat records, which count nothing."""
    init = {"hparams": {"global_batch_size": 8}, "exp_conf": {"scheduling_unit": 1}}
    undivided = _in_rounds(monkeypatch, 1, _Told, init=init)
    part = _in_rounds(monkeypatch, rounds, _Told, init=init)
    assert (undivided.num_calls, part.num_calls) == (7, 7 * rounds)
    assert part.context.position == undivided.context.position
    assert [metrics["records"] for metrics in part.reported.metrics] == [8, 4, 8, 4, 8, 4, 8]
    losses, expected = ([metrics["loss"] for metrics in trial.reported.metrics] for trial in (part, undivided))
    assert losses == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(part.model.weight, undivided.model.weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(part.model.bias, undivided.model.bias, rtol=0, atol=1e-6)


def test_a_trial_that_clears_gradients_itself_may_not_be_one_that_shrinks() -> None:
    class Own(_Counted):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.backward((self.model(batch[0]) ** 2).mean())
            self.context.step_optimizer(self.optimizer, auto_zero_grads=False)
            return {}

    config = {"resources": {"slots_per_trial": 4, "min_slots_per_trial": 2}}
    with pytest.raises(GanglineError, match=r"auto_zero_grads=False\) with resources.min_slots_per_trial"):
        fit(Own, max_length=LENGTH, init={**SETTING, "exp_conf": config})


@pytest.mark.parametrize(("world_size", "full", "rounds"), [(4, 0, 1), (2, 4, 2), (1, 8, 8), (4, 4, 1)])
def test_a_rank_knows_its_rounds(world_size: int, full: int, rounds: int) -> None:
    trial = TrialInfo("1.1", 1, 1, {}, {})
    info = ClusterInfo("c", "1.1.1", 1, "a1", 0, 1, [], "/s", "/c", trial, world_size=world_size, full_world_size=full)
    assert ClusterInfo.parse(info.to_json()).rounds == rounds
