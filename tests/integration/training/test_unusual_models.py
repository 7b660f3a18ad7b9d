"""Models and training code out of the ordinary train as in one process, or are refused in one line: copies, reentrant
checkpoints, compiled models, unused parameters, gradients of a trial's own."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from gangline import pytorch
from gangline.pytorch.parallel.divided.sharded import ShardedStrategy
from tests.support.gang import run_gang
from tests.support.points_trial import Net
from tests.support.unusual_trial import UnusualTrial, check_refused, check_same, run, run_many

_WHOLE = ["ddp", "zero1"]
_DIVIDED = ["zero2", "zero3"]
_ALL = [*_WHOLE, *_DIVIDED]


@pytest.fixture(autouse=True)
def _stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class EmaTrial(UnusualTrial):
    """Averages its model in one that checkpoints keep."""

    def prepare(self) -> None:
        self.averaged = self.context.wrap_model(AveragedModel(self.model))

    def after_step(self) -> None:
        assert isinstance(self.averaged, AveragedModel)
        self.averaged.update_parameters(self.model)

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        return {"error": functional.mse_loss(self.averaged(inputs), targets)}


class CopyTrial(UnusualTrial):
    """Trains towards a copy that follows slowly, and keeps a copy of its model as it was after the first step."""

    def prepare(self) -> None:
        self.copies = [copy.deepcopy(self.model)]

    def run_model(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            other = self.copies[0](inputs)
        outputs: torch.Tensor = self.model(inputs) + 0.5 * other
        return outputs

    @torch.no_grad()
    def after_step(self) -> None:
        for slow, quick in zip(self.copies[0].parameters(), self.model.parameters(), strict=True):
            slow.lerp_(quick, 0.1)
        if len(self.copies) == 1:
            self.copies.append(copy.deepcopy(self.model))


class WholeCopyTrial(CopyTrial):
    """Evaluates on the chief alone, with a copy."""

    validation_period = pytorch.Batch(3)
    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        return {"error": sum(float(functional.mse_loss(self.copies[0](inputs), two)) for inputs, two in data_loader)}


class TargetTrial(CopyTrial):
    """Wraps the copy."""

    def prepare(self) -> None:
        self.copies = [self.context.wrap_model(copy.deepcopy(self.model))]


@pytest.mark.parametrize("kind", [EmaTrial, CopyTrial, WholeCopyTrial, TargetTrial], ids=lambda kind: kind.__name__)
def test_copies_of_a_wrapped_model_are_as_in_one_process(tmp_path: Path, kind: type[UnusualTrial]) -> None:
    check_same(kind, tmp_path, _ALL)


def test_copies_of_copied_shards_are_as_in_one_process(tmp_path: Path) -> None:
    check_same(CopyTrial, tmp_path, ["hsdp"], size=4)


class CheckpointedNet(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        out: torch.Tensor = self.head(x) * self.mask
        return out


class TwiceCheckpointedNet(Net):
    """Runs each block twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in (*self.blocks, *self.blocks):
            x = checkpoint(block, x, use_reentrant=True)
        out: torch.Tensor = self.head(x) * self.mask
        return out


