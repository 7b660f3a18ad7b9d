"""Work of a gang's ranks in tests of pipelines: trials of many kinds of models, whose losses one process can make too.

A trial is named by its class, and a run by its settings. The same run in one process is the reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional, init
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.errors import GanglineError
from gangline.pytorch.parallel.shared.ownership import inner_of
from tests.support.folder_work import in_folder
from tests.support.pipeline_models import (
    WIDTH,
    Again,
    Backwards,
    Breaking,
    BreakingAtOnce,
    BreakingInValidation,
    BreakingWeight,
    Chain,
    Changing,
    Counting,
    Deciding,
    Disordered,
    Dropping,
    Exiting,
    Late,
    Leaving,
    LeavingLater,
    Noisy,
    Outside,
    Recurrent,
    Reentrant,
    Remembering,
    ReturningScores,
    Scoring,
    Sharing,
    Skipping,
    Tied,
    make_norm,
)
from tests.support.points_trial import Recorder, make_optimizer

# Calls of compiled code in this process.
_calls = Counter[str]()


def counted(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """Backend of torch.compile that counts calls of what it compiles."""

    def call(*args: Any) -> Any:
        _calls["compiled"] += 1
        return graph.forward(*args)

    return call


@dataclass(frozen=True)
class Run:
    """One training. kind: name of a trial's class below. config: of the experiment beside parallelism. latest: number
    of the run whose last checkpoint it continues, or None."""

    kind: str
    parallelism: Any
    batches: int = 4
    hparams: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    latest: int | None = None
    saves: bool = False


@dataclass(frozen=True)
class Result:
    """losses: of each batch. model: the whole state at the end. held: parameters with values on this rank. states: the
    number of values in this rank's optimizer, without its counts of steps. compiled: calls of compiled code, see
    `counted`."""

    losses: list[float]
    validations: list[dict[str, float]]
    model: dict[str, torch.Tensor]
    held: int
    states: int
    checkpoint: str | None
    compiled: int


class ChainTrial(pytorch.PyTorchTrial):
    """hyperparameters: optimizer, records, rate. compiled: when the whole model is compiled, one of `before`,
    `in place`, `after` and `in place, after`. options: of torch.compile; without a backend, calls are counted."""

    make: Callable[[], nn.Module] = Chain

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        torch.manual_seed(7)
        model = type(self).make().to(self.kind)
        when = context.get_hparams().get("compiled")
        options = {"backend": counted, **context.get_hparams().get("options", {})}
        if when == "in place":
            model.compile(**options)
        elif when == "before":
            model = torch.compile(model, **options)  # type: ignore[assignment]  # torch types it as a function
        self.model = context.wrap_model(model)
        optimizer = make_optimizer(self.model, context.get_hparams().get("optimizer", "adamw"))
        self.optimizer = context.wrap_optimizer(optimizer)
        self.recorder = Recorder()
        if when == "after":
            self.model = torch.compile(self.model, **options)  # type: ignore[assignment]  # torch types it as a function
        elif when == "in place, after":
            self.model.compile(**options)

    @property
    def kind(self) -> torch.dtype:
        return torch.float32 if self.context.setting.optimizations.autocast_type else torch.float64

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"recorder": self.recorder}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        records = self.context.get_hparams().get("records", 64)
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(self.data(records), batch_size=size, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.data(21), batch_size=8)

    def data(self, records: int) -> TensorDataset:
        inputs = torch.randn(records, 6, generator=torch.Generator().manual_seed(3)).to(self.kind)
        return TensorDataset(inputs, torch.tanh(inputs[:, :3] + inputs[:, 3:]))

    def loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        return functional.mse_loss(self.model(inputs), targets)

    def clip(self, parameters: Any) -> None:
        self.context.clip_grad_norm(parameters, 0.5)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, self.clip)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": self.loss(batch)}


class TiedTrial(ChainTrial):
    make = Tied

    def data(self, records: int) -> TensorDataset:
        return TensorDataset(torch.randint(11, (records, 5), generator=torch.Generator().manual_seed(3)))

    def loss(self, batch: Any) -> torch.Tensor:
        (tokens,) = batch
        logits = self.model(tokens)["logits"]
        return functional.cross_entropy(logits[:, :-1].reshape(-1, 11), tokens[:, 1:].reshape(-1))

    def clip(self, parameters: Any) -> None:
        # torch's own function, which must see the norm over all stages.
        nn.utils.clip_grad_norm_(parameters, 0.1)


class OutsideTrial(TiedTrial):
    make = Outside


class OverflowTrial(ChainTrial):
    """Whose last layer has an infinite gradient in the second batch, and no other layer has."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.model.head.bias.register_hook(self._spoil)  # type: ignore[union-attr, operator]  # torch types modules loosely

    def _spoil(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("inf") if self.context.current_train_batch() == 1 else gradient


class TwoOptimizersTrial(ChainTrial):
    """Whose second optimizer has parameters of the last stage only."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        last = {id(parameter) for parameter in self.model.head.parameters()}  # type: ignore[union-attr]  # torch types modules loosely
        others = [parameter for parameter in self.model.parameters() if id(parameter) not in last]
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(others, lr=0.1))
        self.second = context.wrap_optimizer(torch.optim.SGD(self.model.head.parameters(), lr=0.1))  # type: ignore[union-attr]  # as above

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.context.step_optimizer(self.second)
        return {"loss": loss}


class RecurrentTrial(ChainTrial):
    make = Recurrent


class NormTrial(ChainTrial):
    """The reference in one process normalises each microbatch by itself, too."""

    make = make_norm

    def loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        count = self.context.get_hparams()["parts"] if self.model.training and self.context.distributed.size == 1 else 1
        losses = [
            functional.mse_loss(self.model(x), y)
            for x, y in zip(inputs.chunk(count), targets.chunk(count), strict=True)
        ]
        return torch.stack(losses).mean()


class RememberingTrial(NormTrial):
    """Runs each microbatch by itself in one process, too, because its model has a state."""

    make = Remembering


class ReturningScoresTrial(ChainTrial):
    """Adds the losses that the model returns to its own."""

    make = ReturningScores

    def loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        output, total = self.model(inputs)
        loss: torch.Tensor = functional.mse_loss(output, targets) + 0.1 * total
        return loss


class ActivationTrial(ChainTrial):
    """Adds what hooks keep of the outputs of blocks to its loss."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.kept: dict[int, torch.Tensor] = {}
        model: Any = inner_of(self.model)
        for place, block in enumerate(model.blocks):
            block.register_forward_hook(partial(self._keep, place))

    def _keep(self, place: int, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        self.kept[place] = output

    def loss(self, batch: Any) -> torch.Tensor:
        return super().loss(batch) + 0.1 * sum(value.square().mean() for value in self.kept.values())


class SumTrial(ChainTrial):
    """Whose loss sums over records. One process divides the sum by the microbatches of the pipeline, to train alike."""

    def loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        is_reference = self.model.training and self.context.distributed.size == 1
        total = functional.mse_loss(self.model(inputs), targets, reduction="sum")
        return total / (self.context.get_hparams()["parts"] if is_reference else 1)

    def clip(self, parameters: Any) -> None:
        """Leaves gradients as they are, so that their scale shows."""


class ExitingTrial(NormTrial):
    """Decides for each microbatch by itself, as its reference in one process does."""

    make = Exiting


class CountingTrial(NormTrial):
    make = Counting


class DropoutTrial(ChainTrial):
    """Which drops half of everything in training, without effect on its parameters."""

    @staticmethod
    def make() -> nn.Module:
        return nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(6, 6), nn.Dropout(0.5))), nn.Linear(6, 3))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        return super().train_batch(batch, epoch_idx, batch_idx)


