"""Work of a gang's ranks in tests of models, optimizers and training code that are out of the ordinary. The same work
in one process is the reference.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from gangline import pytorch
from gangline.errors import GanglineError
from tests.support.points_trial import Block, Net, PointsTrial

State = dict[str, torch.Tensor]


class UnusualTrial(PointsTrial):
    """copies: models of the trial's own, whose states belong to the outcome too."""

    validation_period: pytorch.Batch | None = None

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        torch.manual_seed(4)
        self.context = context
        self.model = context.wrap_model(self.make_model())
        self.optimizers = [context.wrap_optimizer(optimizer) for optimizer in self.make_optimizers(self.model)]
        self.count = context.wrap_reducer(sum, name="records", for_training=False)
        self.copies: list[nn.Module] = []
        self.prepare()

    def prepare(self) -> None:
        """At the end of __init__."""

    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.1)]

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {}

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.run_model(inputs).to(targets.dtype), targets)
        self.context.backward(loss)
        for optimizer in self.optimizers:
            self.context.step_optimizer(optimizer, lambda parameters: self.context.clip_grad_norm(parameters, 0.5))
        self.after_step()
        return {"loss": loss}

    def run_model(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.model(inputs)
        return outputs

    def after_step(self) -> None: ...

    def outcome(self) -> str:
        """In the place of a refusal."""
        return ""


class SparseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8, sparse=True)
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table((inputs[:, :2].abs() * 10).long() % 11).mean(dim=1))
        return out


class SparseTrial(UnusualTrial):
    def make_model(self) -> nn.Module:
        return SparseNet()


class SparseAdamTrial(SparseTrial):
    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        assert isinstance(model, SparseNet)
        table = torch.optim.SparseAdam(list(model.table.parameters()), lr=0.05)
        return [table, torch.optim.SGD(model.head.parameters(), lr=0.1)]


class FunctionalNet(SparseNet):
    """Nothing says before the backward pass that its gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table.sparse = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows = functional.embedding((inputs[:, :2].abs() * 10).long() % 11, self.table.weight, sparse=True)
        out: torch.Tensor = self.head(rows.mean(dim=1))
        return out


class FunctionalSparseTrial(UnusualTrial):
    def make_model(self) -> nn.Module:
        return FunctionalNet()


class MixedBlock(Block):
    def __init__(self, width: int, kind: torch.dtype) -> None:
        super().__init__(width)
        self.kind = kind
        self.norm.to(kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x.to(self.kind)).to(x.dtype)
        out: torch.Tensor = x + self.narrow(functional.gelu(self.widen(normed)))
        return out


class MixedNet(Net):
    """Its norms and its head have another type of numbers than the rest."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(MixedBlock(8, kind) for _ in range(2))
        self.head.to(kind)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x.to(self.kind)) * self.mask
        return out


class DoubleTrial(UnusualTrial):
    kind = torch.float64

    def make_model(self) -> nn.Module:
        return MixedNet(self.kind)


class HalfTrial(DoubleTrial):
    kind = torch.bfloat16


class TwoTypesLayer(nn.Module):
    """One module with parameters of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6))
        self.bias = nn.Parameter(torch.randn(3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias.float())


class TwoTypesTrial(UnusualTrial):
    def make_model(self) -> nn.Module:
        return nn.Sequential(TwoTypesLayer())


class TwoTypesBlocksTrial(UnusualTrial):
    """Several layers of one class in a row are blocks, which are gathered one at a time."""

    def make_model(self) -> nn.Module:
        return nn.Sequential(TwoTypesLayer(), nn.Linear(3, 6), TwoTypesLayer())


class DoubleBlocksNet(nn.Module):
    """The blocks and the head have another type than the stem, which has more numbers than the head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()).double() for _ in range(2))
        self.head = nn.Linear(8, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).double()
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class DoubleBlocksTrial(UnusualTrial):
    def make_model(self) -> nn.Module:
        return DoubleBlocksNet()


class FrozenTypeTrial(UnusualTrial):
    """Frozen parameters have another type than trained ones of the same modules: blocks, and the model itself."""

    def make_model(self) -> nn.Module:
        model = nn.Sequential(TwoTypesLayer(), nn.Linear(3, 6), TwoTypesLayer())
        for index in (0, 2):
            model[index].bias.requires_grad_(False)
        model.extra = nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False)
        model.shift = nn.Parameter(torch.zeros(3))
        model.register_forward_hook(lambda module, _, output: output + module.shift * module.extra.sum().float())
        return model


