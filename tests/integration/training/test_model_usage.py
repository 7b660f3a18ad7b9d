"""A trial that uses its models in its own way trains as in one process, or is refused in one line with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gangline import pytorch
from tests.support import changing_work, usage_work
from tests.support.gang import run_gang

_WHOLE = ["ddp", "zero1"]
_DIVIDED = ["zero2", "zero3"]
_ALL = [*_WHOLE, *_DIVIDED]
# hsdp needs four ranks.
_SIZES = [(2, _ALL), (4, ["hsdp"])]
_DIVIDED_SIZES = [(2, _DIVIDED), (4, ["hsdp"])]
_SHARD_USED = "pytorch.shard_used: a parameter was used while only this rank's part of it is here; call the wrapped "

Kind = type[pytorch.PyTorchTrial]


def _check(kind: Kind, directory: Path, strategies: list[str], size: int = 2) -> None:
    """The models of all ranks are those of one process."""
    (alone,) = changing_work.run_many(kind, directory, ["ddp"])
    assert alone[0] == ""
    by_rank = run_gang(size, directory / "gang", changing_work.run_many, kind, directory, strategies)
    for strategy, *results in zip(strategies, *by_rank, strict=True):
        assert [refusal for refusal, _ in results] == [""] * size, strategy
        for _, models in results:
            for model, expected in zip(models, alone[1], strict=True):
                for name, value in expected.items():
                    assert torch.allclose(model[name].double(), value.double(), atol=1e-5), (strategy, name)


def _refusals(kind: Kind, directory: Path, strategies: list[str], size: int = 2) -> dict[str, list[str]]:
    """By strategy, what each rank says."""
    results = run_gang(size, directory / "gang", changing_work.run_many, kind, directory, strategies)
    return {strategy: [rank[place][0] for rank in results] for place, strategy in enumerate(strategies)}


def _check_refused(kind: Kind, directory: Path, strategies: list[str], size: int, text: str) -> None:
    expected = {name: [text.replace("STRATEGY", name)] * size for name in strategies}
    assert _refusals(kind, directory, strategies, size) == expected


@pytest.fixture(autouse=True)
def _stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_statistics_of_all_ranks_on_the_cpu(tmp_path: Path, size: int, strategies: list[str]) -> None:
    _check(usage_work.SyncNormTrial, tmp_path, strategies, size)


def test_statistics_of_all_ranks_are_differentiated_twice(tmp_path: Path) -> None:
    _check(usage_work.PenalisedNormTrial, tmp_path, _WHOLE)


def test_layers_that_are_converted_too_late(tmp_path: Path) -> None:
    text = (
        "parallelism.batch_norm: a SyncBatchNorm layer was put into the model after it was wrapped, so it runs on GPUs "
        "only; call torch.nn.SyncBatchNorm.convert_sync_batchnorm before context.wrap_model"
    )
    _check_refused(usage_work.LateSyncNormTrial, tmp_path, ["ddp", "zero3"], 2, text)


def test_class_that_derives_from_sync_batch_norm(tmp_path: Path) -> None:
    text = (
        "parallelism.batch_norm: OwnSyncNorm derives from torch.nn.SyncBatchNorm, which torch runs on GPUs only; use "
        "torch.nn.SyncBatchNorm itself, or GroupNorm"
    )
    _check_refused(usage_work.OwnSyncNormTrial, tmp_path, ["ddp", "zero3"], 2, text)


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_lazy_modules_without_shapes_are_refused(tmp_path: Path, size: int, strategies: list[str]) -> None:
    text = (
        "parallelism.lazy_model: 0.weight and 7 more of Sequential have no shape before a first pass, as lazy modules "
        "leave it open, so ranks cannot share them; run a batch through the model before context.wrap_model, as in "
        "model(torch.zeros(2, 3, 32, 32)) under torch.no_grad()"
    )
    _check_refused(usage_work.LazyTrial, tmp_path, strategies, size, text)


def test_lazy_modules_that_have_run_train_as_in_one_process(tmp_path: Path) -> None:
    _check(usage_work.RunLazyTrial, tmp_path, _ALL)


def test_lazy_modules_train_on_one_slot(tmp_path: Path) -> None:
    ((refusal, _),) = changing_work.run_many(usage_work.LoneLazyTrial, tmp_path, ["ddp"])
    assert refusal == ""


_LOSSES: dict[Kind, str] = {
    usage_work.LossTrial: (
        "pytorch.loss: context.backward got a loss of shape [{count}, 3] where it needs one number; pass its mean, as "
        "in context.backward(loss.mean())"
    ),
    usage_work.NumberLossTrial: (
        "pytorch.loss: context.backward got a float; pass the loss as the tensor that it was computed as, without "
        ".item()"
    ),
    usage_work.DetachedLossTrial: (
        "pytorch.loss: context.backward got a loss that depends on no trained parameter; compute it from the output of "
        "a wrapped model, without torch.no_grad() and .detach(), and leave some parameters with requires_grad"
    ),
}


@pytest.mark.parametrize("kind", _LOSSES, ids=lambda kind: kind.__name__)
def test_loss_that_has_no_gradient_is_refused(tmp_path: Path, kind: Kind) -> None:
    text = _LOSSES[kind]
    assert changing_work.run_many(kind, tmp_path, ["none"])[0][0] == text.format(count=8)
    _check_refused(kind, tmp_path, ["ddp", "zero3"], 2, text.format(count=4))


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_weights_loaded_into_a_wrapped_model(tmp_path: Path, size: int, strategies: list[str]) -> None:
    _check(usage_work.LoadingTrial, tmp_path, strategies, size)


def test_weights_that_the_chief_alone_loads_are_refused(tmp_path: Path) -> None:
    refusals = _refusals(usage_work.ChiefLoadingTrial, tmp_path, _ALL)
    for strategy in _WHOLE:
        for refusal in refusals[strategy]:
            assert refusal.startswith("training.drift: "), refusal
            assert " at batch 0, so each rank trains a model of its own; there is no checkpoint yet. " in refusal
            assert "load and change parameters in the same way on all ranks" in refusal
    for strategy in _DIVIDED:
        assert refusals[strategy] == [
            "parallelism.loaded: load_state_dict was called after context.wrap_model with other values on some ranks "
            f"than on others (this rank loaded {count} parameters), so {strategy} would train a mixture of them; load "
            "the same file on all ranks, or load it before context.wrap_model"
            for count in (16, 0)
        ]


def test_weights_that_take_the_place_of_parameters_are_refused(tmp_path: Path) -> None:
    changed = (
        "parallelism.model_changed: Net had 16 parameters when it was wrapped and has others now; tie, add and replace "
        "parameters before context.wrap_model, and leave assign=True out of load_state_dict"
    )
    assigned = (
        "parallelism.assigned: load_state_dict(assign=True) would put other parameters in the place of those that "
        "STRATEGY has divided; leave assign out, or load before context.wrap_model"
    )
    for kind in (usage_work.AssignedLoadingTrial, usage_work.LateAssignedLoadingTrial):
        _check_refused(kind, tmp_path / kind.__name__, _WHOLE, 2, changed)
        _check_refused(kind, tmp_path / f"{kind.__name__}_divided", _DIVIDED, 2, assigned)


def test_penalty_on_gradients_is_as_in_one_process(tmp_path: Path) -> None:
    _check(usage_work.PenaltyTrial, tmp_path, _WHOLE)


@pytest.mark.parametrize(("size", "strategies"), _DIVIDED_SIZES)
def test_penalty_on_gradients_of_a_divided_model(tmp_path: Path, size: int, strategies: list[str]) -> None:
    _check(usage_work.PenaltyTrial, tmp_path, strategies, size)


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_graph_of_exchanged_gradients_is_refused(tmp_path: Path, size: int, strategies: list[str]) -> None:
    text = (
        "pytorch.second_order: context.backward(create_graph=True) with STRATEGY: the exchange of gradients between "
        "ranks cannot be differentiated; make a penalty with torch.autograd.grad(..., create_graph=True) and add it to "
        "the loss of one context.backward, or train on one slot"
    )
    _check_refused(usage_work.SecondOrderTrial, tmp_path, strategies, size, text)


@pytest.mark.parametrize(("size", "strategies"), _DIVIDED_SIZES)
def test_parts_of_a_divided_model_that_are_not_here(tmp_path: Path, size: int, strategies: list[str]) -> None:
    for messages in _refusals(usage_work.PartTrial, tmp_path, strategies, size).values():
        assert all(refusal.startswith(_SHARD_USED) for refusal in messages), messages


@pytest.mark.parametrize("kind", [usage_work.PartTrial, usage_work.HeadTrial])
def test_parts_of_a_whole_model(tmp_path: Path, kind: Kind) -> None:
    _check(kind, tmp_path, _WHOLE)


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_parts_after_a_pass_of_the_model(tmp_path: Path, size: int, strategies: list[str]) -> None:
    _check(usage_work.LatePartTrial, tmp_path, strategies, size)


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_blocks_that_are_called_before_their_model(tmp_path: Path, size: int, strategies: list[str]) -> None:
    _check(usage_work.BlocksTrial, tmp_path, strategies, size)


@pytest.mark.parametrize(("size", "strategies"), _DIVIDED_SIZES)
def test_gradients_of_a_part_that_no_forward_pass_announced(tmp_path: Path, size: int, strategies: list[str]) -> None:
    _check(usage_work.HeadTrial, tmp_path, strategies, size)


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_part_beside_the_whole_model(tmp_path: Path, size: int, strategies: list[str]) -> None:
    _check(usage_work.WholeAndPartTrial, tmp_path, strategies, size)


def test_part_of_a_divided_model_in_a_validation(tmp_path: Path) -> None:
    for messages in _refusals(usage_work.PartEvaluationTrial, tmp_path, ["zero3"]).values():
        assert all(refusal.startswith(_SHARD_USED) for refusal in messages), messages


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_backward_pass_beside_the_context_is_refused(tmp_path: Path, size: int, strategies: list[str]) -> None:
    text = (
        "pytorch.own_backward: train_batch made gradients without context.backward, so they lack its weights for the "
        "last records of an epoch, for aggregation and for fp16; call context.backward(loss) in the place of "
        "loss.backward(), or torch.autograd.grad where no optimizer uses the gradients"
    )
    _check_refused(usage_work.OwnBackwardTrial, tmp_path, strategies, size, text)


def test_backward_pass_beside_the_context_is_refused_where_no_step_follows(tmp_path: Path) -> None:
    kinds: list[Kind] = [usage_work.OwnBackwardBetweenTrial]
    for by_rank in run_gang(2, tmp_path / "gang", usage_work.run_aggregated, kinds, tmp_path, _ALL):
        assert [refusal.partition(":")[0] for refusal, _ in by_rank] == ["pytorch.own_backward"] * len(_ALL)


def test_backward_pass_beside_the_context_on_one_slot(tmp_path: Path) -> None:
    """Is refused where context.backward would have changed the loss."""
    refusal, models = changing_work.run(usage_work.OwnBackwardTrial, tmp_path)
    assert refusal == ""
    _, expected = changing_work.run(changing_work.ChangingTrial, tmp_path)
    assert all(torch.allclose(models[0][name], value, atol=1e-6) for name, value in expected[0].items())
    for optimizations in ({"aggregation_frequency": 2}, {"mixed_precision": "fp16"}):
        refusal, _ = changing_work.run(usage_work.OwnBackwardTrial, tmp_path, optimizations=optimizations)
        assert refusal.startswith("pytorch.own_backward: ")


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_two_backward_passes_through_one_graph(tmp_path: Path, size: int, strategies: list[str]) -> None:
    _check(usage_work.TwiceTrial, tmp_path, strategies, size)


def test_aggregation_over_batches(tmp_path: Path) -> None:
    """In every other batch nothing is exchanged."""
    kinds: list[Kind] = [usage_work.PenaltyTrial, usage_work.TwiceTrial, usage_work.BlocksTrial]
    alone = usage_work.run_aggregated(kinds, tmp_path, ["none"])
    for by_rank in run_gang(2, tmp_path / "gang", usage_work.run_aggregated, kinds, tmp_path, _ALL):
        assert len(by_rank) == len(_ALL) * len(kinds)
        for place, (refusal, models) in enumerate(by_rank):
            assert refusal == "", place
            for name, value in alone[place % len(kinds)][1][0].items():
                assert torch.allclose(models[0][name].double(), value.double(), atol=1e-5), (place, name)


def test_second_backward_pass_that_reaches_fewer_parameters(tmp_path: Path) -> None:
    """Uses a whole model, whose gradients are sent in buckets: a bucket with a missing gradient would never be sent."""
    _check(usage_work.PartlyTwiceTrial, tmp_path, _WHOLE)


def test_first_backward_pass_that_reaches_fewer_parameters(tmp_path: Path) -> None:
    """The advice for several backward passes is to add the losses up, with every option."""
    text = (
        "pytorch.unused_parameters: second.weight, second.bias of TwoHeads took no part in the loss, so their "
        "gradients never came; freeze them, add losses up where train_batch calls context.backward several times, or "
        "set parallelism: {strategy: STRATEGY, find_unused_parameters: true}"
    )
    _check_refused(usage_work.TwoHeadsTrial, tmp_path, _WHOLE, 2, text)
    found = {"strategy": "ddp", "find_unused_parameters": True}
    kinds: list[Kind] = [usage_work.TwoHeadsTrial, usage_work.AddedHeadsTrial]
    (alone,) = changing_work.run_many(usage_work.AddedHeadsTrial, tmp_path, ["none"])
    for rank in run_gang(2, tmp_path / "found", usage_work.run_kinds, kinds, tmp_path, found):
        (refusal, _), (added, models) = rank
        assert refusal.startswith("parallelism.backward: context.backward was called again without another forward")
        assert "; add losses up for one context.backward, or call the wrapped model itself again" in refusal
        assert added == ""
        assert all(torch.allclose(models[0][name], value, atol=1e-5) for name, value in alone[1][0].items())


def test_second_backward_pass_through_a_graph_that_is_freed(tmp_path: Path) -> None:
    text = (
        "pytorch.graph_used: a second backward pass went through a graph that the first one has freed; add losses up "
        "for one context.backward, or pass retain_graph=True to all but the last one"
    )
    assert changing_work.run_many(usage_work.FreedTwiceTrial, tmp_path, ["none"])[0][0] == text
    _check_refused(usage_work.FreedTwiceTrial, tmp_path, ["zero3"], 2, text)


def test_groups_of_hsdp_have_the_timeout_of_the_trial(tmp_path: Path) -> None:
    waits, *others = run_gang(4, tmp_path / "gang", usage_work.lonely_collective, 2.0)
    assert len(waits) == 3
    assert all(1.0 < seconds < 20.0 for seconds in waits), waits
    assert others == [[]] * 3
