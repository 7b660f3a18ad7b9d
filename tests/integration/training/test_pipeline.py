"""A pipeline trains to the numbers of one process, whatever the schedule and the number of replicas; its checkpoints
serve every strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional, init
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.pytorch import load_checkpoint
from tests.support.gang import run_gang
from tests.support.once import make_once
from tests.support.pipeline_models import WIDTH, Chain, Tied
from tests.support.pipeline_trial import Alone, ChainTrial, Result, Run, check_same, pipeline, train_all

_SGD = {"optimizer": "sgd"}
_STRICT = {"dynamic": False, "fullgraph": True}
_COMPILED = {"compiled": "before"}


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


class Outside(Tied):
    """Which uses weights of its embeddings outside of these modules: one before the blocks, one for the output."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 11)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.transformer["tokens"](tokens) + self.transformer["positions"].weight
        for layer in self.transformer["layers"]:  # type: ignore[attr-defined]  # torch types modules loosely
            x, _ = layer(x, torch.zeros(5, 5, dtype=torch.bool))
        return {"logits": x @ self.transformer["tokens"].weight.T}


class OutsideTrial(TiedTrial):
    make = Outside


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


class FullTrial(ChainTrial):
    """Validates all at once, on the chief."""

    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        losses = [self.loss(batch) * len(batch[0]) for batch in data_loader]
        return {"error": torch.stack(losses).sum() / 16}


# The second batch has the optimizer's state of the first one, and the model at the end shows it.
_run = partial(Run, batches=2)
_UNEVEN = {"validation_records": 21}
_OF_TWO = {
    "gpipe": _run(ChainTrial, pipeline(schedule="gpipe")),
    "1f1b": _run(ChainTrial, pipeline(), hparams=_SGD),
    "interleaved": _run(TiedTrial, pipeline(schedule="Interleaved1F1B"), hparams=_SGD),
    "zero bubble": _run(TiedTrial, pipeline(schedule="ZBVZeroBubble"), hparams=_SGD),
    "by hand": _run(ChainTrial, pipeline(split=["blocks.0"], microbatches=4)),
    "initialised late": _run(LateInitTrial, pipeline(schedule="Interleaved1F1B"), hparams=_SGD),
    "weights used outside": _run(OutsideTrial, pipeline(schedule="ZBVZeroBubble")),
    "compiled blocks": _run(CompiledTrial, pipeline(), hparams=_SGD),
    "compiled": _run(ChainTrial, pipeline(), hparams={**_COMPILED, "options": _STRICT}, saves=True),
    "compiled in place": _run(
        TiedTrial, pipeline(schedule="Interleaved1F1B"), hparams={"compiled": "in place", **_SGD}
    ),
    "compiled after it was wrapped": _run(
        OutsideTrial, pipeline(activation_checkpointing="blocks"), hparams={"compiled": "after"}
    ),
    "compiled in place after it was wrapped": _run(
        CheckpointedTrial, pipeline(), hparams={"compiled": "in place, after", **_SGD}
    ),
    "compiled, by time": _run(SlowTrial, pipeline(split="time"), hparams=_COMPILED),
    "by time": _run(SlowTrial, pipeline(split="time"), saves=True),
    "by time, weights used outside": _run(SlowOutsideTrial, pipeline(split="time")),
    "recomputation": _run(CheckpointedTrial, pipeline()),
    "recomputation of several parts": _run(CheckpointedTrial, pipeline(schedule="Interleaved1F1B")),
    "recomputation in reentrant checkpoints": _run(InnerReentrantTrial, pipeline()),
    "full dataset": _run(FullTrial, pipeline()),
    "aggregation": _run(ChainTrial, pipeline(), batches=4, config={"optimizations": {"aggregation_frequency": 2}}),
    # The fourth and last batch of an epoch has 4 records, for which there are fewer microbatches.
    "last batch": _run(ChainTrial, pipeline(), batches=5, hparams={"records": 52, **_UNEVEN}),
    # It has 5 records here, no multiple of the stages.
    "interleaved, last batch": _run(
        ChainTrial, pipeline(schedule="Interleaved1F1B", microbatches=8), batches=5, hparams={"records": 53, **_UNEVEN}
    ),
    "recomputed blocks": _run(ChainTrial, pipeline(activation_checkpointing="blocks")),
    "recomputed in full": _run(
        TiedTrial, pipeline(schedule="Interleaved1F1B", activation_checkpointing="full"), hparams=_SGD
    ),
    **{
        f"recomputed, {name}": _run(ChainTrial, {"strategy": name, "activation_checkpointing": "full"})
        for name in ("ddp", "zero1", "zero2", "zero3")
    },
    "saved": _run(ChainTrial, pipeline(), saves=True),
}
_OF_FOUR = {
    "four stages": _run(TiedTrial, pipeline(), hparams=_SGD),
    "initialised late, two replicas": _run(LateInitTrial, pipeline(stages=2, replicas="zero2"), hparams=_SGD),
    "two replicas": _run(TiedTrial, pipeline(stages=2), hparams=_SGD),
    "weights used outside": _run(OutsideTrial, pipeline(stages=2), hparams=_SGD),
    "two replicas, last batch": _run(ChainTrial, pipeline(stages=2), batches=5, hparams={"records": 52, **_UNEVEN}),
    "whole replicas": _run(ChainTrial, pipeline(stages=2)),
    "divided replicas": _run(ChainTrial, pipeline(stages=2, replicas="zero2")),
    "divided, tied": _run(TiedTrial, pipeline(stages=2, replicas="zero2", schedule="Interleaved1F1B"), hparams=_SGD),
    "divided, zero bubble": _run(TiedTrial, pipeline(stages=2, replicas="zero2", schedule="ZBVZeroBubble")),
    "divided, weights used outside": _run(OutsideTrial, pipeline(stages=2, replicas="zero2"), hparams=_SGD),
    "divided, aggregation": _run(
        ChainTrial,
        pipeline(stages=2, replicas="zero2"),
        batches=4,
        config={"optimizations": {"aggregation_frequency": 2}},
    ),
    "divided, by time": _run(SlowTrial, pipeline(stages=2, replicas="zero2", split="time")),
    "recomputed, hsdp": _run(ChainTrial, {"strategy": "hsdp", "activation_checkpointing": "blocks"}),
    "divided, recomputed": _run(ChainTrial, pipeline(stages=2, replicas="zero2", activation_checkpointing="blocks")),
    "divided, compiled": _run(ChainTrial, pipeline(stages=2, replicas="zero2"), hparams={**_COMPILED, **_SGD}),
    "divided, one replica": _run(ChainTrial, pipeline(replicas="zero2")),
}
_SAVED = list(_OF_TWO).index("saved")
# Continue the checkpoint of the run named "saved", and one another's.
_CONTINUED = [
    Run(ChainTrial, "ddp", batches=5, latest=_SAVED, saves=True),
    Run(ChainTrial, pipeline(schedule="Interleaved1F1B"), batches=8, latest=len(_OF_TWO), saves=True),
    Run(ChainTrial, "zero3", batches=10, latest=len(_OF_TWO) + 1),
    Run(ChainTrial, "ddp", batches=4, hparams=_COMPILED, latest=list(_OF_TWO).index("compiled"), saves=True),
    Run(ChainTrial, pipeline(stages=2), batches=6, latest=len(_OF_TWO) + 3, saves=True),
    # Restored by parameters first, then divided by time with the optimizer's state.
    Run(SlowTrial, pipeline(split="time"), batches=4, latest=list(_OF_TWO).index("by time")),
]


