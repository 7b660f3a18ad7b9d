"""Models, optimizers and training code out of the ordinary train as in one process, or are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import unusual_work as work
from tests.support.gang import run_gang

_WHOLE = ["ddp", "zero1"]
_DIVIDED = ["zero2", "zero3"]
_ALL = [*_WHOLE, *_DIVIDED]
_PARTS = [*_DIVIDED, "pipeline"]


@pytest.fixture(autouse=True)
def _stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _check(
    kind: type[work.UnusualTrial],
    directory: Path,
    strategies: list[Any],
    *,
    size: int = 2,
    tolerance: float = 1e-5,
    reference: type[work.UnusualTrial] | None = None,
) -> None:
    """The models of all ranks are those of one process. reference: what that trains; None for the same."""
    directory.mkdir(exist_ok=True)
    ((refusal, alone),) = work.run_many(reference or kind, directory, ["none"])
    assert not refusal
    by_rank = run_gang(size, directory / "gang", work.run_many, kind, directory, strategies)
    for strategy, *results in zip(strategies, *by_rank, strict=True):
        assert [refusal for refusal, _ in results] == [""] * size, strategy
        for _, models in results:
            assert _difference(models, alone) <= tolerance, strategy


def _difference(models: list[work.State], alone: list[work.State]) -> float:
    """The largest one of any number."""
    assert [model.keys() for model in models] == [model.keys() for model in alone]
    pairs = [
        (model[name], value)
        for model, expected in zip(models, alone, strict=True)
        for name, value in expected.items()
        if value.numel()
    ]
    return max(float((first.double() - second.double()).abs().max()) for first, second in pairs)


def _check_refused(
    kind: type[work.UnusualTrial], directory: Path, strategies: list[str], text: str, *, size: int = 2
) -> None:
    """text: with {strategy} for its name."""
    directory.mkdir(exist_ok=True)
    for by_strategy in run_gang(size, directory / "gang", work.run_many, kind, directory, strategies):
        for strategy, (refusal, _) in zip(strategies, by_strategy, strict=True):
            assert refusal == text.format(strategy=strategy)


@pytest.mark.parametrize("kind", [work.SparseTrial, work.SparseAdamTrial], ids=lambda kind: kind.__name__)
def test_sparse_gradients_are_exchanged(tmp_path: Path, kind: type[work.UnusualTrial]) -> None:
    _check(kind, tmp_path, _WHOLE)


@pytest.mark.parametrize(("size", "strategies"), [(2, _DIVIDED), (4, ["hsdp"])])
def test_sparse_gradients_are_not_divided(tmp_path: Path, size: int, strategies: list[str]) -> None:
    text = (
        "parallelism.model: {strategy} cannot divide the sparse gradients of SparseNet.table; make it with "
        "sparse=False, or use ddp or zero1"
    )
    _check_refused(work.SparseTrial, tmp_path, strategies, text, size=size)


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [(work.DoubleTrial, 1e-5), (work.HalfTrial, 3e-2), (work.DoubleBlocksTrial, 1e-5)],
    ids=["fp64", "bf16", "blocks"],
)
def test_parameters_of_several_types_train(tmp_path: Path, kind: type[work.UnusualTrial], tolerance: float) -> None:
    _check(kind, tmp_path, _ALL, tolerance=tolerance)


def test_copies_of_shards_may_have_several_types(tmp_path: Path) -> None:
    _check(work.DoubleTrial, tmp_path, ["hsdp"], size=4)


@pytest.mark.parametrize("kind", [work.TwoTypesTrial, work.TwoTypesBlocksTrial], ids=lambda kind: kind.__name__)
def test_one_module_with_several_types_is_not_divided(tmp_path: Path, kind: type[work.UnusualTrial]) -> None:
    text = (
        "parallelism.model: {strategy} cannot divide Sequential.0, which has parameters of float32 and float64 itself; "
        "give these parameters one type, freeze those of another type before context.wrap_model, or put them into a "
        "module of their own that shares none of them and is called, or use ddp or zero1"
    )
    _check_refused(kind, tmp_path, _DIVIDED, text)
    _check(kind, tmp_path / "whole", _WHOLE)


def test_frozen_parameters_of_a_module_may_have_another_type(tmp_path: Path) -> None:
    _check(work.FrozenTypeTrial, tmp_path, _ALL)


@pytest.mark.parametrize(
    "kind",
    [
        work.AdafactorTrial,
        work.MuonTrial,
        work.LarsTrial,
        work.LionTrial,
        work.SlowTrial,
        work.EightBitTrial,
        work.UncheckedTrial,
    ],
    ids=lambda kind: kind.__name__,
)
def test_any_optimizer_steps_as_in_one_process(tmp_path: Path, kind: type[work.UnusualTrial]) -> None:
    # Muon computes in bf16, where rounding of its input grows.
    _check(kind, tmp_path, [*_WHOLE, *_PARTS], tolerance=1e-2 if kind is work.MuonTrial else 1e-5)


@pytest.mark.parametrize("kind", [work.AdafactorTrial, work.LarsTrial], ids=lambda kind: kind.__name__)
def test_whole_tensors_are_stepped_on_copies_of_shards(tmp_path: Path, kind: type[work.UnusualTrial]) -> None:
    _check(kind, tmp_path, ["hsdp"], size=4)


@pytest.mark.parametrize(("first", "second"), [("zero3", "zero3"), ("zero3", "ddp"), ("ddp", "zero2")])
def test_whole_state_of_divided_parameters_goes_on_elsewhere(tmp_path: Path, first: str, second: str) -> None:
    kind = work.KeptAdafactorTrial
    (tmp_path / "alone").mkdir()
    _, alone = work.run_on(kind, tmp_path / "alone", "none", "", 6)
    ((saved, _), _) = run_gang(2, tmp_path / "first", work.run_on, kind, tmp_path, first, "", 3)
    assert saved
    for _, models in run_gang(2, tmp_path / "second", work.run_on, kind, tmp_path, second, saved, 6):
        assert _difference(models, alone) <= 1e-5


def test_optimizer_that_joins_parameters_is_not_divided(tmp_path: Path) -> None:
    text = (
        "parallelism.optimizer: Lamb updates a parameter differently when it holds other parameters too, but with "
        "{strategy} each rank steps a part of the parameters; use ddp"
    )
    for kind in (work.LambTrial, work.SamTrial):
        directory = tmp_path / kind.__name__
        _check_refused(kind, directory, ["zero1", *_PARTS], text.replace("Lamb", kind.kind.__name__))
        _check(kind, directory / "whole", ["ddp"])


def test_optimizer_around_another_is_not_divided(tmp_path: Path) -> None:
    text = (
        "parallelism.optimizer: {strategy} divides an optimizer's work over ranks and could not find out whether "
        "Wrapping updates each parameter by itself (its attribute base may hold parameters); use ddp"
    )
    _check_refused(work.WrappingTrial, tmp_path, ["zero1", *_PARTS], text)


@pytest.mark.parametrize(
    "kind", [work.EmaTrial, work.CopyTrial, work.WholeCopyTrial, work.TargetTrial], ids=lambda kind: kind.__name__
)
def test_copies_of_a_wrapped_model_are_as_in_one_process(tmp_path: Path, kind: type[work.UnusualTrial]) -> None:
    _check(kind, tmp_path, _ALL)


def test_copies_of_copied_shards_are_as_in_one_process(tmp_path: Path) -> None:
    _check(work.CopyTrial, tmp_path, ["hsdp"], size=4)


@pytest.mark.parametrize(
    "kind",
    [
        work.ReentrantTrial,
        work.TwiceReentrantTrial,
        work.InnerReentrantTrial,
        work.WholeReentrantTrial,
        work.ReentrantPairTrial,
        work.ThawedReentrantTrial,
    ],
    ids=lambda kind: kind.__name__,
)
def test_reentrant_checkpoints_train_as_in_one_process(tmp_path: Path, kind: type[work.UnusualTrial]) -> None:
    _check(kind, tmp_path, _ALL)


def test_reentrant_checkpoints_train_with_copies_of_shards(tmp_path: Path) -> None:
    _check(work.ReentrantTrial, tmp_path, ["hsdp"], size=4)


def test_models_compiled_after_wrapping_train_as_plain_ones(tmp_path: Path) -> None:
    _check(work.GanTrial, tmp_path, _ALL, reference=work.PlainGanTrial)


def test_unused_parameters_name_the_strategy(tmp_path: Path) -> None:
    text = (
        "pytorch.unused_parameters: spare.weight, spare.bias of UnusedNet took no part in the loss, so their gradients "
        "never came; freeze them, add losses up where train_batch calls context.backward several times, or set "
        "parallelism: {{strategy: {strategy}, find_unused_parameters: true}}"
    )
    _check_refused(work.UnusedTrial, tmp_path, _WHOLE, text)
    options = [{"strategy": strategy, "find_unused_parameters": True} for strategy in _WHOLE]
    _check(work.UnusedTrial, tmp_path / "found", options)


def test_parameters_that_are_unused_later_name_the_strategy(tmp_path: Path) -> None:
    text = (
        "pytorch.unused_parameters: some parameters took no part in the last loss, so their gradients never came; "
        "freeze them, add losses up for one context.backward, or set parallelism: {{strategy: {strategy}, "
        "find_unused_parameters: true}}"
    )
    kind = work.SometimesUnusedTrial
    for outcome in run_gang(2, tmp_path / "gang", work.run_aggregated, kind, tmp_path, _WHOLE):
        assert outcome == [text.format(strategy=strategy) for strategy in _WHOLE]


def test_gradients_of_shards_are_not_made_by_hand(tmp_path: Path) -> None:
    text = (
        "parallelism.own_gradients: torch.autograd.grad was called for a tensor that took no part in its graph; "
        "{strategy} divides parameters, so only context.backward makes their gradients; call that, or use ddp or zero1"
    )
    _check_refused(work.OwnGradientTrial, tmp_path, ["zero3"], text)


def test_sparse_gradients_of_functions_are_refused(tmp_path: Path) -> None:
    text = (
        "pytorch.sparse_gradient: a parameter has a sparse gradient that no module has announced, so {strategy} cannot "
        "exchange it; use torch.nn.Embedding(sparse=True) in the place of a function with sparse=True, or leave "
        "sparse=True out"
    )
    _check_refused(work.FunctionalSparseTrial, tmp_path, _WHOLE, text)
    divided = (
        "pytorch.sparse_gradient: a parameter has a sparse gradient, which {strategy} cannot divide; leave sparse=True "
        "out, or use ddp or zero1"
    )
    _check_refused(work.FunctionalSparseTrial, tmp_path / "divided", _DIVIDED, divided)


@pytest.mark.parametrize(("size", "strategies"), [(2, _DIVIDED), (4, ["hsdp"])])
def test_gradients_set_by_hand_are_not_divided(tmp_path: Path, size: int, strategies: list[str]) -> None:
    for by_strategy in run_gang(size, tmp_path / "gang", work.run_many, work.HandGradientTrial, tmp_path, strategies):
        for strategy, (refusal, _) in zip(strategies, by_strategy, strict=True):
            assert refusal.startswith("parallelism.own_gradients: Net.")
            assert refusal.endswith(
                f"has a gradient that no backward pass has made, and {strategy}, which divides parameters, does not "
                "average it over the ranks; call context.backward with a loss, or use ddp or zero1"
            )


@pytest.mark.parametrize("kind", [work.OrthogonalTrial, work.SparseInitTrial], ids=lambda kind: kind.__name__)
def test_late_initialisation_of_whole_matrices(tmp_path: Path, kind: type[work.UnusualTrial]) -> None:
    _check(kind, tmp_path, [*_WHOLE, *_PARTS])


def test_late_initialisation_of_whole_matrices_on_copies_of_shards(tmp_path: Path) -> None:
    _check(work.OrthogonalTrial, tmp_path, ["hsdp"], size=4)


@pytest.mark.parametrize(
    "kind", [work.ClampingTrial, work.WholeClampingTrial, work.ClampAfterPassTrial], ids=lambda kind: kind.__name__
)
def test_parameters_changed_in_place_stay_changed(tmp_path: Path, kind: type[work.UnusualTrial]) -> None:
    _check(kind, tmp_path, _ALL)
