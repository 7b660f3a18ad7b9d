"""A model that a trial changes after it was wrapped trains as in one process, or is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gangline import pytorch
from tests.support.changing_trial import ChangingTrial, Kind, State, check_same, rank, run, run_many
from tests.support.gang import run_gang
from tests.support.points_trial import Net

_ALL = ["ddp", "zero1", "zero2", "zero3"]
_WHOLE = ["ddp", "zero1"]


@pytest.fixture(autouse=True)
def _stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class FrozenHeadTrial(ChangingTrial):
    """Begins with a head that is frozen and thaws it at the fourth batch."""

    def make_model(self) -> nn.Module:
        model = Net()
        model.head.requires_grad_(False)
        return model

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 3:
            trial.model.head.requires_grad_(True)


class FrozenBlockTrial(FrozenHeadTrial):
    def make_model(self) -> nn.Module:
        model = Net()
        model.blocks[1].requires_grad_(False)
        return model

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 3:
            trial.model.blocks[1].requires_grad_(True)
        if batch_idx == 5:
            trial.model.stem.requires_grad_(False)


@pytest.mark.parametrize("kind", [FrozenHeadTrial, FrozenBlockTrial], ids=lambda kind: kind.__name__)
def test_unfrozen_parameters_train_as_in_one_process(tmp_path: Path, kind: Kind) -> None:
    check_same(kind, tmp_path, _ALL)


class TeacherTrial(ChangingTrial):
    """Two models, of which the second is frozen as a whole until the fourth batch."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.second = context.wrap_model(Net().requires_grad_(False))
        self.second_optimizer = context.wrap_optimizer(torch.optim.SGD(self.second.parameters(), lr=0.1))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        if batch_idx == 3:
            self.second.requires_grad_(True)
        loss = functional.mse_loss(self.model(inputs) + self.second(inputs), targets)
        self.context.backward(loss)
        for optimizer in (self.optimizer, self.second_optimizer):
            self.context.step_optimizer(optimizer)
        return {"loss": loss}


def test_model_that_was_frozen_as_a_whole_trains_as_in_one_process(tmp_path: Path) -> None:
    check_same(TeacherTrial, tmp_path, _ALL)


class OwnGradientTrial(ChangingTrial):
    """Makes its gradients without a backward pass."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        parameters = list(self.model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        self.context.step_optimizer(self.optimizer, lambda chosen: self.context.clip_grad_norm(chosen, 0.1))
        return {"loss": loss}


def test_gradients_without_a_backward_pass_are_averaged(tmp_path: Path) -> None:
    check_same(OwnGradientTrial, tmp_path, _WHOLE)


class LateLayerTrial(ChangingTrial):
    """Adds a layer at the third batch, to the model and to the optimizer."""

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            layer = nn.Linear(3, 3)
            trial.model.extra = layer
            trial.model.register_forward_hook(lambda _model, _inputs, output: layer(output))
            trial.optimizer.add_param_group({"params": list(layer.parameters())})


def test_layer_of_a_wrapped_model_is_added_too_late(tmp_path: Path) -> None:
    for by_strategy in run_gang(2, tmp_path / "gang", run_many, LateLayerTrial, tmp_path, _ALL):
        for refusal, _ in by_strategy:
            assert refusal == (
                "parallelism.model_changed: Net had 16 parameters when it was wrapped and has others now; tie, add and "
                "replace parameters before context.wrap_model, and leave assign=True out of load_state_dict"
            )


def test_layer_that_no_stage_has_is_added_too_late(tmp_path: Path) -> None:
    results = run_gang(2, tmp_path / "gang", run_many, LateLayerTrial, tmp_path, ["pipeline"])
    for ((refusal, _),) in results:
        assert refusal == (
            "parallelism.model_changed: a parameter of shape [3, 3] was not in the model when it was wrapped, so no "
            "stage has it; tie, add and replace parameters before context.wrap_model, and leave assign=True out of "
            "load_state_dict"
        )


class OddRankTrial(FrozenHeadTrial):
    """Only the last rank thaws the head."""

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 1 and rank() == 1:
            trial.model.head.requires_grad_(True)


def run_impatient(kind: Kind, directory: Path, strategy: str) -> tuple[str, list[State]]:
    """A rank waits for a change of the others for a second only."""
    from gangline.pytorch.parallel.whole import same_change

    same_change.WAIT_SECONDS = 1.0
    try:
        return run(kind, directory, parallelism=strategy)
    except RuntimeError as error:
        return str(error), []


def test_rank_that_alone_unfreezes_is_refused(tmp_path: Path) -> None:
    results = run_gang(2, tmp_path / "gang", run_impatient, OddRankTrial, tmp_path, "ddp")
    assert results[1][0] == (
        "parallelism.model_changed: Net is frozen or unfrozen differently on different ranks (rank 1 has done so and "
        "others have not within 1 s), so gradients cannot be exchanged; set requires_grad at the same batch on all "
        "ranks"
    )


class DriftingTrial(ChangingTrial):
    """Adds to one weight on one rank what its number in the gang makes of it, unnoticed by any exchange."""

    amount = 0.05

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        # zero1 sends what an optimizer has stepped to all ranks, which would hide it between two checks.
        trial.model.blocks[1].widen.requires_grad_(False)
        with torch.no_grad():
            trial.model.blocks[1].widen.weight[3, 2] += trial.amount * rank()


@pytest.mark.parametrize("strategy", _WHOLE)
def test_ranks_that_drift_apart_end_with_the_parameters_name(tmp_path: Path, strategy: str) -> None:
    results = run_gang(2, tmp_path / "gang", run_many, DriftingTrial, tmp_path, [strategy])
    for ((refusal, _),) in results:
        assert refusal.startswith("training.drift: blocks.1.widen.weight differs between ranks by 0.")
        assert "at batch 1, so each rank trains a model of its own; there is no checkpoint yet." in refusal


class LateInitTrial(ChangingTrial):
    """Draws its initial weights after it has wrapped the model."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        torch.manual_seed(9)
        self.model.apply(self._init)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            nn.init.uniform_(module.bias, -0.1, 0.1)