def _mixed(trial: type[ChainTrial], kind: str) -> Run:
    return Run(trial, pipeline(), hparams=_SGD, config={"optimizations": {"mixed_precision": kind}})


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


_DIVIDED_MIXED = [
    replace(_mixed(trial, "fp16"), parallelism=pipeline(stages=2, replicas="zero2"))
    for trial in (ChainTrial, OverflowTrial, TwoOptimizersTrial)
]
# In the last one all stages skip the step for the sake of one.
_MIXED = [
    _mixed(ChainTrial, "bf16"),
    _mixed(ChainTrial, "fp16"),
    _mixed(OverflowTrial, "fp16"),
    _mixed(TwoOptimizersTrial, "fp16"),
]


class DropoutTrial(ChainTrial):
    """Which drops half of everything in training, without effect on its parameters."""

    @staticmethod
    def make() -> nn.Module:
        return nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(6, 6), nn.Dropout(0.5))), nn.Linear(6, 3))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        return super().train_batch(batch, epoch_idx, batch_idx)


def _train_two(directory: Path) -> tuple[list[list[Result]], Path]:
    runs = [*_OF_TWO.values(), *_CONTINUED, *_MIXED, Run(DropoutTrial, pipeline(), batches=2)]
    return run_gang(2, directory / "gang", train_all, directory / "work", runs), directory / "work"


def _train_four(directory: Path) -> list[list[Result]]:
    return run_gang(4, directory / "gang", train_all, directory / "work", [*_OF_FOUR.values(), *_DIVIDED_MIXED])


@pytest.fixture(scope="module")
def trained_by_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[Result]], Path]:
    return make_once(tmp_path_factory, "pipeline_of_two", _train_two)


@pytest.fixture(scope="module")
def of_two(trained_by_two: tuple[list[list[Result]], Path]) -> list[list[Result]]:
    return trained_by_two[0]


@pytest.fixture(scope="module")
def folder(trained_by_two: tuple[list[list[Result]], Path]) -> Path:
    """Has the checkpoints."""
    return trained_by_two[1]


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> list[list[Result]]:
    return make_once(tmp_path_factory, "pipeline_of_four", _train_four)


