"""PURE: where Determined's client looks for the files of a checkpoint."""

from __future__ import annotations

from services.gateway.determined.call import Json


def with_storage(config: Json, folder: str = "") -> Json:
    """Returns the configuration with a storage of Determined's kinds.

    folder: of checkpoints, where it is a plain one. A client that sees it copies from there; any other one asks us for
    the files.
    """
    storage = {**(config.get("checkpoint_storage") or {}), "type": "directory", "container_path": folder or "/"}
    return {**config, "checkpoint_storage": storage}