class AdafactorTrial(UnusualTrial):
    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adafactor(model.parameters(), lr=0.05)]


class MuonTrial(UnusualTrial):
    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        weights = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
        return [torch.optim.Muon(weights, lr=0.02), torch.optim.SGD(others, lr=0.1)]


class OwnOptimizer(torch.optim.Optimizer):
    """Steps by `change`, of a gradient and the state of its parameter."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # as most are written
        self.begin()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(self.change(parameter, self.state[parameter]), alpha=-group["lr"])

    def begin(self) -> None: ...

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        raise NotImplementedError


class Lion(OwnOptimizer):
    """Looks at one number at a time."""

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        moment = state.setdefault("moment", torch.zeros_like(parameter))
        sign = torch.sign(0.9 * moment + 0.1 * parameter.grad)
        moment.mul_(0.99).add_(parameter.grad, alpha=0.01)
        return sign


class Lars(OwnOptimizer):
    """Looks at a whole tensor."""

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        weight, gradient = float(parameter.norm()), float(parameter.grad.norm())
        moment: torch.Tensor = state.setdefault("moment", torch.zeros_like(parameter))
        return moment.mul_(0.9).add_(parameter.grad, alpha=weight / (gradient + 1e-6))


class Lamb(OwnOptimizer):
    """Looks at all tensors together."""

    def begin(self) -> None:
        gradients = [
            parameter.grad for group in self.param_groups for parameter in group["params"] if parameter.grad is not None
        ]
        self.norm = float(nn.utils.get_total_norm(gradients))

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        return parameter.grad / self.norm


class Slow(OwnOptimizer):
    """Keeps a slow copy of each parameter, as Lookahead does."""

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        slow = state.setdefault("slow", parameter.clone())
        slow.lerp_(parameter - 0.1 * parameter.grad, 0.5)
        out: torch.Tensor = parameter.grad + 0.5 * (parameter - slow)
        return out


class EightBit(OwnOptimizer):
    """Keeps its moment in bytes, with one scale for a tensor."""

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        bits, scale = state.get("bits", torch.zeros_like(parameter, dtype=torch.int8)), state.get("scale", 0.0)
        moment = 0.9 * scale * bits.to(parameter.dtype) + parameter.grad
        state["scale"] = moment.abs().max() / 127
        state["bits"] = (moment / state["scale"]).round().to(torch.int8)
        return torch.as_tensor(moment)


class Unchecked(Lion):
    """Takes for granted that each parameter has a gradient."""

    def begin(self) -> None:
        self.largest = max(
            float(parameter.grad.abs().max()) for group in self.param_groups for parameter in group["params"]
        )


class Sam(OwnOptimizer):
    """Steps by a gradient that it adds all gradients to, by their norm."""

    def begin(self) -> None:
        gradients = [
            parameter.grad for group in self.param_groups for parameter in group["params"] if parameter.grad is not None
        ]
        self.radius = 0.05 / float(torch.stack([gradient.norm() for gradient in gradients]).norm())

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        out: torch.Tensor = parameter.grad * (1 + self.radius)
        return out


class Wrapping(OwnOptimizer):
    """Keeps another optimizer."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        parameters = list(parameters)
        super().__init__(parameters)
        self.base = torch.optim.SGD(parameters, lr=0.1)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # as most are written
        self.base.step()


class LionTrial(UnusualTrial):
    kind: type[OwnOptimizer] = Lion

    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [self.kind(model.parameters())]


class LarsTrial(LionTrial):
    kind = Lars


class LambTrial(LionTrial):
    kind = Lamb


class SlowTrial(LionTrial):
    kind = Slow


class EightBitTrial(LionTrial):
    kind = EightBit


class UncheckedTrial(LionTrial):
    kind = Unchecked


class SamTrial(LionTrial):
    kind = Sam


class WrappingTrial(LionTrial):
    kind = Wrapping


