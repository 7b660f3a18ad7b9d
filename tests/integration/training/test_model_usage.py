"""A trial that uses its models and makes its backward passes in its own way trains as in one process, or is refused in
one line with a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gangline import pytorch
from tests.support.changing_trial import (
    ChangingTrial,
    Kind,
    State,
    check_refused,
    check_same,
    penalised_batch,
    refusals_of,
    run,
    run_many,
)
from tests.support.gang import run_gang
from tests.support.points_trial import Net

_WHOLE = ["ddp", "zero1"]
_DIVIDED = ["zero2", "zero3"]
_ALL = [*_WHOLE, *_DIVIDED]
# hsdp needs four ranks.
_SIZES = [(2, _ALL), (4, ["hsdp"])]
_DIVIDED_SIZES = [(2, _DIVIDED), (4, ["hsdp"])]
_SHARD_USED = "pytorch.shard_used: a parameter was used while only this rank's part of it is here; call the wrapped "


@pytest.fixture(autouse=True)
def _stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class LossTrial(ChangingTrial):
    """Passes something else than one number to context.backward."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        self.context.backward(self.spoil(functional.mse_loss(self.model(inputs), targets, reduction="none")))
        return {}

    @staticmethod
    def spoil(losses: torch.Tensor) -> Any:
        return losses


class NumberLossTrial(LossTrial):
    @staticmethod
    def spoil(losses: torch.Tensor) -> Any:
        return losses.mean().item()


class DetachedLossTrial(LossTrial):
    @staticmethod
    def spoil(losses: torch.Tensor) -> Any:
        return losses.mean().detach()


_LOSSES: dict[Kind, str] = {
    LossTrial: (
        "pytorch.loss: context.backward got a loss of shape [{count}, 3] where it needs one number; pass its mean, as "
        "in context.backward(loss.mean())"
    ),
    NumberLossTrial: (
        "pytorch.loss: context.backward got a float; pass the loss as the tensor that it was computed as, without "
        ".item()"
    ),
    DetachedLossTrial: (
        "pytorch.loss: context.backward got a loss that depends on no trained parameter; compute it from the output of "
        "a wrapped model, without torch.no_grad() and .detach(), and leave some parameters with requires_grad"
    ),
}


@pytest.mark.parametrize("kind", _LOSSES, ids=lambda kind: kind.__name__)
def test_loss_that_has_no_gradient_is_refused(tmp_path: Path, kind: Kind) -> None:
    text = _LOSSES[kind]
    assert run_many(kind, tmp_path, ["none"])[0][0] == text.format(count=8)
    check_refused(kind, tmp_path, ["ddp", "zero3"], 2, text.format(count=4))


class PenaltyTrial(ChangingTrial):
    """Adds the squared gradient of the outputs by the inputs to the loss."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        return penalised_batch(self, batch)


def test_penalty_on_gradients_is_as_in_one_process(tmp_path: Path) -> None:
    check_same(PenaltyTrial, tmp_path, _WHOLE)


@pytest.mark.parametrize(("size", "strategies"), _DIVIDED_SIZES)
def test_penalty_on_gradients_of_a_divided_model(tmp_path: Path, size: int, strategies: list[str]) -> None:
    check_same(PenaltyTrial, tmp_path, strategies, size)


class SecondOrderTrial(ChangingTrial):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        self.context.backward(functional.mse_loss(self.model(inputs), targets), create_graph=True)
        return {}


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_graph_of_exchanged_gradients_is_refused(tmp_path: Path, size: int, strategies: list[str]) -> None:
    text = (
        "pytorch.second_order: context.backward(create_graph=True) with STRATEGY: the exchange of gradients between "
        "ranks cannot be differentiated; make a penalty with torch.autograd.grad(..., create_graph=True) and add it to "
        "the loss of one context.backward, or train on one slot"
    )
    check_refused(SecondOrderTrial, tmp_path, strategies, size, text)


class PartTrial(ChangingTrial):
    """Calls the parts of its model one by one, and never the model."""

    model: Any

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        return self.step(functional.mse_loss(self.model.head(self.encode(inputs)), targets))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        x = self.model.stem(x)
        for block in self.model.blocks:
            x = block(x)
        return x

    def step(self, loss: torch.Tensor) -> dict[str, Any]:
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}


@pytest.mark.parametrize(("size", "strategies"), _DIVIDED_SIZES)
def test_parts_of_a_divided_model_that_are_not_here(tmp_path: Path, size: int, strategies: list[str]) -> None:
    for messages in refusals_of(PartTrial, tmp_path, strategies, size).values():
        assert all(refusal.startswith(_SHARD_USED) for refusal in messages), messages


class HeadTrial(PartTrial):
    """Trains the head alone, by itself, after such a pass."""

    def make_model(self) -> nn.Module:
        model = Net()
        model.stem.requires_grad_(False)
        model.blocks.requires_grad_(False)
        return model

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        self.model(inputs)
        features = torch.cat([inputs, inputs[:, :2]], 1)
        return self.step(functional.mse_loss(self.model.head(features), targets))


@pytest.mark.parametrize("kind", [PartTrial, HeadTrial])
def test_parts_of_a_whole_model(tmp_path: Path, kind: Kind) -> None:
    check_same(kind, tmp_path, _WHOLE)


class LatePartTrial(PartTrial):
    """After a pass of the model that has no backward pass."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.model(batch[0])
        return super().train_batch(batch, epoch_idx, batch_idx)


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_parts_after_a_pass_of_the_model(tmp_path: Path, size: int, strategies: list[str]) -> None:
    check_same(LatePartTrial, tmp_path, strategies, size)


