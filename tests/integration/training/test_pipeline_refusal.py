"""What a pipeline cannot run is refused in one line, and what breaks in one names its stage and its rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gangline import pytorch
from gangline.errors import GanglineError
from gangline.launch.failure import describe
from gangline.pytorch.parallel.shared.ownership import inner_of
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang
from tests.support.pipeline_models import WIDTH, Backwards, Chain, Reentrant
from tests.support.pipeline_trial import ChainTrial, LateTrial, counted, penalty_of, pipeline
from tests.support.points_trial import Block

_WAY_OUT = (
    "in the order of its definition; where layers are left out, decide inside of their own forward, or begin the part "
    "at another unit with parallelism.split"
)


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
    trial.context.backward(trial.loss(batch) + penalty_of(trial.model))


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


class Scoring(Chain):
    """Whose blocks keep a loss of their own, which is 0 before they run."""

    def __init__(self) -> None:
        super().__init__()
        for place in range(4):
            self.blocks[place] = _ScoringBlock(WIDTH)


class _ScoringBlock(Block):
    score: torch.Tensor | float = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        self.score = y.square().mean()
        return y


class Again(Chain):
    """Which runs the last block of the first of two parts once more behind a block of the second part."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in (*self.blocks[:3], self.blocks[1], self.blocks[3]):
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class Leaving(Chain):
    """Which leaves out all blocks but one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks[:1]:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class LeavingLater(Leaving):
    """Which does so from its third microbatch on only."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) if self.calls > 2 else Chain.forward(self, x)


class Dropping(Chain):
    """Which leaves out blocks at random, with other random numbers on each stage (LayerDrop)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if float(torch.rand(())) < 0.2:
                x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class Breaking(Chain):
    """Whose last block fails in its third microbatch. call: of the block, in training or in validation."""

    call = 3
    in_training = True

    def __init__(self) -> None:
        super().__init__()
        self.blocks[3] = _BreakingBlock(WIDTH, self.call, self.in_training)


class BreakingAtOnce(Breaking):
    call = 1


class BreakingInValidation(Breaking):
    call = 2
    in_training = False


class _BreakingBlock(Block):
    def __init__(self, width: int, call: int, in_training: bool) -> None:
        super().__init__(width)
        self.call = call
        self.in_training = in_training
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training is self.in_training
        if self.calls == self.call:
            raise ArithmeticError(f"call {self.call} breaks")
        return super().forward(x)


class BreakingWeight(Chain):
    """Whose last block fails when the gradient of its weight is computed for the third microbatch."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[3] = _BreakingWeightBlock(WIDTH)


class _BreakingWeightBlock(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.factor = nn.Parameter(torch.ones(1))
        self.factor.register_hook(self._on_gradient)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.factor

    def _on_gradient(self, gradient: torch.Tensor) -> None:
        self.passes += 1
        if self.passes == 3:
            raise ArithmeticError("the third gradient breaks")


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


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("two models", "pipeline cannot run this trial: its train_batch calls the model twice; call it once with all"),
        ("two backwards", "its train_batch calls context.backward twice; add the losses up for one call"),
        ("own backward", "its train_batch returns without context.backward(loss); call it once for each batch"),
        ("penalty by hand", "the trial needs values of stem.weight, which another stage of the pipeline has; use them"),
        ("gradients by hand", "the trial makes gradients of stem.weight without context.backward, but another stage"),
        ("gradients by inputs", "torch.autograd.grad was called for a tensor that took no part in its graph; pipeline"),
        ("no scalar", "context.backward got a loss of shape [2, 3] where it needs one number"),
        ("reentrant", "blocks.0 in a reentrant checkpoint, which would recompute it from inputs that this part does"),
        (
            "runs a block again",
            "Again, whose forward calls blocks.1 twice; let each unit run once, in the order of its",
        ),
        ("leaves blocks out", f"Leaving, whose forward has not run blocks.1 {_WAY_OUT}"),
        ("leaves blocks out later", f"LeavingLater, whose forward has not run blocks.1 {_WAY_OUT}"),
        ("connects later", "needs the output of blocks.0 in a later part, and did not in the first batch of this"),
        (
            "uses what blocks keep",
            "blocks.0.score was used on a stage that does not have it, because stage 0 of 2 (stem to blocks.1) "
            "computes it; let blocks.0 return it beside its output, add such values up in the model's forward",
        ),
        (
            "looks up what hooks keep",
            "its train_batch ends with KeyError: 'first' behind the model, where this slot does not have all of what "
            "units of other slots collect in ",
        ),
        ("drops blocks", f"Dropping, whose forward has not run blocks.1 {_WAY_OUT}"),
    ],
)
def test_trial_that_cannot_be_scheduled_is_refused(mistake: str, message: str, tmp_path: Path) -> None:
    told = [text for text, _ in run_gang(2, tmp_path / "gang", refuse, tmp_path / "work", mistake, "pipeline")]
    real = [text for text in told if not text.startswith("other rank: ")]
    assert len(real) == 1
    assert message in real[0]


