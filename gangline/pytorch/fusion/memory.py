"""Storage for records of tuning: the cluster, or off the cluster a folder of this user.

Only the chief uses it, and sends the results to the other ranks. A record that cannot be read or written never fails a
training: it counts as absent.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from gangline.core.link import Link
from gangline.domain.fusion import FusionRecord
from gangline.protocol.wire import from_proto, to_proto

FOLDER_KEY = "GANGLINE_FUSION_DIR"
# The runner answers sooner than this, even when it finds no scheduler.
_ANSWER_SECONDS = 10.0
_log = logging.getLogger("gangline")


class FusionMemory(Protocol):
    def find(self, family: str) -> list[FusionRecord]:
        """Returns all records of a family; none when the memory does not answer."""
        ...

    def keep(self, record: FusionRecord) -> None:
        """Stores the record, in place of one of the same key."""
        ...

    def forget(self, key: str) -> None: ...


class FolderMemory:
    """Stores one file for each record. Invariant: a file is replaced as a whole, so trials may share the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, family: str) -> list[FusionRecord]:
        records = (_load(path) for path in sorted(self._folder.glob(f"{family}-*.json")))
        return [record for record in records if record is not None]

    def keep(self, record: FusionRecord) -> None:
        path = self._folder / f"{record.key}.json"
        temporary = path.with_suffix(f".{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(asdict(record), indent=1))
            temporary.replace(path)
        except OSError as error:
            _log.warning("fusion: the record is not kept: %s", error)

    def forget(self, key: str) -> None:
        try:
            (self._folder / f"{key}.json").unlink(missing_ok=True)
        except OSError as error:
            _log.warning("fusion: the record is not forgotten: %s", error)


class ClusterMemory:
    """Stores records in the scheduler, for all trials of the cluster; the trial runner forwards every call."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def find(self, family: str) -> list[FusionRecord]:
        return [from_proto(FusionRecord, message) for message in self._link.find_fusion(family, _ANSWER_SECONDS)]

    def keep(self, record: FusionRecord) -> None:
        self._link.send_fusion(to_proto(record))

    def forget(self, key: str) -> None:
        self._link.forget_fusion(key)


def local_memory(environment: Mapping[str, str]) -> FolderMemory:
    """Returns the memory at GANGLINE_FUSION_DIR, else in the user's cache."""
    if FOLDER_KEY in environment:
        return FolderMemory(Path(environment[FOLDER_KEY]))
    cache = environment.get("XDG_CACHE_HOME")
    return FolderMemory((Path(cache) if cache else Path.home() / ".cache") / "gangline" / "fusion")


def record_from(values: Mapping[str, Any]) -> FusionRecord:
    """Builds a record from plain values, as asdict returns them. Raises TypeError for another version's."""
    return FusionRecord(**{**values, "bucket_bytes": tuple(values["bucket_bytes"])})


def _load(path: Path) -> FusionRecord | None:
    try:
        return record_from(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        _log.warning("fusion: %s is no record: %s", path, error)
        return None