class BlocksNet(nn.Sequential):
    """All of whose parameters are in blocks."""

    def __init__(self) -> None:
        super().__init__(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)))


class BlocksTrial(PartTrial):
    """Calls blocks alone; a validation calls the model."""

    def make_model(self) -> nn.Module:
        return BlocksNet()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        x = inputs
        for block in self.model:
            x = block(x)
        return self.step(functional.mse_loss(x[:, :3], targets))

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.count.update(1)  # type: ignore[attr-defined]  # a FunctionReducer
        return {"error": functional.mse_loss(self.model(batch[0])[:, :3], batch[1])}


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_blocks_that_are_called_before_their_model(tmp_path: Path, size: int, strategies: list[str]) -> None:
    check_same(BlocksTrial, tmp_path, strategies, size)


@pytest.mark.parametrize(("size", "strategies"), _DIVIDED_SIZES)
def test_gradients_of_a_part_that_no_forward_pass_announced(tmp_path: Path, size: int, strategies: list[str]) -> None:
    check_same(HeadTrial, tmp_path, strategies, size)


class WholeAndPartTrial(PartTrial):
    """Calls the model, and one of its blocks again."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        whole = functional.mse_loss(self.model(inputs), targets)
        return self.step(whole + self.model.blocks[0](torch.cat([inputs, inputs[:, :2]], 1)).square().mean())


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_part_beside_the_whole_model(tmp_path: Path, size: int, strategies: list[str]) -> None:
    check_same(WholeAndPartTrial, tmp_path, strategies, size)


class PartEvaluationTrial(ChangingTrial):
    model: Any

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": self.model.blocks[0].widen(self.model.stem(batch[0])).mean()}


def test_part_of_a_divided_model_in_a_validation(tmp_path: Path) -> None:
    for messages in refusals_of(PartEvaluationTrial, tmp_path, ["zero3"]).values():
        assert all(refusal.startswith(_SHARD_USED) for refusal in messages), messages


class OwnBackwardTrial(ChangingTrial):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.context.step_optimizer(self.optimizer, lambda parameters: self.context.clip_grad_norm(parameters, 1.0))
        return {"loss": loss}


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_backward_pass_beside_the_context_is_refused(tmp_path: Path, size: int, strategies: list[str]) -> None:
    text = (
        "pytorch.own_backward: train_batch made gradients without context.backward, so they lack its weights for the "
        "last records of an epoch, for aggregation and for fp16; call context.backward(loss) in the place of "
        "loss.backward(), or torch.autograd.grad where no optimizer uses the gradients"
    )
    check_refused(OwnBackwardTrial, tmp_path, strategies, size, text)


class OwnBackwardBetweenTrial(ChangingTrial):
    """A pass of its own in each batch without a step."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        if batch_idx % 2:
            self.context.backward(loss)
        else:
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}


def run_aggregated(
    kinds: list[type[pytorch.PyTorchTrial]], directory: Path, strategies: list[str]
) -> list[tuple[str, list[State]]]:
    """Each kind in each strategy, with a step for every two batches."""
    return [
        run(kind, directory, parallelism=strategy, optimizations={"aggregation_frequency": 2})
        for strategy in strategies
        for kind in kinds
    ]


def test_backward_pass_beside_the_context_is_refused_where_no_step_follows(tmp_path: Path) -> None:
    kinds: list[Kind] = [OwnBackwardBetweenTrial]
    for by_rank in run_gang(2, tmp_path / "gang", run_aggregated, kinds, tmp_path, _ALL):
        assert [refusal.partition(":")[0] for refusal, _ in by_rank] == ["pytorch.own_backward"] * len(_ALL)


def test_backward_pass_beside_the_context_on_one_slot(tmp_path: Path) -> None:
    """Is refused where context.backward would have changed the loss."""
    refusal, models = run(OwnBackwardTrial, tmp_path)
    assert refusal == ""
    _, expected = run(ChangingTrial, tmp_path)
    assert all(torch.allclose(models[0][name], value, atol=1e-6) for name, value in expected[0].items())
    for optimizations in ({"aggregation_frequency": 2}, {"mixed_precision": "fp16"}):
        refusal, _ = run(OwnBackwardTrial, tmp_path, optimizations=optimizations)
        assert refusal.startswith("pytorch.own_backward: ")