@pytest.mark.parametrize(
    ("mistake", "parallelism", "message"),
    [
        ("one unit", "pipeline", "pipeline cannot cut Linear, which is one unit"),
        ("lazy", "pipeline", "0.weight and 1 more of Sequential have no shape before a first pass"),
        (
            "compiled",
            pipeline(schedule="ZBVZeroBubble"),
            "ZBVZeroBubble computes the gradients of inputs and weights apart, which torch cannot do in compiled",
        ),
        ("two backwards", pipeline(microbatches=5), "a replica's batch of 16 records cannot be cut into 5 equal"),
        ("two backwards", pipeline(split=["block.1"]), "there is no unit 'block.1'; did you mean blocks.1"),
        ("two backwards", pipeline(carry=["block.1"]), "parallelism.carry: there is no unit 'block.1'; did you mean"),
        ("two backwards", pipeline(schedule="1F1"), "there is no schedule '1F1'; did you mean 1F1B?"),
    ],
)
def test_wrong_models_and_settings_are_refused_on_all_ranks(
    mistake: str, parallelism: Any, message: str, tmp_path: Path
) -> None:
    told = [text for text, _ in run_gang(2, tmp_path / "gang", refuse, tmp_path / "work", mistake, parallelism)]
    assert all(message in text for text in told), told


@pytest.mark.parametrize(("mistake", "call"), [("breaking at once", 1), ("breaking in validation", 2)])
@pytest.mark.parametrize("place", [("1F1B", 1, 1), ("ZBVZeroBubble", 0, 3)], ids=lambda place: place[0])
def test_failure_outside_of_microbatches_names_its_stage_and_rank(
    place: tuple[str, int, int], mistake: str, call: int, tmp_path: Path
) -> None:
    schedule, rank, stage = place
    told = run_gang(2, tmp_path / "gang", refuse, tmp_path / "work", mistake, pipeline(schedule=schedule))
    text, (note,) = told[rank]
    assert text == f"call {call} breaks"
    assert note.startswith(f"in stage {stage} of ")
    assert note.endswith(f"to head), rank {rank}")


@pytest.mark.parametrize(("schedule", "rank", "stage"), [("1F1B", 1, 1), ("ZBVZeroBubble", 0, 3)])
def test_failure_names_its_stage_and_rank(schedule: str, rank: int, stage: int, tmp_path: Path) -> None:
    parallelism = pipeline(schedule=schedule)
    told = run_gang(2, tmp_path / "gang", refuse, tmp_path / "work", "breaking", parallelism)
    text, notes = told[rank]
    assert text == "call 3 breaks"
    (note,) = notes
    assert note.startswith(f"in stage {stage} of ")
    assert f"to head), rank {rank}, microbatch 2 of 8" in note
    error = ArithmeticError(text)
    error.add_note(note)
    assert describe(error).message == f"ArithmeticError: call 3 breaks ({note})"
    assert note in describe(error).traceback


@pytest.mark.parametrize(
    ("schedule", "rank", "stage"),
    [("1F1B", 1, "1 of 2"), ("GPipe", 1, "1 of 2"), ("Interleaved1F1B", 1, "3 of 4"), ("ZBVZeroBubble", 0, "3 of 4")],
)
def test_failure_of_a_backward_pass_names_its_stage_and_rank(
    schedule: str, rank: int, stage: str, tmp_path: Path
) -> None:
    told = run_gang(2, tmp_path / "gang", refuse, tmp_path / "work", "breaking weight", pipeline(schedule=schedule))
    text, notes = told[rank]
    assert text == "the third gradient breaks"
    (note,) = notes
    assert note.startswith(f"in stage {stage} (")
    assert note.endswith(f"to head), rank {rank}, backward pass of microbatch 2 of 8")
