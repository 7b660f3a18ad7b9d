"""Folders for data that a trial downloads: once on each machine, or once for each rank, never two at the same time.

Owns the layout of these folders and their locks. Any process may call it, also off the cluster.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from gangline.cluster_info import get_cluster_info
from gangline.errors import invalid

# Names the folder that holds all others.
ROOT_KEY = "GANGLINE_DATASETS"
# How often a process that waits says so.
NOTE_SECONDS = 30.0
# Written into a folder once its download is complete.
_COMPLETE = ".complete"

_log = logging.getLogger(__name__)


def download_once(
    name: str, download: Callable[[Path], object], *, per_rank: bool = False, root: str | Path | None = None
) -> Path:
    """Returns a folder with the data that `download` puts there. All ranks call it.

    The first process of the machine calls `download(folder)` with an empty folder; the others wait and find the data,
    also those of other trials and of later attempts. A download that fails, or whose process dies, leaves nothing
    behind, and the next process tries again.

    name: of the data; slashes make folders. Change it when the data change, as in "mnist/v2". per_rank: a folder of its
    own for each rank of the trial, for code that also writes there. root: where the folders are; by default
    $GANGLINE_DATASETS, else ~/.cache/gangline/datasets. On a file system that machines share, one of them downloads.
    Raises GanglineError `data.name`, and whatever `download` raises.
    """
    folder = _find_root(root) / _check_name(name)
    if per_rank:
        folder = folder.with_name(f"{folder.name}.rank{_rank()}")
    if (folder / _COMPLETE).exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    _acquire(lock, name)
    try:
        if not (folder / _COMPLETE).exists():
            _fill(folder, download)
    finally:
        lock.release()
    return folder


def _acquire(lock: FileLock, name: str) -> None:
    began_at = time.monotonic()
    while True:
        try:
            lock.acquire(timeout=NOTE_SECONDS)
            return
        except Timeout:
            seconds = time.monotonic() - began_at
            _log.info("waits since %.0f s for another process that downloads %s", seconds, name)


def _fill(folder: Path, download: Callable[[Path], object]) -> None:
    """Downloads beside the folder, so that nobody sees a part. Called under the lock."""
    draft = folder.with_name(f".{folder.name}.draft")
    for left in (draft, folder):
        shutil.rmtree(left, ignore_errors=True)
    draft.mkdir()
    try:
        download(draft)
        (draft / _COMPLETE).touch()
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _find_root(root: str | Path | None) -> Path:
    return Path(root or os.environ.get(ROOT_KEY) or "~/.cache/gangline/datasets").expanduser().absolute()


def _check_name(name: str) -> str:
    parts = name.split("/")
    if any(not part or part.startswith(".") for part in parts) or "\0" in name:
        text = f"{name!r} is no name of a folder: use parts like mnist/v2 that are not empty and begin with no dot"
        raise invalid("data.name", text)
    return name


def _rank() -> int:
    cluster = get_cluster_info()
    return int(os.environ.get("RANK") or (cluster.rank if cluster is not None else 0))