class InnerCheckpointedNet(Net):
    """All but its stem is in checkpoints, a block divided between two."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.begin, self.stem(x), use_reentrant=True)
        return checkpoint(self.end, x, use_reentrant=True)  # type: ignore[no-any-return]  # torch leaves it untyped

    def begin(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.blocks[0](x)
        return out

    def end(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.blocks[1](x)) * self.mask
        return out


class ReentrantTrial(UnusualTrial):
    kind: type[Net] = CheckpointedNet

    def make_model(self) -> nn.Module:
        return self.kind()


class TwiceReentrantTrial(ReentrantTrial):
    kind = TwiceCheckpointedNet


class InnerReentrantTrial(ReentrantTrial):
    kind = InnerCheckpointedNet


class WholeReentrantTrial(ReentrantTrial):
    """Checkpoints the call of the whole model."""

    kind = Net

    def run_model(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = checkpoint(self.model, inputs.requires_grad_(), use_reentrant=True)
        return outputs


class ReentrantPairTrial(ReentrantTrial):
    """With a second model, so that hooks look at each gradient."""

    def prepare(self) -> None:
        self.second = self.context.wrap_model(CheckpointedNet())
        self.optimizers.append(self.context.wrap_optimizer(torch.optim.SGD(self.second.parameters(), lr=0.1)))

    def run_model(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.model(inputs) + self.second(inputs)
        return outputs


class ThawedReentrantTrial(ReentrantPairTrial):
    """The second model is frozen in its first passes."""

    def prepare(self) -> None:
        super().prepare()
        self.second.requires_grad_(False)

    def run_model(self, inputs: torch.Tensor) -> torch.Tensor:
        self.second.requires_grad_(self.context.current_train_batch() > 1)
        return super().run_model(inputs)


@pytest.mark.parametrize(
    "kind",
    [
        ReentrantTrial,
        TwiceReentrantTrial,
        InnerReentrantTrial,
        WholeReentrantTrial,
        ReentrantPairTrial,
        ThawedReentrantTrial,
    ],
    ids=lambda kind: kind.__name__,
)
def test_reentrant_checkpoints_train_as_in_one_process(tmp_path: Path, kind: type[UnusualTrial]) -> None:
    check_same(kind, tmp_path, _ALL)


def test_reentrant_checkpoints_train_with_copies_of_shards(tmp_path: Path) -> None:
    check_same(ReentrantTrial, tmp_path, ["hsdp"], size=4)


class GanTrial(UnusualTrial):
    """Compiles both models after it has wrapped them."""

    backend = "aot_eager"

    def prepare(self) -> None:
        self.judge = self.context.wrap_model(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)))
        self.judge_optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.judge.parameters(), lr=0.1))
        self.compiled = [torch.compile(model, backend=self.backend) for model in (self.model, self.judge)]

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        make, judge = self.compiled
        made = make(inputs)
        loss = -judge(made).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizers[0])
        self.judge_optimizer.zero_grad()
        self.context.backward(judge(made.detach()).mean() + functional.softplus(-judge(targets)).mean())
        self.context.step_optimizer(self.judge_optimizer)
        self.optimizers[0].zero_grad()
        return {"loss": loss}


class PlainGanTrial(GanTrial):
    def prepare(self) -> None:
        super().prepare()
        self.compiled = [self.model, self.judge]


def test_models_compiled_after_wrapping_train_as_plain_ones(tmp_path: Path) -> None:
    check_same(GanTrial, tmp_path, _ALL, reference=PlainGanTrial)


class UnusedNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(6, 8)
        self.uses_spare = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().forward(x)
        return out + self.spare(x)[:, :3] if self.uses_spare else out


class UnusedTrial(UnusualTrial):
    def make_model(self) -> nn.Module:
        return UnusedNet()


def test_unused_parameters_name_the_strategy(tmp_path: Path) -> None:
    text = (
        "pytorch.unused_parameters: spare.weight, spare.bias of UnusedNet took no part in the loss, so their gradients "
        "never came; freeze them, add losses up where train_batch calls context.backward several times, or set "
        "parallelism: {{strategy: {strategy}, find_unused_parameters: true}}"
    )
    check_refused(UnusedTrial, tmp_path, _WHOLE, text)
    options = [{"strategy": strategy, "find_unused_parameters": True} for strategy in _WHOLE]
    check_same(UnusedTrial, tmp_path / "found", options)


class SometimesUnusedTrial(UnusualTrial):
    """Leaves out a layer in each second batch. Its gradient of the batch before makes it look used."""

    def make_model(self) -> nn.Module:
        return UnusedNet()

    def run_model(self, inputs: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.model, UnusedNet)
        self.model.uses_spare = self.context.current_train_batch() % 2 == 0
        return super().run_model(inputs)


def run_aggregated(kind: type[UnusualTrial], directory: Path, strategies: list[str]) -> list[str]:
    """Returns the error where gradients of two batches make a step."""
    optimizations = {"aggregation_frequency": 2}
    return [run(kind, directory, parallelism=strategy, optimizations=optimizations)[0] for strategy in strategies]


def test_parameters_that_are_unused_later_name_the_strategy(tmp_path: Path) -> None:
    text = (
        "pytorch.unused_parameters: some parameters took no part in the last loss, so their gradients never came; "
        "freeze them, add losses up for one context.backward, or set parallelism: {{strategy: {strategy}, "
        "find_unused_parameters: true}}"
    )
    kind = SometimesUnusedTrial
    for outcome in run_gang(2, tmp_path / "gang", run_aggregated, kind, tmp_path, _WHOLE):
        assert outcome == [text.format(strategy=strategy) for strategy in _WHOLE]


class OwnGradientTrial(UnusualTrial):
    """Makes its gradients without a backward pass."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        torch.autograd.grad(loss, list(self.model.parameters()))
        return {"loss": loss}


