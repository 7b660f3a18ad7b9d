"""Checkpoints of several ranks: they move between strategies and world sizes, are written while training goes on, and
are whole or absent whatever happens meanwhile."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gangline import pytorch
from gangline.core.storage_access.storage import CheckpointStore
from gangline.core.storage_access.stream import DigestStream
from gangline.errors import GanglineError
from gangline.pytorch import load_checkpoint
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang, start_gang
from tests.support.points_trial import Net, PointsTrial, fit

_SAVED, _ALL = 5, 12


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


class ScaledNet(Net):
    """Has parameters that cannot be divided, of which one has no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.1))
        self.empty = nn.Parameter(torch.zeros(0, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale.exp() + self.empty.sum()


class ScaledTrial(PointsTrial):
    def make_model(self) -> nn.Module:
        return ScaledNet()


@in_folder
def resume(directory: Path, runs: list[tuple[Any, str | None, int]]) -> list[tuple[list[float], int, str]]:
    """Trains in the folder, one run after another. runs: parallelism, checkpoint to go on from, batches in all.

    Returns losses, how many batches the callback has seen over all processes, and the newest checkpoint.
    """
    results = []
    for parallelism, latest, batches in runs:
        recorder = fit(parallelism, batches, latest, ScaledTrial)
        results.append((recorder.losses, recorder.seen, (recorder.checkpoints or [""])[-1]))
    return results


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


def resume_without_pickles(directory: Path, runs: list[tuple[Any, str | None, int]]) -> list[tuple[Any, ...]]:
    """As `resume`, where torch.distributed cannot turn an object into a pickle or read one."""

    def refuse(*_: object) -> Any:
        raise AssertionError("torch.distributed exchanges an object as a pickle")

    dist.distributed_c10d._pickler = dist.distributed_c10d._unpickler = refuse  # type: ignore[assignment]
    try:
        dist.all_gather_object([None] * dist.get_world_size(), 1)
    except AssertionError:
        return list(resume(directory, runs))
    raise AssertionError("torch.distributed has another way to make pickles now")


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


_SECONDS = 60.0


@in_folder
def save_until_held_up(directory: Path, parallelism: str) -> None:
    """Trains with a checkpoint every third batch; the second one is held up at its first file on rank 1. Tells in
    `held` that it is, in `batches` how far training came meanwhile, and goes on when there is a file `go`."""
    rank = dist.get_rank()

    class Telling(PointsTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            if rank == 0 and (directory / "held").exists():
                (directory / "batches").write_text(str(batch_idx))
            if batch_idx == 6:
                # The second save is under way by now.
                wait_for((directory / "held").exists, "a save that is held up")
            return super().train_batch(batch, epoch_idx, batch_idx)

    with _storage(_HeldUp(directory, rank).open_file):
        fit(parallelism, 12, kind=Telling, checkpoint_period=pytorch.Batch(3))


class _HeldUp:
    def __init__(self, directory: Path, rank: int) -> None:
        self._directory = directory
        self._is_chosen = rank == 1
        self._ids: list[str] = []

    @contextmanager
    def open_file(self, store: CheckpointStore, storage_id: str, path: str) -> Iterator[DigestStream]:
        if storage_id not in self._ids:
            self._ids.append(storage_id)
        if self._is_chosen and len(self._ids) == 2 and not (self._directory / "go").exists():
            (self._directory / "held").touch()
            wait_for((self._directory / "go").exists, "the test's word")
        with _ORIGINAL(store, storage_id, path) as stream:
            yield stream


def wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {_SECONDS:g} s"
        time.sleep(0.01)


_ORIGINAL = CheckpointStore.open_file


@contextmanager
def _storage(open_file: Any) -> Iterator[None]:
    """Has every file of a checkpoint opened by another function."""

    def open_through(store: CheckpointStore, storage_id: str, path: str) -> Any:
        return open_file(store, storage_id, path)

    CheckpointStore.open_file = open_through  # type: ignore[method-assign, assignment]  # storage itself, as a full disk would be
    try:
        yield
    finally:
        CheckpointStore.open_file = _ORIGINAL  # type: ignore[method-assign]  # see above


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


@in_folder
def save_on_full_disk(directory: Path, parallelism: str) -> tuple[float, str, str]:
    """Trains with a checkpoint every third batch; the second one finds no space on rank 1. Returns when the rank ended,
    and the code and message of the error. A rank that ends later may only see that the other is gone.
    """
    rank = dist.get_rank()
    ids: list[str] = []

    @contextmanager
    def full(store: CheckpointStore, storage_id: str, path: str) -> Iterator[DigestStream]:
        ids.append(storage_id)
        if rank == 1 and len(set(ids)) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        with _ORIGINAL(store, storage_id, path) as stream:
            yield stream

    with _storage(full):
        try:
            fit(parallelism, 100_000, checkpoint_period=pytorch.Batch(3))
        except GanglineError as error:
            return time.time(), error.code, error.message
        except RuntimeError as error:
            return time.time(), "", str(error)
    raise AssertionError("training went on without its checkpoints")


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