@pytest.mark.parametrize("name", list(_OF_TWO))
def test_two_stages_train_as_one_process(name: str, of_two: list[list[Result]], alone: Alone) -> None:
    place = list(_OF_TWO).index(name)
    check_same([results[place] for results in of_two], alone(_OF_TWO[name]))


@pytest.mark.parametrize("name", list(_OF_FOUR))
def test_four_ranks_train_as_one_process(name: str, of_four: list[list[Result]], alone: Alone) -> None:
    place = list(_OF_FOUR).index(name)
    check_same([results[place] for results in of_four], alone(_OF_FOUR[name]))


@pytest.mark.parametrize("place", range(len(_CONTINUED)))
def test_a_checkpoint_serves_every_strategy(place: int, of_two: list[list[Result]], alone: Alone) -> None:
    results = [results[len(_OF_TWO) + place] for results in of_two]
    assert len(results[0].losses) == [3, 3, 2, 2, 2, 2][place]
    check_same(results, alone(_CONTINUED[place]))


def test_a_checkpoint_fits_the_plain_model_and_one_process(
    of_two: list[list[Result]], folder: Path, alone: Alone
) -> None:
    saved = of_two[0][_SAVED]
    assert saved.checkpoint is not None
    (path,) = folder.rglob(saved.checkpoint)
    state = load_checkpoint(path)["models_state_dict"][0]
    Chain().double().load_state_dict(state, strict=True)
    assert all(torch.equal(state[name], saved.model[name]) for name in state)


@pytest.mark.parametrize("name", [name for name, run in _OF_TWO.items() if "compiled" in run.hparams])
def test_units_of_a_compiled_model_are_compiled(name: str, of_two: list[list[Result]]) -> None:
    run, place = _OF_TWO[name], list(_OF_TWO).index(name)
    for results in of_two:
        # At least three units of a rank, for 8 microbatches of each batch.
        assert results[place].compiled >= 3 * 8 * run.batches
        assert not any("_orig_mod" in name for name in results[place].model)


def test_a_checkpoint_of_a_compiled_model_fits_the_plain_one(of_two: list[list[Result]], folder: Path) -> None:
    saved = of_two[0][list(_OF_TWO).index("compiled")]
    assert saved.checkpoint is not None
    (path,) = folder.rglob(saved.checkpoint)
    state = load_checkpoint(path)["models_state_dict"][0]
    Chain().double().load_state_dict(state, strict=True)


def test_a_division_by_time_moves_values(of_two: list[list[Result]]) -> None:
    place = list(_OF_TWO).index("by time")
    # By parameters each rank has about half; the slow stem and the model's own parameter are alone on the first.
    assert of_two[0][place].held == 6 * 8 + 8 + 8


def test_a_rank_keeps_its_part_of_the_parameters(of_four: list[list[Result]], of_two: list[list[Result]]) -> None:
    whole = sum(parameter.numel() for parameter in Chain().parameters())
    shared = 8  # the model's own parameter, which both stages use
    assert sum(results[1].held for results in of_two) == whole + shared
    assert max(results[1].held for results in of_two) < 0.6 * whole
    # The tied embedding is on the first and on the last stage.
    assert sum(results[0].held for results in of_four) == 1056 + 88


@pytest.mark.parametrize(("number", "tolerance"), [(0, 5e-3), (1, 1e-3), (2, 1e-3), (3, 1e-3)])
def test_mixed_precision(number: int, tolerance: float, of_two: list[list[Result]], alone: Alone) -> None:
    place = len(_OF_TWO) + len(_CONTINUED) + number
    reference = alone(_MIXED[number])
    for results in of_two:
        assert results[place].losses == pytest.approx(reference.losses, abs=tolerance)


@pytest.mark.parametrize("number", range(3))
def test_mixed_precision_of_divided_replicas(number: int, of_four: list[list[Result]], alone: Alone) -> None:
    check_same([results[len(_OF_FOUR) + number] for results in of_four], alone(_DIVIDED_MIXED[number]), 1e-3)


def test_replicas_of_zero2_divide_the_state_of_the_optimizer(of_four: list[list[Result]]) -> None:
    whole, divided = (list(_OF_FOUR).index(name) for name in ("whole replicas", "divided replicas"))
    # AdamW has two numbers for a parameter. Ranks 0 and 2 have the same stage.
    for first in (0, 1):
        pair = [of_four[first][divided].states, of_four[first + 2][divided].states]
        assert sum(pair) == of_four[first][whole].states == 2 * of_four[first][whole].held
        assert max(pair) <= 0.6 * sum(pair)


def test_evaluation_drops_nothing(of_two: list[list[Result]], alone: Alone) -> None:
    run = Run(DropoutTrial, pipeline(), batches=2)
    reference = alone(run)
    assert of_two[0][-1].validations == [pytest.approx(validation) for validation in reference.validations]
    # Training drops, with other random numbers on each stage.
    assert of_two[0][-1].losses != pytest.approx(reference.losses, abs=1e-6)
