"""A pipeline trains to the numbers of one process, whatever the model, the schedule and the number of replicas; its
checkpoints serve every strategy; what it cannot run is refused in one line."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from gangline.launch.failure import describe
from gangline.pytorch import load_checkpoint
from tests.support.gang import run_gang
from tests.support.once import make_once
from tests.support.pipeline_models import Chain
from tests.support.pipeline_work import Result, Run, refuse, train_all


def _pipeline(**options: Any) -> dict[str, Any]:
    return {"strategy": "pipeline", **options}


_SGD = {"optimizer": "sgd"}
_STRICT = {"dynamic": False, "fullgraph": True}
_COMPILED = {"compiled": "before"}
_OF_TWO = {
    "gpipe": Run("ChainTrial", _pipeline(schedule="gpipe")),
    "1f1b": Run("ChainTrial", _pipeline(), hparams=_SGD),
    "interleaved": Run("TiedTrial", _pipeline(schedule="Interleaved1F1B"), hparams=_SGD),
    "zero bubble": Run("TiedTrial", _pipeline(schedule="ZBVZeroBubble"), hparams=_SGD),
    "by hand": Run("ChainTrial", _pipeline(split=["blocks.0"], microbatches=4)),
    "skip connection": Run("SkippingTrial", _pipeline(), hparams=_SGD),
    "changes in place": Run("ChangingTrial", _pipeline(split=["blocks.1"]), hparams=_SGD),
    "one activation for all": Run("SharingTrial", _pipeline(schedule="ZBVZeroBubble"), hparams=_SGD),
    "modules in another order": Run("DisorderedTrial", _pipeline(), hparams=_SGD),
    "noise on both parts": Run("NoisyTrial", _pipeline(split=["blocks.2"]), batches=3, hparams=_SGD),
    "decision": Run("DecidingTrial", _pipeline(split=["blocks.2"]), batches=3, hparams=_SGD),
    "connection from the second batch on": Run("LateTrial", _pipeline(carry=["blocks.0"]), batches=3, hparams=_SGD),
    "skip connection, zero bubble": Run("SkippingTrial", _pipeline(schedule="ZBVZeroBubble"), hparams=_SGD),
    "decision, zero bubble": Run("DecidingTrial", _pipeline(schedule="ZBVZeroBubble"), batches=3, hparams=_SGD),
    "lstm": Run("RecurrentTrial", _pipeline()),
    "initialised late": Run("LateInitTrial", _pipeline(schedule="Interleaved1F1B"), hparams=_SGD),
    "penalty in the gradients": Run("PenaltyTrial", _pipeline(), hparams=_SGD),
    "gradients inside of a unit": Run("UnitGradientTrial", _pipeline(), batches=2, hparams=_SGD),
    "convolutions, zero bubble": Run("ConvolutionTrial", _pipeline(schedule="ZBVZeroBubble"), batches=2, hparams=_SGD),
    "batch norm": Run("NormTrial", _pipeline(microbatches=4), hparams={"parts": 4, **_SGD}),
    "early exit in a part": Run("ExitingTrial", _pipeline(microbatches=4), batches=3, hparams={"parts": 4, **_SGD}),
    "losses of blocks that the model returns": Run("ReturningScoresTrial", _pipeline(), batches=2, hparams=_SGD),
    "outputs that hooks keep": Run("ActivationTrial", _pipeline(), batches=2, hparams=_SGD),
    # The last batch of the epoch has another shape, and so has the last one of the validation.
    "state of modules": Run(
        "RememberingTrial", _pipeline(microbatches=4), batches=5, hparams={"parts": 4, "records": 52, **_SGD}
    ),
    "state of modules, by time": Run(
        "RememberingTrial",
        _pipeline(microbatches=4, split="time", schedule="Interleaved1F1B"),
        batches=2,
        hparams={"parts": 4, **_SGD},
    ),
    "loss that is a sum": Run("SumTrial", _pipeline(microbatches=4), batches=3, hparams={"parts": 4, **_SGD}),
    "weights used outside": Run("OutsideTrial", _pipeline(schedule="ZBVZeroBubble")),
    "compiled blocks": Run("CompiledTrial", _pipeline(), batches=2, hparams=_SGD),
    "compiled": Run("ChainTrial", _pipeline(), batches=3, hparams={**_COMPILED, "options": _STRICT}, saves=True),
    "compiled in place": Run(
        "TiedTrial", _pipeline(schedule="Interleaved1F1B"), batches=2, hparams={"compiled": "in place", **_SGD}
    ),
    "compiled after it was wrapped": Run(
        "OutsideTrial", _pipeline(activation_checkpointing="blocks"), batches=2, hparams={"compiled": "after"}
    ),
    "compiled in place after it was wrapped": Run(
        "CheckpointedTrial", _pipeline(), batches=2, hparams={"compiled": "in place, after", **_SGD}
    ),
    "compiled, by time": Run("SlowTrial", _pipeline(split="time"), batches=2, hparams=_COMPILED),
    "by time": Run("SlowTrial", _pipeline(split="time"), batches=3, saves=True),
    "by time, weights used outside": Run("SlowOutsideTrial", _pipeline(split="time"), batches=3),
    "recomputation": Run("CheckpointedTrial", _pipeline(), batches=3),
    "recomputation of several parts": Run("CheckpointedTrial", _pipeline(schedule="Interleaved1F1B"), batches=2),
    "recomputation in reentrant checkpoints": Run("InnerReentrantTrial", _pipeline(), batches=2),
    "full dataset": Run("FullTrial", _pipeline(), batches=2),
    "aggregation": Run("ChainTrial", _pipeline(), config={"optimizations": {"aggregation_frequency": 2}}),
    # The last batch of an epoch has 4 records, for which there are fewer microbatches.
    "last batch": Run("ChainTrial", _pipeline(), batches=6, hparams={"records": 52}),
    # It has 5 records here, no multiple of the stages.
    "interleaved, last batch": Run(
        "ChainTrial", _pipeline(schedule="Interleaved1F1B", microbatches=8), batches=6, hparams={"records": 53}
    ),
    "recomputed blocks": Run("ChainTrial", _pipeline(activation_checkpointing="blocks")),
    "recomputed in full": Run(
        "TiedTrial", _pipeline(schedule="Interleaved1F1B", activation_checkpointing="full"), hparams=_SGD
    ),
    "recomputed counters": Run(
        "CountingTrial",
        _pipeline(microbatches=4, activation_checkpointing="blocks"),
        hparams={"parts": 4, **_SGD},
    ),
    "recomputed norms": Run(
        "NormTrial",
        _pipeline(microbatches=4, activation_checkpointing="blocks", blocks=["BatchNorm1d"]),
        hparams={"parts": 4, **_SGD},
    ),
    **{
        f"recomputed, {name}": Run("ChainTrial", {"strategy": name, "activation_checkpointing": "full"}, batches=3)
        for name in ("ddp", "zero1", "zero2", "zero3")
    },
    "saved": Run("ChainTrial", _pipeline(), batches=6, saves=True),
}
_OF_FOUR = {
    "four stages": Run("TiedTrial", _pipeline(), hparams=_SGD),
    "changes in place over three stages": Run("ChangingTrial", _pipeline(), hparams=_SGD),
    "skip connection over two stages": Run("SkippingTrial", _pipeline(), hparams=_SGD),
    "initialised late, two replicas": Run("LateInitTrial", _pipeline(stages=2, replicas="zero2"), hparams=_SGD),
    "two replicas": Run("TiedTrial", _pipeline(stages=2), hparams=_SGD),
    "weights used outside": Run("OutsideTrial", _pipeline(stages=2), hparams=_SGD),
    "two replicas, last batch": Run("ChainTrial", _pipeline(stages=2), batches=6, hparams={"records": 52}),
    "whole replicas": Run("ChainTrial", _pipeline(stages=2)),
    "divided replicas": Run("ChainTrial", _pipeline(stages=2, replicas="zero2")),
    "divided, tied": Run("TiedTrial", _pipeline(stages=2, replicas="zero2", schedule="Interleaved1F1B"), hparams=_SGD),
    "divided, zero bubble": Run("TiedTrial", _pipeline(stages=2, replicas="zero2", schedule="ZBVZeroBubble")),
    "divided, weights used outside": Run("OutsideTrial", _pipeline(stages=2, replicas="zero2"), hparams=_SGD),
    "divided, modules in another order": Run(
        "DisorderedTrial", _pipeline(stages=2, replicas="zero2", schedule="Interleaved1F1B")
    ),
    "divided, aggregation": Run(
        "ChainTrial", _pipeline(stages=2, replicas="zero2"), config={"optimizations": {"aggregation_frequency": 2}}
    ),
    "divided, by time": Run("SlowTrial", _pipeline(stages=2, replicas="zero2", split="time"), batches=3),
    "recomputed, hsdp": Run("ChainTrial", {"strategy": "hsdp", "activation_checkpointing": "blocks"}, batches=3),
    "divided, recomputed": Run(
        "ChainTrial", _pipeline(stages=2, replicas="zero2", activation_checkpointing="blocks"), batches=3
    ),
    "divided, compiled": Run(
        "ChainTrial", _pipeline(stages=2, replicas="zero2"), batches=2, hparams={**_COMPILED, **_SGD}
    ),
    "divided, one replica": Run("ChainTrial", _pipeline(replicas="zero2")),
}
_SAVED = list(_OF_TWO).index("saved")
# Continue the checkpoint of the run named "saved", and one another's.
_CONTINUED = [
    Run("ChainTrial", "ddp", batches=9, latest=_SAVED, saves=True),
    Run("ChainTrial", _pipeline(schedule="Interleaved1F1B"), batches=12, latest=len(_OF_TWO), saves=True),
    Run("ChainTrial", "zero3", batches=14, latest=len(_OF_TWO) + 1),
    Run("ChainTrial", "ddp", batches=5, hparams=_COMPILED, latest=list(_OF_TWO).index("compiled"), saves=True),
    Run("ChainTrial", _pipeline(stages=2), batches=7, latest=len(_OF_TWO) + 3, saves=True),
    # Restored by parameters first, then divided by time with the optimizer's state.
    Run("SlowTrial", _pipeline(split="time"), batches=5, latest=list(_OF_TWO).index("by time")),
]


def _mixed(trial: str, kind: str) -> Run:
    return Run(trial, _pipeline(), hparams=_SGD, config={"optimizations": {"mixed_precision": kind}})


_DIVIDED_MIXED = [
    replace(_mixed(trial, "fp16"), parallelism=_pipeline(stages=2, replicas="zero2"))
    for trial in ("ChainTrial", "OverflowTrial", "TwoOptimizersTrial")
]
# In the last one all stages skip the step for the sake of one.
_MIXED = [
    _mixed("ChainTrial", "bf16"),
    _mixed("ChainTrial", "fp16"),
    _mixed("OverflowTrial", "fp16"),
    _mixed("TwoOptimizersTrial", "fp16"),
]


def _train_two(directory: Path) -> tuple[list[list[Result]], Path]:
    runs = [*_OF_TWO.values(), *_CONTINUED, *_MIXED, Run("DropoutTrial", _pipeline(), batches=2)]
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


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("alone")

    @cache
    def train(key: str) -> Result:
        return train_all(directory, [replace(eval(key, _NAMES), parallelism="none", latest=None, saves=False)])[0]

    def train_alone(run: Run) -> Result:
        # Without torch.compile, whose names differ.
        hparams = {name: value for name, value in run.hparams.items() if name not in ("compiled", "options")}
        return train(repr(replace(run, hparams=hparams)))

    return train_alone


_NAMES = {"Run": Run}
_WAY_OUT = (
    "in the order of its definition; where layers are left out, decide inside of their own forward, or begin the part "
    "at another unit with parallelism.split"
)


def _check(results: list[Result], reference: Result, tolerance: float = 1e-12) -> None:
    for result in results:
        assert result.losses == pytest.approx(reference.losses[-len(result.losses) :], abs=tolerance)
        assert result.validations[-1]["error"] == pytest.approx(reference.validations[-1]["error"], abs=tolerance * 1e3)
        assert result.model.keys() == reference.model.keys()
        for name, value in result.model.items():
            assert (value.double() - reference.model[name].double()).abs().max() <= tolerance * 1e3, name


@pytest.mark.parametrize("name", list(_OF_TWO))
def test_two_stages_train_as_one_process(name: str, of_two: list[list[Result]], alone: Any) -> None:
    place = list(_OF_TWO).index(name)
    _check([results[place] for results in of_two], alone(_OF_TWO[name]))


@pytest.mark.parametrize("name", list(_OF_FOUR))
def test_four_ranks_train_as_one_process(name: str, of_four: list[list[Result]], alone: Any) -> None:
    place = list(_OF_FOUR).index(name)
    _check([results[place] for results in of_four], alone(_OF_FOUR[name]))


@pytest.mark.parametrize("place", range(len(_CONTINUED)))
def test_a_checkpoint_serves_every_strategy(place: int, of_two: list[list[Result]], alone: Any) -> None:
    results = [results[len(_OF_TWO) + place] for results in of_two]
    assert len(results[0].losses) == [3, 3, 2, 2, 2, 2][place]
    _check(results, alone(_CONTINUED[place]))


def test_a_checkpoint_fits_the_plain_model_and_one_process(
    of_two: list[list[Result]], folder: Path, alone: Any
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
def test_mixed_precision(number: int, tolerance: float, of_two: list[list[Result]], alone: Any) -> None:
    place = len(_OF_TWO) + len(_CONTINUED) + number
    reference = alone(_MIXED[number])
    for results in of_two:
        assert results[place].losses == pytest.approx(reference.losses, abs=tolerance)


@pytest.mark.parametrize("number", range(3))
def test_mixed_precision_of_divided_replicas(number: int, of_four: list[list[Result]], alone: Any) -> None:
    _check([results[len(_OF_FOUR) + number] for results in of_four], alone(_DIVIDED_MIXED[number]), 1e-3)


def test_replicas_of_zero2_divide_the_state_of_the_optimizer(of_four: list[list[Result]]) -> None:
    whole, divided = (list(_OF_FOUR).index(name) for name in ("whole replicas", "divided replicas"))
    # AdamW has two numbers for a parameter. Ranks 0 and 2 have the same stage.
    for first in (0, 1):
        pair = [of_four[first][divided].states, of_four[first + 2][divided].states]
        assert sum(pair) == of_four[first][whole].states == 2 * of_four[first][whole].held
        assert max(pair) <= 0.6 * sum(pair)


def test_evaluation_drops_nothing(of_two: list[list[Result]], alone: Any) -> None:
    run = Run("DropoutTrial", _pipeline(), batches=2)
    reference = alone(run)
    assert of_two[0][-1].validations == [pytest.approx(validation) for validation in reference.validations]
    # Training drops, with other random numbers on each stage.
    assert of_two[0][-1].losses != pytest.approx(reference.losses, abs=1e-6)


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
            _pipeline(schedule="ZBVZeroBubble"),
            "ZBVZeroBubble computes the gradients of inputs and weights apart, which torch cannot do in compiled",
        ),
        ("two backwards", _pipeline(microbatches=5), "a replica's batch of 16 records cannot be cut into 5 equal"),
        ("two backwards", _pipeline(split=["block.1"]), "there is no unit 'block.1'; did you mean blocks.1"),
        ("two backwards", _pipeline(carry=["block.1"]), "parallelism.carry: there is no unit 'block.1'; did you mean"),
        ("two backwards", _pipeline(schedule="1F1"), "there is no schedule '1F1'; did you mean 1F1B?"),
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
    told = run_gang(2, tmp_path / "gang", refuse, tmp_path / "work", mistake, _pipeline(schedule=schedule))
    text, (note,) = told[rank]
    assert text == f"call {call} breaks"
    assert note.startswith(f"in stage {stage} of ")
    assert note.endswith(f"to head), rank {rank}")


@pytest.mark.parametrize(("schedule", "rank", "stage"), [("1F1B", 1, 1), ("ZBVZeroBubble", 0, 3)])
def test_failure_names_its_stage_and_rank(schedule: str, rank: int, stage: int, tmp_path: Path) -> None:
    parallelism = _pipeline(schedule=schedule)
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
    told = run_gang(2, tmp_path / "gang", refuse, tmp_path / "work", "breaking weight", _pipeline(schedule=schedule))
    text, notes = told[rank]
    assert text == "the third gradient breaks"
    (note,) = notes
    assert note.startswith(f"in stage {stage} (")
    assert note.endswith(f"to head), rank {rank}, backward pass of microbatch 2 of 8")
