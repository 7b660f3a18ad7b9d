"""Several ranks of torch.distributed in processes of their own, for what strategies and checkpoints do together. They
are forked from one process that has torch loaded; one spawn serves many checks.

The work of a rank is a function of the test's own module, beside the tests that look at its results, or of one that
several of these modules share. A rank imports the module by its name, with all that it imports.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support import rank_fork
from tests.support.source import ROOT

# Some gangs train for more than a minute, and twice as long on a busy machine.
_SECONDS = 200.0
# Connecting a group takes milliseconds. A rank that refuses may be awaited by another one, which its end lets go on.
_SECONDS_FOR_OTHERS = 0.5


class RankFailed(AssertionError):
    """A rank's traceback."""


def run_gang(size: int, directory: Path, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Calls work(*arguments) on every rank of a gloo group. Its results by rank.

    directory: empty or absent, for what ranks tell. work: a function that can be pickled, so one at the top of its
    module; its arguments and results can be pickled too. Raises RankFailed with the first failure, once all have ended.
    """
    directory.mkdir(parents=True, exist_ok=True)
    processes = start_gang(size, directory, work, *arguments)
    try:
        deadline = time.monotonic() + _SECONDS
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        failures = _failures(directory)
    finally:
        for process in processes:
            process.kill()
            process.join()
    if late and not failures:
        # A rank that sees another one killed fails as well, which would hide that.
        raise RankFailed(f"ranks {late} did not end within {_SECONDS:g} s")
    return [result_of(directory, rank) for rank in range(size)]


def start_gang(size: int, directory: Path, work: Callable[..., Any], *arguments: Any) -> list[BaseProcess]:
    """As run_gang, without waiting; the caller ends the processes."""
    directory.mkdir(parents=True, exist_ok=True)
    context = rank_fork.context()
    processes: list[BaseProcess] = []
    for rank in range(size):
        place = {"rank": rank, "size": size, "directory": str(directory)}
        process = context.Process(target=_be_rank, args=(place, work, arguments), name=f"rank {rank}", daemon=True)
        # The first start starts the process that ranks are forked from, which imports from its working directory.
        with contextlib.chdir(ROOT):
            process.start()
        processes.append(process)
    return processes


def _failures(directory: Path) -> list[Path]:
    """Returns the reports of ranks that have failed, the first one first."""
    return sorted(directory.glob("failure*.txt"), key=lambda path: path.stat().st_mtime_ns)


def result_of(directory: Path, rank: int) -> Any:
    """Returns what `work` returned on a rank that has ended. Raises RankFailed with the first failure."""
    failures = _failures(directory)
    if failures:
        raise RankFailed(failures[0].read_text())
    path = directory / f"result{rank}.pkl"
    if not path.exists():
        raise RankFailed(f"rank {rank} ended without a result")
    return pickle.loads(path.read_bytes())


def _be_rank(place: dict[str, Any], work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    import torch.distributed as dist

    rank_fork.become_rank()
    rank, size, directory = place["rank"], place["size"], Path(place["directory"])
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(GROUP_RANK="0", GROUP_WORLD_SIZE="1", GLOO_SOCKET_IFNAME="lo", CUDA_VISIBLE_DEVICES="")
    # What a rank that is killed leaves goes with the test's folder.
    tempfile.tempdir = str(directory)
    try:
        if size > 1:
            dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=size)
        result = work(*arguments)
        partial = directory / f"partial{rank}.pkl"
        partial.write_bytes(pickle.dumps(result))
        partial.rename(directory / f"result{rank}.pkl")
        _wait_for_others(directory, size)
    except BaseException:  # noqa: BLE001  whatever it is, the test tells it
        (directory / f"failure{rank}.txt").write_text(f"rank {rank}:\n{traceback.format_exc()}")
    os._exit(0)


def _wait_for_others(directory: Path, size: int) -> None:
    """Keeps this rank's connections for a moment, until the others have ended as well, or have failed. One that is
    still connecting a group that this rank has used would fail otherwise."""
    deadline = time.monotonic() + _SECONDS_FOR_OTHERS
    while len(list(directory.glob("result*.pkl"))) < size and not _failures(directory) and time.monotonic() < deadline:
        time.sleep(0.01)
