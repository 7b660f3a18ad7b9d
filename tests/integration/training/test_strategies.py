"""Every strategy trains to the losses and parameters of one process, and says in time what it cannot do."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from gangline.pytorch import Batch
from tests.support.gang import run_gang
from tests.support.strategy_work import (
    Case,
    GreedyPairTrial,
    Outcome,
    PairTrial,
    Recorder,
    SmallPointsTrial,
    WholePointsTrial,
    fit_many,
    fit_pairs,
    refusals,
    refuse_pair,
    running_means,
    scaled_steps,
    train_cases,
    whole_blocks,
)

# A strategy of several machines needs four ranks; everything else is as true of two, and takes half the time.
_OF_TWO = [
    Case(strategy, optimizer, precision, parts)
    for strategy in ("ddp", "zero1", "zero2", "zero3")
    for optimizer, precision, parts in (("sgd", 32, 1), ("adamw", 64, 1), ("sgd", 64, 2))
]
_OF_FOUR = [
    *(Case(strategy, "sgd", 32) for strategy in ("ddp", "zero1", "zero3", "hsdp")),
    *(Case(strategy, "adamw", 64) for strategy in ("zero1", "hsdp")),
    Case("hsdp", "adamw", 32, steps=10),
]
_LOSS_TOLERANCE = {32: 1e-5, 64: 1e-12}
_PARAMETER_TOLERANCE = {32: 1e-5, 64: 1e-10}


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> list[list[Outcome]]:
    return run_gang(2, tmp_path_factory.mktemp("two"), train_cases, _OF_TWO)


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> list[list[Outcome]]:
    return run_gang(4, tmp_path_factory.mktemp("four"), train_cases, _OF_FOUR)


@cache
def _alone(case: Case) -> Outcome:
    return train_cases([case])[0]


def _check(case: Case, by_rank: list[Outcome]) -> None:
    alone = _alone(Case("none", case.optimizer, case.precision, case.parts, case.steps))
    for outcome in by_rank:
        assert outcome.losses == pytest.approx(alone.losses, abs=_LOSS_TOLERANCE[case.precision])
        assert outcome.norms == pytest.approx(alone.norms, abs=_LOSS_TOLERANCE[case.precision] * 10)
        assert outcome.model.keys() == alone.model.keys()
        for name, value in outcome.model.items():
            if case.optimizer == "sgd" or case.precision == 64:
                difference = (value.double() - alone.model[name].double()).abs().max()
                assert difference <= _PARAMETER_TOLERANCE[case.precision], name


@pytest.mark.parametrize("case", _OF_TWO, ids=str)
def test_two_ranks_train_as_one(case: Case, of_two: list[list[Outcome]]) -> None:
    _check(case, [outcomes[_OF_TWO.index(case)] for outcomes in of_two])


@pytest.mark.parametrize("case", _OF_FOUR, ids=str)
def test_four_ranks_train_as_one(case: Case, of_four: list[list[Outcome]]) -> None:
    _check(case, [outcomes[_OF_FOUR.index(case)] for outcomes in of_four])


def test_ranks_share_the_state_of_the_optimizer(of_two: list[list[Outcome]]) -> None:
    held = {
        case.strategy: [outcomes[index].state_numel for outcomes in of_two]
        for index, case in enumerate(_OF_TWO)
        if case.optimizer == "adamw"
    }
    whole = held["ddp"][0]
    assert held["ddp"] == [whole, whole]
    for strategy in ("zero1", "zero2", "zero3"):
        assert all(number < 0.6 * whole for number in held[strategy]), held


def test_mistakes_show_when_things_are_wrapped(tmp_path: Path) -> None:
    messages, other = run_gang(2, tmp_path / "gang", refusals)
    assert other == messages
    expected = {
        "optimizer before wrap_model": (
            "16 of 16 parameters of SGD belong to no wrapped model; zero3 replaces a model's parameters by shards in "
            "wrap_model, so build the optimizer after that, from the parameters of every model that was wrapped"
        ),
        "tied after wrap_model": (
            "Sequential had 2 parameters when it was wrapped and has others now; tie, add and replace parameters "
            "before context.wrap_model, and leave assign=True out of load_state_dict"
        ),
        "LBFGS with zero1": ("LBFGS joins all parameters in one row, which zero1 divides over ranks; use ddp"),
        "LBFGS with zero2": ("LBFGS joins all parameters in one row, which zero2 divides over ranks; use ddp"),
        "closure with zero1": (
            "zero1 cannot step SGD with a closure, which would see a part of the parameters; call step_optimizer "
            "without a closure, or use ddp"
        ),
        "unknown block": (
            "parallelism.blocks: Net has no module of class 'Layer'; its classes are Block, LayerNorm, Linear, "
            "ModuleList, Net"
        ),
    }
    assert messages == expected


@pytest.mark.parametrize("strategy", ["zero1", "zero3"])
def test_one_infinite_gradient_skips_the_step_on_all_ranks(tmp_path: Path, strategy: str) -> None:
    assert run_gang(2, tmp_path / "gang", scaled_steps, strategy) == [[False, True]] * 2


@pytest.mark.parametrize(("strategy", "is_whole_after_forward"), [("zero2", True), ("zero3", False)])
def test_blocks_are_gathered_for_a_while_and_then_as_before(
    tmp_path: Path, strategy: str, is_whole_after_forward: bool
) -> None:
    """zero3 gives the whole parameters of a block up after its forward pass, which saves memory."""
    expected = [[is_whole] * 2 for is_whole in (is_whole_after_forward, True, False, is_whole_after_forward)]
    assert run_gang(2, tmp_path / "gang", whole_blocks, strategy) == [expected] * 2


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_ranks_agree_on_running_statistics(tmp_path: Path, strategy: str) -> None:
    first, second = run_gang(2, tmp_path / "gang", running_means, strategy)
    assert first == second
    assert any(first)


def test_sharded_model_is_validated_as_a_whole_one(tmp_path: Path) -> None:
    """Five batches of 37 records on two ranks: one of them has a batch less, and makes up for it."""
    whole: dict[str, Any] = {"kind": WholePointsTrial}
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (("ddp", whole), ("zero3", whole), ("zero3", {}), ("zero2", {}))
    runs = [{"parallelism": strategy, "batches": 3, **kind} for strategy, kind in kinds]
    by_rank: list[list[Recorder]] = run_gang(2, tmp_path / "gang", fit_many, tmp_path, runs)
    error = by_rank[0][0].validations[-1]["error"]
    for recorders in by_rank:
        for recorder in recorders:
            assert recorder.validations[-1]["error"] == pytest.approx(error, abs=1e-6)
        assert [recorder.validations[-1]["records"] for recorder in recorders[2:]] == [37, 37]


@pytest.mark.parametrize(("size", "strategies"), [(2, ("zero2", "zero3")), (4, ("hsdp",))])
def test_training_goes_on_after_the_chief_has_evaluated_alone(
    tmp_path: Path, size: int, strategies: tuple[str, ...]
) -> None:
    """Whose passes through the model no other rank has made."""
    moments: tuple[dict[str, Any], ...] = ({"validation_period": Batch(2)}, {"step_zero_validation": True})
    runs = [
        {"parallelism": strategy, "batches": 5, "kind": SmallPointsTrial, **moment}
        for strategy in ("ddp", *strategies)
        for moment in moments
    ]
    by_rank: list[list[Recorder]] = run_gang(size, tmp_path / "gang", fit_many, tmp_path, runs)
    whole = by_rank[0][0].losses
    for recorders in by_rank:
        for recorder in recorders:
            assert recorder.losses == pytest.approx(whole, abs=1e-5)
        assert [len(recorder.validations) for recorder in recorders] == [3, 2] * (1 + len(strategies))


@pytest.mark.parametrize("kind", [PairTrial, GreedyPairTrial])
def test_two_models_have_backward_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[PairTrial]
) -> None:
    monkeypatch.chdir(tmp_path)
    (alone,) = fit_pairs(tmp_path, ["none"], kind)
    strategies = ["ddp", "zero1", "zero3"]
    by_rank = run_gang(2, tmp_path / "gang", fit_pairs, tmp_path, strategies, kind)
    for strategy, first, second in zip(strategies, *by_rank, strict=True):
        assert first.keys() == second.keys() == alone.keys()
        for name, value in alone.items():
            assert torch.equal(first[name], second[name]), (strategy, name)
            assert torch.allclose(first[name].double(), value.double(), atol=1e-5), (strategy, name)


def test_one_of_two_models_has_no_second_backward_pass(tmp_path: Path) -> None:
    message = (
        "context.backward reached Net again without another forward pass of that model since the last time, so its "
        "gradients would stay on this rank; add losses up for one context.backward, or call the wrapped model itself "
        "again before the next one"
    )
    assert run_gang(2, tmp_path / "gang", refuse_pair, tmp_path) == [message] * 2


def test_reference_uses_plain_tensors(of_two: list[list[Outcome]]) -> None:
    kinds = {type(value) for outcome in of_two[0] for value in outcome.model.values()}
    assert kinds == {torch.Tensor}