def test_late_initialisation_draws_as_in_one_process(tmp_path: Path) -> None:
    check_same(LateInitTrial, tmp_path, [*_ALL, "pipeline"])


def test_late_initialisation_on_copies_of_shards_is_the_same(tmp_path: Path) -> None:
    check_same(LateInitTrial, tmp_path, ["hsdp"], size=4)


class OddSeedTrial(LateInitTrial):
    """With another seed on each rank."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        torch.manual_seed(9 + rank())
        self.model.apply(self._init)


def test_late_initialisation_of_other_seeds_takes_the_chiefs_numbers(tmp_path: Path) -> None:
    check_same(OddSeedTrial, tmp_path, ["zero2", "zero3"])


class AssigningTrial(ChangingTrial):
    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            for parameter in trial.model.parameters():
                parameter.data = parameter.data * 0.5


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_assignment_that_reaches_no_shard_is_refused(tmp_path: Path, strategy: str) -> None:
    results = run_gang(2, tmp_path / "gang", run_many, AssigningTrial, tmp_path, [strategy])
    for ((refusal, _),) in results:
        assert refusal == (
            "parallelism.data_assigned: Net.stem.weight.data was assigned to after context.wrap_model, which has no "
            f"effect on the parts that {strategy} divides parameters into; assign before wrap_model, or change the "
            "parameter in place under torch.no_grad(), as in parameter.clamp_(-1, 1)"
        )


class DroppingNet(Net):
    """Leaves out one block in a pass, the first or the second. choose: which one; None for none."""

    choose: Callable[[], int | None] = staticmethod(lambda: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.choose() if self.training else None
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            if number != chosen:
                x = block(x)
        out: torch.Tensor = self.head(x) * self.mask
        return out


class DropTrial(ChangingTrial):
    """Each rank leaves out another block."""

    options: tuple[int | None, ...] = (0, 1)

    def make_model(self) -> nn.Module:
        model = DroppingNet()
        model.choose = lambda: self.options[rank() % 2]
        return model


class UnevenDropTrial(DropTrial):
    """Only the first rank leaves out a block."""

    options = (1, None)


@pytest.mark.parametrize(("size", "strategy"), [(2, "zero2"), (2, "zero3"), (4, "hsdp")])
def test_block_that_only_some_ranks_skip_is_refused(tmp_path: Path, size: int, strategy: str) -> None:
    for kind, block in ((DropTrial, "DroppingNet.blocks.1"), (UnevenDropTrial, "DroppingNet.blocks.")):
        results = run_gang(size, tmp_path / kind.__name__, run_many, kind, tmp_path, [strategy])
        for ((refusal, _),) in results:
            assert refusal.startswith("parallelism.blocks_differ: this rank "), refusal
            assert f"gathers {block}" in refusal
            assert refusal.endswith(
                "draw what decides that from a generator of the same seed on all ranks, or use "
                "parallelism: {strategy: ddp, find_unused_parameters: true}"
            )


class EvenDropTrial(DropTrial):
    options = (1, 1)


def test_block_that_all_ranks_skip_is_as_in_one_process(tmp_path: Path) -> None:
    check_same(EvenDropTrial, tmp_path, ["zero2", "zero3"])


class RoundingTrial(DriftingTrial):
    amount = 1e-7


def test_rounding_is_no_drift(tmp_path: Path) -> None:
    results = run_gang(2, tmp_path / "gang", run_many, RoundingTrial, tmp_path, ["ddp"])
    assert [refusal for ((refusal, _),) in results] == ["", ""]
