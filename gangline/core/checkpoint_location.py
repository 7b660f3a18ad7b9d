"""The place of a checkpoint that a user names: the URL of its storage, and its id.

Opens nothing. Called by the Core API and by the Trainer, wherever a checkpoint is given.
"""

from __future__ import annotations

from typing import Any

from gangline.cluster_info import CheckpointInfo
from gangline.core.storage_access.storage import checkpoint_url
from gangline.domain.storage.storage_url import check_storage_url
from gangline.errors import invalid


def location_of(checkpoint: Any, storage_url: str) -> tuple[str, str]:
    """Returns the storage URL and the id for a checkpoint that a user names by its id, by the path or URL of its
    folder, or by an object that has its id: get_cluster_info().latest_checkpoint, or a checkpoint of the SDK.

    Raises GanglineError `checkpoint.location`, `storage.url`, `storage.chain` or `storage.protocol`, before anything is
    opened.
    """
    checkpoint = _name_of(checkpoint)
    if "/" not in checkpoint:
        return storage_url, checkpoint
    check_storage_url(checkpoint, storage_url)
    head, _, storage_id = checkpoint.rstrip("/").rpartition("/")
    root, separator, name = head.rpartition("/")
    if name != "checkpoints" or not separator:
        raise invalid(
            "checkpoint.location",
            f"{checkpoint!r} is no checkpoint: give its id, or its folder as in {checkpoint_url(storage_url, 'ID')}",
        )
    return root, storage_id


def _name_of(checkpoint: Any) -> str:
    """Returns the id or URL of a checkpoint that a user has named."""
    if isinstance(checkpoint, CheckpointInfo):
        return checkpoint.url
    names = [checkpoint, getattr(checkpoint, "uuid", None), getattr(checkpoint, "id", None)]
    found = next((name for name in names if isinstance(name, str)), None)
    if not found:
        raise invalid(
            "checkpoint.location",
            "a checkpoint is named by its id, as in restore_path(info.latest_checkpoint) after a look whether there is "
            f"one; this is a {type(checkpoint).__name__}: {checkpoint!r:.100}",
        )
    return found