class Saved(pytorch.PyTorchCallback):
    """ids: of the checkpoints, on the chief."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.ids.append(uuid)


class KeptAdafactorTrial(AdafactorTrial):
    """Has an average of its model in its checkpoints, too."""

    def prepare(self) -> None:
        self.averaged = self.context.wrap_model(AveragedModel(self.model))
        self.saved = Saved()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"saved": self.saved}

    def after_step(self) -> None:
        assert isinstance(self.averaged, AveragedModel)
        self.averaged.update_parameters(self.model)

    def outcome(self) -> str:
        """The newest checkpoint."""
        return (self.saved.ids or [""])[-1]


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


class SometimesUnusedTrial(UnusualTrial):
    """Leaves out a layer in each second batch. Its gradient of the batch before makes it look used."""

    def make_model(self) -> nn.Module:
        return UnusedNet()

    def run_model(self, inputs: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.model, UnusedNet)
        self.model.uses_spare = self.context.current_train_batch() % 2 == 0
        return super().run_model(inputs)


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


class OwnGradientTrial(UnusualTrial):
    """Makes its gradients without a backward pass."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        torch.autograd.grad(loss, list(self.model.parameters()))
        return {"loss": loss}


class OrthogonalNet(Net):
    """Has matrices that are higher, wider and of more dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mix(super().forward(x).unsqueeze(2)).squeeze(2)
        return out


class OrthogonalTrial(UnusualTrial):
    def make_model(self) -> nn.Module:
        return OrthogonalNet()

    def prepare(self) -> None:
        torch.manual_seed(9)
        for parameter in self.model.parameters():
            if parameter.dim() > 1:
                nn.init.orthogonal_(parameter, gain=1.5)


class SparseInitTrial(OrthogonalTrial):
    """The other initialisers that do not draw number by number."""

    def prepare(self) -> None:
        torch.manual_seed(9)
        assert isinstance(self.model, OrthogonalNet)
        block = self.model.blocks[0]
        assert isinstance(block, Block)
        nn.init.sparse_(block.widen.weight, 0.25)
        nn.init.eye_(block.narrow.weight)
        nn.init.dirac_(self.model.mix.weight)
        nn.init.trunc_normal_(self.model.stem.weight, std=0.2)


class Clamping(pytorch.PyTorchCallback):
    """Changes the model at every moment of a validation."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @torch.no_grad()
    def _shrink(self, amount: float) -> None:
        for parameter in self.model.parameters():
            parameter.mul_(amount)

    def on_validation_start(self) -> None:
        self._shrink(0.9)

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        self._shrink(0.8)

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.clamp_(-0.2, 0.2)


class ClampingTrial(UnusualTrial):
    validation_period = pytorch.Batch(2)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"clamping": Clamping(self.model)}


class WholeClampingTrial(ClampingTrial):
    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        return {"error": sum(float(functional.mse_loss(self.model(inputs), two)) for inputs, two in data_loader)}


class ClampAfterPassTrial(UnusualTrial):
    """Changes the model between a pass without gradients and the next one."""

    def after_step(self) -> None:
        with torch.no_grad():
            self.model(torch.ones(2, 6))
            for parameter in self.model.parameters():
                parameter.clamp_(-0.2, 0.2)


def run(
    kind: type[UnusualTrial],
    directory: Path,
    batches: int = 5,
    latest: str | None = None,
    policy: str = "none",
    **config: Any,
) -> tuple[str, list[State]]:
    """Trains in that folder. Returns what was refused, empty where nothing was, and this rank's whole models."""
    os.chdir(directory)
    config = {"scheduling_unit": 1, "checkpoint_policy": policy, **config}
    try:
        with pytorch.init(hparams={"global_batch_size": 8}, exp_conf=config) as context:
            trial = kind(context)
            pytorch.Trainer(trial, context).fit(
                max_length=pytorch.Batch(batches), validation_period=kind.validation_period, latest_checkpoint=latest
            )
            states = [context.get_full_model_state(model) for model in (*context.models, *trial.copies)]
            return trial.outcome(), states
    except GanglineError as error:
        return f"{error.code}: {error.message}", []


def run_on(
    kind: type[UnusualTrial], directory: Path, strategy: str, latest: str, batches: int
) -> tuple[str, list[State]]:
    """From a checkpoint; from the begin where its id is empty."""
    return run(kind, directory, batches, latest or None, parallelism=strategy)


def run_aggregated(kind: type[UnusualTrial], directory: Path, strategies: list[str]) -> list[str]:
    """Returns the error where gradients of two batches make a step."""
    optimizations = {"aggregation_frequency": 2}
    return [run(kind, directory, parallelism=strategy, optimizations=optimizations)[0] for strategy in strategies]


def run_many(
    kind: type[UnusualTrial], directory: Path, strategies: list[Any], batches: int = 5
) -> list[tuple[str, list[State]]]:
    return [run(kind, directory, batches, parallelism=strategy) for strategy in strategies]
