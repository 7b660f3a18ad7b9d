"""Work of ranks in tests of checkpoints: resume one another's trials, and save where storage blocks or fails."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gangline.core.storage import CheckpointStore
from gangline.core.stream import DigestStream
from gangline.errors import GanglineError
from tests.support.folder_work import in_folder
from tests.support.strategy_work import Net, PointsTrial, fit

_SECONDS = 60.0


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
        from gangline import pytorch

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
        from gangline import pytorch

        try:
            fit(parallelism, 100_000, checkpoint_period=pytorch.Batch(3))
        except GanglineError as error:
            return time.time(), error.code, error.message
        except RuntimeError as error:
            return time.time(), "", str(error)
    raise AssertionError("training went on without its checkpoints")


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
