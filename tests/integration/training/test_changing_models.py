"""A model that a trial changes after it was wrapped trains as in one process, or is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gangline import pytorch
from tests.support import changing_work as work
from tests.support.gang import run_gang

_ALL = ["ddp", "zero1", "zero2", "zero3"]
_WHOLE = ["ddp", "zero1"]


def _check(kind: type[pytorch.PyTorchTrial], directory: Path, strategies: list[str], size: int = 2) -> None:
    """The models of all ranks are those of one process."""
    (alone,) = work.run_many(kind, directory, ["ddp"])
    by_rank = run_gang(size, directory / "gang", work.run_many, kind, directory, strategies)
    for strategy, *results in zip(strategies, *by_rank, strict=True):
        assert [refusal for refusal, _ in results] == [""] * size, strategy
        for _, models in results:
            for model, expected in zip(models, alone[1], strict=True):
                for name, value in expected.items():
                    assert torch.allclose(model[name].double(), value.double(), atol=1e-5), (strategy, name)


@pytest.fixture(autouse=True)
def _stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", [work.FrozenHeadTrial, work.FrozenBlockTrial], ids=lambda kind: kind.__name__)
def test_unfrozen_parameters_train_as_in_one_process(tmp_path: Path, kind: type[pytorch.PyTorchTrial]) -> None:
    _check(kind, tmp_path, _ALL)


def test_model_that_was_frozen_as_a_whole_trains_as_in_one_process(tmp_path: Path) -> None:
    _check(work.TeacherTrial, tmp_path, _ALL)


def test_gradients_without_a_backward_pass_are_averaged(tmp_path: Path) -> None:
    _check(work.OwnGradientTrial, tmp_path, _WHOLE)


def test_layer_of_a_wrapped_model_is_added_too_late(tmp_path: Path) -> None:
    for by_strategy in run_gang(2, tmp_path / "gang", work.run_many, work.LateLayerTrial, tmp_path, _ALL):
        for refusal, _ in by_strategy:
            assert refusal == (
                "parallelism.model_changed: Net had 16 parameters when it was wrapped and has others now; tie, add and "
                "replace parameters before context.wrap_model, and leave assign=True out of load_state_dict"
            )


def test_layer_that_no_stage_has_is_added_too_late(tmp_path: Path) -> None:
    results = run_gang(2, tmp_path / "gang", work.run_many, work.LateLayerTrial, tmp_path, ["pipeline"])
    for ((refusal, _),) in results:
        assert refusal == (
            "parallelism.model_changed: a parameter of shape [3, 3] was not in the model when it was wrapped, so no "
            "stage has it; tie, add and replace parameters before context.wrap_model, and leave assign=True out of "
            "load_state_dict"
        )


def test_rank_that_alone_unfreezes_is_refused(tmp_path: Path) -> None:
    results = run_gang(2, tmp_path / "gang", work.run_impatient, work.OddRankTrial, tmp_path, "ddp")
    assert results[1][0] == (
        "parallelism.model_changed: Net is frozen or unfrozen differently on different ranks (rank 1 has done so and "
        "others have not within 1 s), so gradients cannot be exchanged; set requires_grad at the same batch on all "
        "ranks"
    )


@pytest.mark.parametrize("strategy", _WHOLE)
def test_ranks_that_drift_apart_end_with_the_parameters_name(tmp_path: Path, strategy: str) -> None:
    results = run_gang(2, tmp_path / "gang", work.run_many, work.DriftingTrial, tmp_path, [strategy])
    for ((refusal, _),) in results:
        assert refusal.startswith("training.drift: blocks.1.widen.weight differs between ranks by 0.")
        assert "at batch 1, so each rank trains a model of its own; there is no checkpoint yet." in refusal


def test_late_initialisation_draws_as_in_one_process(tmp_path: Path) -> None:
    _check(work.LateInitTrial, tmp_path, [*_ALL, "pipeline"])


def test_late_initialisation_on_copies_of_shards_is_the_same(tmp_path: Path) -> None:
    _check(work.LateInitTrial, tmp_path, ["hsdp"], size=4)


def test_late_initialisation_of_other_seeds_takes_the_chiefs_numbers(tmp_path: Path) -> None:
    _check(work.OddSeedTrial, tmp_path, ["zero2", "zero3"])


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_assignment_that_reaches_no_shard_is_refused(tmp_path: Path, strategy: str) -> None:
    results = run_gang(2, tmp_path / "gang", work.run_many, work.AssigningTrial, tmp_path, [strategy])
    for ((refusal, _),) in results:
        assert refusal == (
            "parallelism.data_assigned: Net.stem.weight.data was assigned to after context.wrap_model, which has no "
            f"effect on the parts that {strategy} divides parameters into; assign before wrap_model, or change the "
            "parameter in place under torch.no_grad(), as in parameter.clamp_(-1, 1)"
        )


@pytest.mark.parametrize(("size", "strategy"), [(2, "zero2"), (2, "zero3"), (4, "hsdp")])
def test_block_that_only_some_ranks_skip_is_refused(tmp_path: Path, size: int, strategy: str) -> None:
    for kind, block in ((work.DropTrial, "DroppingNet.blocks.1"), (work.UnevenDropTrial, "DroppingNet.blocks.")):
        results = run_gang(size, tmp_path / kind.__name__, work.run_many, kind, tmp_path, [strategy])
        for ((refusal, _),) in results:
            assert refusal.startswith("parallelism.blocks_differ: this rank "), refusal
            assert f"gathers {block}" in refusal
            assert refusal.endswith(
                "draw what decides that from a generator of the same seed on all ranks, or use "
                "parallelism: {strategy: ddp, find_unused_parameters: true}"
            )


def test_block_that_all_ranks_skip_is_as_in_one_process(tmp_path: Path) -> None:
    _check(work.EvenDropTrial, tmp_path, ["zero2", "zero3"])


def test_rounding_is_no_drift(tmp_path: Path) -> None:
    results = run_gang(2, tmp_path / "gang", work.run_many, work.RoundingTrial, tmp_path, ["ddp"])
    assert [refusal for ((refusal, _),) in results] == ["", ""]