class CheckpointedTrial(ChainTrial):
    """Recomputes its blocks."""

    class make(Chain):  # noqa: N801  takes the place of a function
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            out: torch.Tensor = self.head(x)
            return out


class InnerReentrantTrial(ChainTrial):
    """Recomputes a layer of each block in a reentrant checkpoint."""

    class make(Chain):  # noqa: N801  takes the place of a function
        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks:
                block.widen = _Recomputing(WIDTH, 2 * WIDTH)


class _Recomputing(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(super().forward, input, use_reentrant=True)
        return out


class SlowTrial(ChainTrial):
    """Whose stem takes longer than all of its blocks, so that a division by time differs from one by parameters."""

    class make(Chain):  # noqa: N801  takes the place of a function
        def __init__(self) -> None:
            super().__init__()
            self.stem = _Slow(6, WIDTH)
            self.blocks[1].norm.weight = self.blocks[0].norm.weight  # type: ignore[union-attr]  # torch types modules loosely


class SlowOutsideTrial(OutsideTrial):
    """Whose embedding takes longer than all of its layers, and whose weights are used outside of their modules."""

    class make(Outside):  # noqa: N801  takes the place of a function
        def __init__(self) -> None:
            super().__init__()
            self.transformer["tokens"] = _SlowEmbedding(11, WIDTH)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
def _take_time(x: torch.Tensor) -> torch.Tensor:
    for _ in range(800):
        x = x.sin()
    return x


class _SlowEmbedding(nn.Embedding):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _take_time(super().forward(input))
        return out


class _Slow(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _take_time(super().forward(input))
        return out


class SkippingTrial(ChainTrial):
    make = Skipping


class SharingTrial(ChainTrial):
    make = Sharing


class DisorderedTrial(ChainTrial):
    make = Disordered


class ChangingTrial(ChainTrial):
    make = Changing


class NoisyTrial(ChainTrial):
    make = Noisy


class LateTrial(ChainTrial):
    """Whose model has a connection from the second batch on."""

    make = Late

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        inner_of(self.model).is_late = batch_idx >= 1  # type: ignore[assignment]  # an attribute of the model
        return super().train_batch(batch, epoch_idx, batch_idx)


class DecidingTrial(ChainTrial):
    make = Deciding


class CompiledTrial(ChainTrial):
    """Whose blocks are compiled one by one."""

    @staticmethod
    def make() -> nn.Module:
        model = Chain()
        for place, block in enumerate(model.blocks):
            model.blocks[place] = torch.compile(block, backend="aot_eager")  # type: ignore[assignment]  # torch types it as a function
        return model


class LateInitTrial(ChainTrial):
    """Draws its initial weights after it has wrapped the model, and changes all of them before each step."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        initialise_late(self.model)

    def clip(self, parameters: Any) -> None:
        # Assignments reach every stage. This function runs once for each step.
        for parameter in parameters:
            parameter.data = parameter.data * 0.9
        super().clip(parameters)


def initialise_late(model: nn.Module) -> None:
    """Uses all kinds of draws for all parameters of a wrapped model."""
    torch.manual_seed(5)
    generator = torch.Generator().manual_seed(6)
    initialisers: list[Callable[..., Any]] = [
        init.xavier_normal_,
        init.orthogonal_,
        partial(init.trunc_normal_, std=0.5, a=-0.4),
        partial(init.sparse_, sparsity=0.3, std=0.5),
        init.kaiming_uniform_,
    ]
    for number, weight in enumerate(parameter for parameter in model.parameters() if parameter.dim() == 2):
        initialisers[number % len(initialisers)](weight)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.data.normal_(0.5, 0.1)
            parameter.add_(0.1 * torch.randn_like(parameter))
            parameter.add_(torch.randn(parameter.shape, device=parameter.device, dtype=parameter.dtype), alpha=0.1)
            parameter.mul_(torch.empty_like(parameter).uniform_(0.5, 1.5, generator=generator))


class PenaltyTrial(ChainTrial):
    """Adds the gradient of a penalty on all weights. One process adds the penalty to its loss."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = self.loss(batch)
        penalty = _penalty(self.model) if self.context.distributed.size == 1 else 0.0
        self.context.backward(loss + penalty)
        self.context.step_optimizer(self.optimizer, self.clip)
        return {"loss": loss}

    def clip(self, parameters: Any) -> None:
        if self.context.distributed.size > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach().sign(), alpha=0.01)
        super().clip(parameters)


def _penalty(model: nn.Module) -> torch.Tensor:
    return torch.stack([parameter.abs().sum() for parameter in model.parameters()]).sum() * 0.01


class UnitGradientTrial(ChainTrial):
    """Has a penalty on gradients by a hidden state, which a unit computes and returns."""

    class make(Chain):  # noqa: N801  takes the place of a function
        def __init__(self) -> None:
            super().__init__()
            self.head = _SteepnessHead(WIDTH, 3)

        def forward(self, x: torch.Tensor) -> Any:
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    def loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        outputs, steepness = self.model(inputs)
        loss: torch.Tensor = functional.mse_loss(outputs, targets) + 0.1 * steepness.mean()
        return loss


class _SteepnessHead(nn.Linear):
    def forward(self, input: torch.Tensor) -> Any:
        out = torch.tanh(super().forward(input))
        if not torch.is_grad_enabled():
            return out, out.new_zeros(len(input))
        (gradient,) = torch.autograd.grad(out.sum(), input, create_graph=True)
        return out, gradient.square().sum(dim=1)


class ConvolutionTrial(ChainTrial):
    """Whose convolutions run over turned pictures, so that gradients by hidden states are not contiguous."""

    class make(nn.Module):  # noqa: N801  takes the place of a function
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(1, 4, 3, padding=1)
            self.blocks = nn.ModuleList(_TurningConvolution(4, 4, 3, padding=1) for _ in range(4))
            self.head = nn.Linear(4 * 6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x.reshape(-1, 1, 2, 3))
            for block in self.blocks:
                x = block(x)
            out: torch.Tensor = self.head(x.flatten(1))
            return out


class _TurningConvolution(nn.Conv2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.gelu(super().forward(input.transpose(2, 3)))


class FullTrial(ChainTrial):
    """Validates all at once, on the chief."""

    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        losses = [self.loss(batch) * len(batch[0]) for batch in data_loader]
        return {"error": torch.stack(losses).sum() / 21}


def _trains_with(train: Callable[[ChainTrial, Any], Any], make: Any = Chain) -> type[ChainTrial]:
    class Wrong(ChainTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            train(self, batch)
            self.context.step_optimizer(self.optimizer)
            return {"loss": 0.0}

    Wrong.make = make
    return Wrong


def _two_models(trial: ChainTrial, batch: Any) -> None:
    trial.context.backward(trial.loss(batch) + trial.loss(batch))


def _two_backwards(trial: ChainTrial, batch: Any) -> None:
    loss = trial.loss(batch)
    trial.context.backward(loss)
    trial.context.backward(loss)


def _own_backward(trial: ChainTrial, batch: Any) -> None:
    trial.loss(batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _penalty_by_hand(trial: ChainTrial, batch: Any) -> None:
    trial.context.backward(trial.loss(batch) + _penalty(trial.model))


def _gradients_by_hand(trial: ChainTrial, batch: Any) -> None:
    torch.autograd.grad(trial.loss(batch), list(trial.model.parameters()))


def _gradients_by_inputs(trial: ChainTrial, batch: Any) -> None:
    outputs = trial.model(batch[0].requires_grad_())
    (gradient,) = torch.autograd.grad(outputs.sum(), batch[0], create_graph=True)
    trial.context.backward(gradient.square().mean())


def _no_scalar(trial: ChainTrial, batch: Any) -> None:
    trial.context.backward(trial.model(batch[0]))


def _scores(trial: ChainTrial, batch: Any) -> None:
    loss = trial.loss(batch)
    trial.context.backward(loss + sum(block.score for block in inner_of(trial.model).blocks))  # type: ignore[union-attr]  # torch types modules loosely


def _first_activation(trial: ChainTrial, batch: Any) -> None:
    """Looks up what a hook keeps from inside of a block, detached."""
    kept: dict[str, torch.Tensor] = {}
    model: Any = inner_of(trial.model)
    *_, inner = model.blocks[0].modules()
    inner.register_forward_hook(lambda _module, _inputs, output: kept.update(first=output.detach()))
    trial.context.backward(trial.loss(batch) + kept["first"].mean())


def _good(trial: ChainTrial, batch: Any) -> None:
    trial.context.backward(trial.loss(batch))


WRONG: dict[str, type[ChainTrial]] = {
    "two models": _trains_with(_two_models),
    "two backwards": _trains_with(_two_backwards),
    "own backward": _trains_with(_own_backward),
    "penalty by hand": _trains_with(_penalty_by_hand),
    "gradients by hand": _trains_with(_gradients_by_hand),
    "gradients by inputs": _trains_with(_gradients_by_inputs),
    "no scalar": _trains_with(_no_scalar),
    "runs a block again": _trains_with(_good, Again),
    "leaves blocks out": _trains_with(_good, Leaving),
    "backwards": _trains_with(_good, Backwards),
    "leaves blocks out later": _trains_with(_good, LeavingLater),
    "connects later": LateTrial,
    "drops blocks": _trains_with(_good, Dropping),
    "uses what blocks keep": _trains_with(_scores, Scoring),
    "looks up what hooks keep": _trains_with(_first_activation),
    "one unit": _trains_with(_good, lambda: nn.Linear(6, 3)),
    "lazy": _trains_with(_good, lambda: nn.Sequential(nn.LazyLinear(6), nn.Linear(6, 3))),
    "compiled": _trains_with(_good, lambda: torch.compile(Chain(), backend=counted)),
    "reentrant": _trains_with(_good, Reentrant),
    "breaking": _trains_with(_good, Breaking),
    "breaking at once": _trains_with(_good, BreakingAtOnce),
    "breaking in validation": _trains_with(_good, BreakingInValidation),
    "breaking weight": _trains_with(_good, BreakingWeight),
}


@in_folder
def train_all(directory: Path, runs: Sequence[Run]) -> list[Result]:
    """Trains one run after another in a folder, whose checkpoints they share."""
    results: list[Result] = []
    for run in runs:
        latest = None if run.latest is None else results[run.latest].checkpoint
        results.append(train(run, latest))
    return results


@in_folder
def train_on(directory: Path, runs: Sequence[tuple[Run, str | None]]) -> list[Result]:
    """Trains runs in a folder that several gangs share, each from a checkpoint or from nothing."""
    return [train(run, latest) for run, latest in runs]


def train(run: Run, latest: str | None = None) -> Result:
    config = {"parallelism": run.parallelism, "scheduling_unit": 1, **run.config}
    _calls.clear()
    with pytorch.init(hparams={"global_batch_size": 16, **run.hparams}, exp_conf=config) as context:
        trial: ChainTrial = globals()[run.kind](context)
        policy = "all" if run.saves else "none"
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(run.batches), latest_checkpoint=latest, checkpoint_policy=policy
        )
        state = context.get_full_model_state(trial.model)
        held = sum(parameter.numel() for parameter in trial.model.parameters() if not parameter.is_meta)
        entries = [value for entry in trial.optimizer.state.values() for value in entry.values()]
        states = sum(value.numel() for value in entries if isinstance(value, torch.Tensor) and value.dim())
        saved = context.distributed.broadcast(trial.recorder.checkpoints[-1] if trial.recorder.checkpoints else None)
    losses, validations = trial.recorder.losses, trial.recorder.validations
    return Result(losses, validations, state, held, states, saved, _calls["compiled"])


@in_folder
def refuse(directory: Path, mistake: str, parallelism: Any) -> tuple[str, list[str]]:
    """Returns the error of one wrong trial, and the notes that it has."""
    kind = WRONG[mistake]
    try:
        with pytorch.init(hparams={"global_batch_size": 16}, exp_conf={"parallelism": parallelism}) as context:
            trial = kind(context)
            pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(2), checkpoint_policy="none")
    except (GanglineError, ArithmeticError) as error:
        return str(error), getattr(error, "__notes__", [])
    except RuntimeError as error:
        return f"other rank: {error}", []
    return "", []