def test_gradients_of_shards_are_not_made_by_hand(tmp_path: Path) -> None:
    text = (
        "parallelism.own_gradients: torch.autograd.grad was called for a tensor that took no part in its graph; "
        "{strategy} divides parameters, so only context.backward makes their gradients; call that, or use ddp or zero1"
    )
    check_refused(OwnGradientTrial, tmp_path, ["zero3"], text)


class HandGradientTrial(UnusualTrial):
    """Sets whole gradients between two passes."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        for optimizer in self.optimizers:
            self.context.step_optimizer(optimizer)
        return {"loss": loss}


@pytest.mark.parametrize(("size", "strategies"), [(2, _DIVIDED), (4, ["hsdp"])])
def test_gradients_set_by_hand_are_not_divided(tmp_path: Path, size: int, strategies: list[str]) -> None:
    for by_strategy in run_gang(size, tmp_path / "gang", run_many, HandGradientTrial, tmp_path, strategies):
        for strategy, (refusal, _) in zip(strategies, by_strategy, strict=True):
            assert refusal.startswith("parallelism.own_gradients: Net.")
            assert refusal.endswith(
                f"has a gradient that no backward pass has made, and {strategy}, which divides parameters, does not "
                "average it over the ranks; call context.backward with a loss, or use ddp or zero1"
            )


class ScaleNet(Net):
    """scale: a parameter that cannot be divided."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().forward(x) * self.scale
        return out


class CopyEachBatchTrial(UnusualTrial):
    """Replaces a copy of its model in each batch. Ranks free old copies at different times, as Python's collector
    does."""

    uses_copy = False

    def make_model(self) -> nn.Module:
        return ScaleNet()

    def prepare(self) -> None:
        # As after many copies: the numbers of their blocks begin again.
        strategy = self.context.strategy
        if isinstance(strategy, ShardedStrategy) and strategy._announcements is not None:
            strategy._announcements._num_watched = 10_917
        self.copied = copy.deepcopy(self.model)
        gc.disable()

    def run_model(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.model(inputs)
        return outputs + 0.5 * self.copied(inputs) if self.uses_copy else outputs

    def after_step(self) -> None:
        if self.uses_copy:
            # Only the copy's own gradients are in it, which are averaged as those of the model.
            gradients = [parameter.grad for parameter in self.copied.parameters()]
            with torch.no_grad():
                for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                    assert gradient is not None
                    parameter.sub_(gradient, alpha=0.01)
        self.copied = copy.deepcopy(self.model)
        if self.context.distributed.rank == 0:
            gc.collect()

    def outcome(self) -> str:
        gc.enable()
        gc.collect()
        strategy = self.context.strategy
        if isinstance(strategy, ShardedStrategy):
            # The model and its last copy. Nothing is kept of the others.
            assert len(strategy._all_roots()) == len(strategy._copies) + 1 == 2
            assert len(strategy._origins._reduced) <= 2 * len(list(self.model.parameters()))
        return ""


class UsedCopyTrial(CopyEachBatchTrial):
    """Trains with the gradients of the copy as well."""

    uses_copy = True


@pytest.mark.parametrize("kind", [CopyEachBatchTrial, UsedCopyTrial], ids=lambda kind: kind.__name__)
def test_a_copy_in_each_batch_is_as_in_one_process(tmp_path: Path, kind: type[UnusualTrial]) -> None:
    check_same(kind, tmp_path, _ALL if kind is CopyEachBatchTrial else _DIVIDED)