class TwiceTrial(ChangingTrial):
    """Two backward passes through one graph."""

    keeps = True

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        outputs = self.model(inputs)
        loss = functional.mse_loss(outputs, targets)
        self.context.backward(loss, retain_graph=self.keeps)
        self.context.backward(outputs.abs().mean() if self.keeps else loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_two_backward_passes_through_one_graph(tmp_path: Path, size: int, strategies: list[str]) -> None:
    check_same(TwiceTrial, tmp_path, strategies, size)


def test_aggregation_over_batches(tmp_path: Path) -> None:
    """In every other batch nothing is exchanged."""
    kinds: list[Kind] = [PenaltyTrial, TwiceTrial, BlocksTrial]
    alone = run_aggregated(kinds, tmp_path, ["none"])
    for by_rank in run_gang(2, tmp_path / "gang", run_aggregated, kinds, tmp_path, _ALL):
        assert len(by_rank) == len(_ALL) * len(kinds)
        for place, (refusal, models) in enumerate(by_rank):
            assert refusal == "", place
            for name, value in alone[place % len(kinds)][1][0].items():
                assert torch.allclose(models[0][name].double(), value.double(), atol=1e-5), (place, name)


class PartlyTwiceTrial(ChangingTrial):
    """The second backward pass does not reach the head."""

    model: Any

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        stem = self.model.stem(inputs)
        loss = functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.backward(stem.square().mean())
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}


def test_second_backward_pass_that_reaches_fewer_parameters(tmp_path: Path) -> None:
    """Uses a whole model, whose gradients are sent in buckets: a bucket with a missing gradient would never be sent."""
    check_same(PartlyTwiceTrial, tmp_path, _WHOLE)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.first = nn.Linear(8, 3)
        self.second = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tanh(self.stem(x))
        return self.first(x), self.second(x)


class TwoHeadsTrial(ChangingTrial):
    """Makes a backward pass for each head."""

    adds = False

    def make_model(self) -> nn.Module:
        return TwoHeads()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        losses = [functional.mse_loss(output, targets) for output in self.model(inputs)]
        if self.adds:
            losses = [torch.stack(losses).sum()]
        for place, loss in enumerate(losses):
            self.context.backward(loss, retain_graph=place + 1 < len(losses))
        self.context.step_optimizer(self.optimizer)
        return {"loss": losses[0]}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.count.update(1)  # type: ignore[attr-defined]  # a FunctionReducer
        return {"error": functional.mse_loss(self.model(batch[0])[0], batch[1])}


class AddedHeadsTrial(TwoHeadsTrial):
    adds = True


def run_kinds(
    kinds: list[type[pytorch.PyTorchTrial]], directory: Path, parallelism: Any
) -> list[tuple[str, list[State]]]:
    return [run(kind, directory, parallelism=parallelism) for kind in kinds]


def test_first_backward_pass_that_reaches_fewer_parameters(tmp_path: Path) -> None:
    """The advice for several backward passes is to add the losses up, with every option."""
    text = (
        "pytorch.unused_parameters: second.weight, second.bias of TwoHeads took no part in the loss, so their "
        "gradients never came; freeze them, add losses up where train_batch calls context.backward several times, or "
        "set parallelism: {strategy: STRATEGY, find_unused_parameters: true}"
    )
    check_refused(TwoHeadsTrial, tmp_path, _WHOLE, 2, text)
    found = {"strategy": "ddp", "find_unused_parameters": True}
    kinds: list[Kind] = [TwoHeadsTrial, AddedHeadsTrial]
    (alone,) = run_many(AddedHeadsTrial, tmp_path, ["none"])
    for rank in run_gang(2, tmp_path / "found", run_kinds, kinds, tmp_path, found):
        (refusal, _), (added, models) = rank
        assert refusal.startswith("parallelism.backward: context.backward was called again without another forward")
        assert "; add losses up for one context.backward, or call the wrapped model itself again" in refusal
        assert added == ""
        assert all(torch.allclose(models[0][name], value, atol=1e-5) for name, value in alone[1][0].items())


class FreedTwiceTrial(TwiceTrial):
    keeps = False


def test_second_backward_pass_through_a_graph_that_is_freed(tmp_path: Path) -> None:
    text = (
        "pytorch.graph_used: a second backward pass went through a graph that the first one has freed; add losses up "
        "for one context.backward, or pass retain_graph=True to all but the last one"
    )
    assert run_many(FreedTwiceTrial, tmp_path, ["none"])[0][0] == text
    check_refused(FreedTwiceTrial, tmp_path, ["zero3"], 2, text)
