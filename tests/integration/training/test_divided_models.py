"""Trials that read or change parameters and gradients of a divided model train as in one process, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support import divided_work as work
from tests.support.gang import run_gang
from tests.support.once import make_once
from tests.support.unusual_work import UnusualTrial

Kind = type[UnusualTrial]

_SAME: list[Kind] = [
    work.ReadNumberTrial,
    work.ReadRowTrial,
    work.HookedTrial,
    work.ClearingTrial,
    work.SpectralTrial,
    work.OutsideTwiceTrial,
    work.LatePenaltyTrial,
    work.PenaltyFirstTrial,
    work.ScalarTrial,
    work.ScalarStepTrial,
    work.ScalarWholeStepTrial,
    work.StatefulTrial,
]
_REFUSED: dict[Kind, str] = {
    work.ChangedRowTrial: "parallelism.part_changed: mul_ changes rows or other parts of a divided parameter",
    work.AssignedRowTrial: "parallelism.part_operation: {strategy} divides parameters and gradients over ranks",
    work.OldParameterTrial: "parallelism.old_parameter: Net.head.bias was used as it was before context.wrap_model",
    work.SharedParameterTrial: "parallelism.model: Net.head.bias is Net.head.bias of a model that was wrapped before",
    work.ClampingForwardTrial: "parallelism.whole_changed: Net.blocks.",
    work.DataClampingForwardTrial: "parallelism.whole_changed: Net.blocks.",
    work.ReplacedTrial: "parallelism.parameter_replaced: ",
    work.DerivedTrial: "parallelism.transform: a wrapped model was called in a derivative of torch.func",
    work.ForkedTrial: "parallelism.blocks_differ: this rank reduces ",
    work.WeightLossTrial: "pytorch.shard_used: context.backward got a loss that uses parameters of which",
}
# hsdp needs four ranks, which take longer.
_ON_FOUR: list[Kind] = [
    work.ReadNumberTrial,
    work.HookedTrial,
    work.PenaltyFirstTrial,
    work.ScalarTrial,
    work.ChangedRowTrial,
    work.ForkedTrial,
]
_PLACES = [
    *((kind, strategy, 2) for kind in (*_SAME, *_REFUSED) for strategy in ("zero2", "zero3")),
    *((kind, "hsdp", 4) for kind in _ON_FOUR),
]
# What zero3 refuses: the parameter is divided where it is used.
_OUTSIDE = (work.OutsideTwiceTrial, "zero3", 2)

# The outcomes in one process, and those of each rank by the number of ranks.
Trained = tuple[work.Outcomes, dict[int, list[work.Outcomes]]]


def _train(directory: Path) -> Trained:
    directory.mkdir()
    arguments: dict[int, tuple[list[str], list[Kind]]] = {
        2: (["zero2", "zero3"], [*_SAME, *_REFUSED]),
        4: (["hsdp"], _ON_FOUR),
    }
    by_size = {
        size: run_gang(size, directory / f"gang{size}", work.train_all, directory, *rest)
        for size, rest in arguments.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        return work.train_all(directory, ["none"], _SAME), by_size


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return make_once(tmp_path_factory, "divided_models", _train)


@pytest.mark.parametrize(
    ("kind", "strategy", "size"), [place for place in _PLACES if place[0] in _SAME and place != _OUTSIDE]
)
def test_parts_are_read_and_changed_as_in_one_process(trained: Trained, kind: Kind, strategy: str, size: int) -> None:
    alone, by_size = trained
    refusal, expected = alone[kind.__name__, "none"]
    assert refusal == ""
    for outcomes in by_size[size]:
        refusal, models = outcomes[kind.__name__, strategy]
        assert refusal == ""
        for model, wanted in zip(models, expected, strict=True):
            torch.testing.assert_close(_in_double(model), _in_double(wanted), rtol=0, atol=1e-5)


def _in_double(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.double() for name, value in model.items()}


@pytest.mark.parametrize(("kind", "strategy", "size"), [place for place in _PLACES if place[0] in _REFUSED])
def test_what_parts_cannot_do_is_refused(trained: Trained, kind: Kind, strategy: str, size: int) -> None:
    for outcomes in trained[1][size]:
        refusal, _ = outcomes[kind.__name__, strategy]
        assert refusal.startswith(_REFUSED[kind].format(strategy=strategy)), refusal
        # The way out.
        assert "; " in refusal
        assert "\n" not in refusal


def test_ranks_that_use_other_parameters_of_one_size(trained: Trained) -> None:
    for outcomes in trained[1][2]:
        refusal, _ = outcomes["ForkedTrial", "zero3"]
        assert "while another reduces as many of other parameters there, but ranks that divide a model must" in refusal
