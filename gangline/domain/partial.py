"""PURE: what is found in the storage of a checkpoint that is being written, or was when its writer ended.

The name says whose it is, so that what an ended attempt has left behind can be told from what a running one still
writes. Where storage renames folders, the name is the folder's until it is complete; elsewhere it is that of an empty
file, beside the folder with the files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = ".partial-"
# What a gateway deletes has this name meanwhile, so that nobody takes it for something whole.
REMOVED_PREFIX = ".removed-"
_NAME = re.compile(
    r"\.(?:partial|removed)-(?P<cluster_id>\w+)-(?P<allocation_id>[1-9]\d*\.[1-9]\d*\.[1-9]\d*)-(?P<storage_id>[\w-]+)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Writer:
    """An attempt to run a trial, of one cluster: several may share a storage."""

    cluster_id: str
    allocation_id: str


@dataclass(frozen=True, slots=True)
class Partial:
    """storage_id: of the checkpoint that it was to become."""

    writer: Writer
    storage_id: str


def partial_name(writer: Writer | None, storage_id: str) -> str:
    """writer: None off the cluster, where nobody cleans up."""
    return PREFIX + _suffix(writer, storage_id)


def removed_name(partial: Partial) -> str:
    return REMOVED_PREFIX + _suffix(partial.writer, partial.storage_id)


def parse_partial(name: str) -> Partial | None:
    """None for what no attempt of a cluster wrote."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return Partial(Writer(found["cluster_id"], found["allocation_id"]), found["storage_id"])


def _suffix(writer: Writer | None, storage_id: str) -> str:
    return f"{writer.cluster_id}-{writer.allocation_id}-{storage_id}" if writer else storage_id
