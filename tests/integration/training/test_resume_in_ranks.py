"""Checkpoints of several ranks: they move between strategies and world sizes, are written while training goes on, and
are whole or absent whatever happens meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gangline.pytorch import load_checkpoint
from tests.support.checkpoint_work import (
    ScaledNet,
    resume,
    resume_without_pickles,
    save_on_full_disk,
    save_until_held_up,
    wait_for,
)
from tests.support.gang import run_gang, start_gang

_SAVED, _ALL = 5, 12


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def whole(storage: Path) -> list[float]:
    """The losses of a trial that nothing interrupts, in one process."""
    return resume(storage, [("none", None, _ALL)])[0][0]


@pytest.fixture(scope="module")
def saved(storage: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A checkpoint of each strategy after the same batches."""
    strategies = ["ddp", "zero1", "zero3"]
    by_rank = run_gang(
        2, tmp_path_factory.mktemp("gang"), resume, storage, [(strategy, None, _SAVED) for strategy in strategies]
    )
    storage_id_by_strategy = {strategy: made[2] for strategy, made in zip(strategies, by_rank[0], strict=True)}
    storage_id_by_strategy["none"] = resume(storage, [("none", None, _SAVED)])[0][2]
    return storage_id_by_strategy


def test_one_process_goes_on_from_any_strategy(storage: Path, whole: list[float], saved: dict[str, str]) -> None:
    results = resume(storage, [("none", storage_id, _ALL) for storage_id in saved.values()])
    for losses, seen, _ in results:
        assert losses == pytest.approx(whole[_SAVED:], abs=1e-6)
        assert seen == _ALL


def test_training_and_checkpoints_exchange_no_pickles(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    runs = [(strategy, None, _SAVED) for strategy in ("ddp", "zero1", "zero2", "zero3")]
    by_rank = run_gang(2, tmp_path / "gang", resume_without_pickles, storage, runs)
    assert all(len(losses) == _SAVED and storage_id for losses, _, storage_id in by_rank[0])


def test_ranks_go_on_from_any_strategy_and_world(
    storage: Path, whole: list[float], saved: dict[str, str], tmp_path: Path
) -> None:
    pairs = [("zero3", "none"), ("zero3", "ddp"), ("zero1", "zero3"), ("ddp", "zero1"), ("zero2", "zero3")]
    by_rank = run_gang(2, tmp_path, resume, storage, [(after, saved[before], _ALL) for after, before in pairs])
    for pair, (losses, seen, _) in zip(pairs, by_rank[0], strict=True):
        assert losses == pytest.approx(whole[_SAVED:], abs=1e-6), pair
        assert seen == _ALL


def test_four_ranks_go_on_in_another_layout(
    storage: Path, whole: list[float], saved: dict[str, str], tmp_path: Path
) -> None:
    runs = [("hsdp", saved["zero3"], _ALL), ("zero3", saved["zero1"], _ALL - 3)]
    ((losses, _, storage_id), (fewer, _, _)), *_ = run_gang(4, tmp_path, resume, storage, runs)
    assert losses == pytest.approx(whole[_SAVED:], abs=1e-6)
    assert fewer == pytest.approx(whole[_SAVED:-3], abs=1e-6)
    state = load_checkpoint(storage / "checkpoints" / storage_id)
    ScaledNet().load_state_dict(state["models_state_dict"][0])


def test_checkpoint_of_any_strategy_is_the_same_plain_model(storage: Path, saved: dict[str, str]) -> None:
    states = [load_checkpoint(storage / "checkpoints" / storage_id) for storage_id in saved.values()]
    reference = states[-1]
    for state in states:
        assert state.keys() == reference.keys()
        ScaledNet().load_state_dict(state["models_state_dict"][0])
        for name, value in state["models_state_dict"][0].items():
            assert torch.allclose(value.float(), reference["models_state_dict"][0][name].float(), atol=1e-6), name
        (optimizer,) = state["optimizers_state_dict"]
        assert optimizer["state"].keys() == reference["optimizers_state_dict"][0]["state"].keys()
        assert [group["lr"] for group in optimizer["param_groups"]] == pytest.approx([0.008, 0.008])


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    processes = start_gang(2, tmp_path / "gang", save_until_held_up, tmp_path, "zero3")
    try:
        wait_for((tmp_path / "held").exists, "a save that is held up")
        # The next save, after batch 9, waits for it.
        wait_for(lambda: (tmp_path / "batches").exists() and (tmp_path / "batches").read_text() == "8", "three batches")
        committed = [path for path in (tmp_path / "checkpoints").iterdir() if not path.name.startswith(".")]
        assert [load_checkpoint(path)["progress"]["batches"] for path in committed] == [3]
        (tmp_path / "go").touch()
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert not list((tmp_path / "gang").glob("failure*"))
    state_by_batch = {}
    for path in (tmp_path / "checkpoints").iterdir():
        state = load_checkpoint(path)
        state_by_batch[state["progress"]["batches"]] = state
    assert sorted(state_by_batch) == [3, 6, 9, 12]
    # What was held up holds batch 6, not later ones.
    assert [entries["step"] for entries in state_by_batch[6]["optimizers_state_dict"][0]["state"].values()] == [
        6.0
    ] * 16


def test_gang_that_is_killed_while_it_saves_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    processes = start_gang(2, tmp_path / "gang", save_until_held_up, tmp_path, "ddp")
    try:
        wait_for((tmp_path / "held").exists, "a save that is held up")
        wait_for(lambda: len(list((tmp_path / "checkpoints").iterdir())) == 2, "the other rank's files of it")
    finally:
        for process in processes:
            process.kill()
            process.join()
    names = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    (committed,) = [name for name in names if not name.startswith(".partial-")]
    assert len(names) == 2
    assert load_checkpoint(tmp_path / "checkpoints" / committed)["progress"]["batches"] == 3


def test_full_disk_of_one_rank_is_told_whichever_ends_first(tmp_path: Path) -> None:
    results = run_gang(2, tmp_path / "gang", save_on_full_disk, tmp_path, "zero1")
    _, code, message = min(results)
    assert code == "checkpoint.storage"
    assert message == (
        f"the checkpoint after batch 6 could not be written to {tmp_path} on rank 1: OSError: [Errno 28] No space "
        "left on device; earlier checkpoints are as they were"
    )
    (left,) = (tmp_path / "checkpoints").iterdir()
    assert load_checkpoint(left)["progress"]["batches"] == 3
