"""PURE: names for the files of a checkpoint that is being written, or whose writer ended before it was complete.

The name contains the writer. So the files that an ended attempt has left behind can be told from those that a running
attempt still writes. Where storage renames folders, the folder has this name until it is complete. Elsewhere an empty
file beside the folder has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = ".partial-"
# A gateway gives this name to files while it deletes them, so that no reader takes them for a complete checkpoint.
REMOVED_PREFIX = ".removed-"
_NAME = re.compile(
    r"\.(?:partial|removed)-(?P<cluster_id>\w+)-(?P<allocation_id>[1-9]\d*\.[1-9]\d*\.[1-9]\d*)-(?P<storage_id>[\w-]+)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Writer:
    """An attempt to run a trial, with its cluster, because several clusters may share a storage."""

    cluster_id: str
    allocation_id: str


@dataclass(frozen=True, slots=True)
class Partial:
    """An unfinished checkpoint."""

    writer: Writer
    storage_id: str  # id of the checkpoint that it was to become


def partial_name(writer: Writer | None, storage_id: str) -> str:
    """Returns the name of an unfinished checkpoint. writer: None off the cluster, where no gateway cleans up."""
    return PREFIX + _suffix(writer, storage_id)


def removed_name(partial: Partial) -> str:
    return REMOVED_PREFIX + _suffix(partial.writer, partial.storage_id)


def parse_partial(name: str) -> Partial | None:
    """Returns the unfinished checkpoint of a name; None for a name that no attempt of a cluster wrote."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return Partial(Writer(match["cluster_id"], match["allocation_id"]), match["storage_id"])


def _suffix(writer: Writer | None, storage_id: str) -> str:
    return f"{writer.cluster_id}-{writer.allocation_id}-{storage_id}" if writer else storage_id
