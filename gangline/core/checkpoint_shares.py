"""PURE: the division of a checkpoint's files over the ranks that save it together, and their metadata as one."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gangline.domain.storage.manifest import StoredFile
from gangline.errors import conflict


def merge_files(by_rank: list[dict[str, StoredFile]]) -> dict[str, StoredFile]:
    """Returns the files of all ranks by path. Raises GanglineError `checkpoint.conflict` for a path of which two ranks
    have different content."""
    merged: dict[str, StoredFile] = {}
    for rank, files in enumerate(by_rank):
        for path, file in files.items():
            if merged.setdefault(path, file) != file:
                raise conflict(
                    "checkpoint.conflict",
                    f"rank {rank} saves another {path} than an earlier rank; give each rank files of its own",
                )
    return merged


def share_of(by_rank: list[dict[str, StoredFile]], rank: int) -> list[str]:
    """Returns the paths that a rank uploads. A file that several ranks have alike is uploaded by the first of them."""
    if len(by_rank) == 1:
        return list(by_rank[0])
    earlier = Counter(path for files in by_rank[:rank] for path in files)
    return [path for path in by_rank[rank] if not earlier[path]]


def merge_metadata(by_rank: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the metadata of all ranks. Raises GanglineError `checkpoint.conflict` for a key with two values."""
    merged: dict[str, Any] = {}
    for rank, metadata in enumerate(by_rank):
        for key, value in metadata.items():
            if merged.setdefault(key, value) != value:
                raise conflict("checkpoint.conflict", f"rank {rank} gives the metadata key {key!r} another value")
    return merged
