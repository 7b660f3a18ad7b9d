"""PURE: the rules for a checkpoint's folder that a user imports: its files, its metadata and its id.

The client describes a folder by them before it sends anything, and the gateway checks them again. The id is a digest
of files and metadata, so the same folder is the same checkpoint on every try.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gangline.domain.document import check_document
from gangline.domain.experiment import METADATA_FILE, STEPS_COMPLETED
from gangline.domain.storage.foreign_checkpoint import (
    DETERMINED,
    STATE_FORMAT_KEY,
    TRIAL_ID,
    DeterminedState,
    ReadFile,
    describe_determined,
    is_of_determined,
    mark_foreign,
    read_metadata_file,
)
from gangline.domain.storage.manifest import MANIFEST_KEY, StoredFile, files_of, read_document
from gangline.errors import invalid

IMPORTED_KEY = "imported"
# The record of a checkpoint names its files, and etcd takes 512,000 bytes in one transaction.
MOST_FILES = 5_000
MOST_PATH_BYTES = 250_000
MOST_METADATA_BYTES = 100_000
MOST_NAME = 200
_SHA256 = re.compile(r"[0-9a-f]{64}")
# A UUID of version 8, which is for digests.
_IMPORT_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """One file of the folder."""

    path: str  # path inside the folder, with slashes
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """Describes what is sent of a folder."""

    metadata: dict[str, Any]  # metadata of the checkpoint
    paths: tuple[str, ...]  # paths of the files, sorted
    expected: Mapping[str, StoredFile]  # sizes and digests that the folder's own manifest gives; empty without one
    has_state: bool = False  # whether it has a state_dict.pth of Determined, whose archive can be tested


def plan_folder(read: ReadFile, paths: list[str], state_file: str) -> FolderPlan:
    """Decides what a folder is: a checkpoint of Gangline, of Determined's trainer, or of a script with the Core API.

    paths: of all its files. Raises GanglineError `checkpoint.not_one` for none of them, and `checkpoint.corrupt`.
    """
    content = read(METADATA_FILE)
    others = tuple(sorted(path for path in paths if path != METADATA_FILE))
    if content is not None and f'"{MANIFEST_KEY}"'.encode() in content:
        document = read_document(content, METADATA_FILE)
        expected = files_of(document)
        metadata = {key: value for key, value in document.items() if key != MANIFEST_KEY}
        metadata[TRIAL_ID] = mark_foreign(str(metadata.get(TRIAL_ID) or ""))
        return FolderPlan({**metadata, IMPORTED_KEY: "gangline"}, tuple(sorted(expected)), expected)
    written = read_metadata_file(read)
    if is_of_determined(written, has_state=state_file in paths):
        return FolderPlan(_determined_metadata(written or {}, describe_determined(read)), others, {}, has_state=True)
    if written is None:
        raise invalid(
            "checkpoint.not_one",
            f"the folder has neither {METADATA_FILE} nor {state_file}, so it is no checkpoint; give the folder of one, "
            "as `det checkpoint download` writes it",
        )
    metadata = {**written, IMPORTED_KEY: "core"}
    if TRIAL_ID in written:
        metadata[TRIAL_ID] = mark_foreign(str(written[TRIAL_ID]))
    return FolderPlan(metadata, others, {})


def _determined_metadata(written: Mapping[str, Any], described: DeterminedState) -> dict[str, Any]:
    return {
        **written,
        STEPS_COMPLETED: described.batches,
        STATE_FORMAT_KEY: DETERMINED,
        TRIAL_ID: mark_foreign(described.trial_id),
        "hparams": dict(described.hparams),
        IMPORTED_KEY: DETERMINED,
    }


def check_import(name: str, metadata_json: str, files: list[ImportedFile]) -> None:
    """Raises GanglineError `checkpoint.import`, `checkpoint.path` or `document.invalid` for what cannot be stored."""
    if not name or len(name) > MOST_NAME or not name.isprintable():
        raise invalid("checkpoint.import", f"give a name of 1 to {MOST_NAME} printable characters: --name NAME")
    num_bytes = len(metadata_json.encode())
    if num_bytes > MOST_METADATA_BYTES:
        raise invalid(
            "checkpoint.import",
            f"the metadata has {num_bytes} bytes, at most {MOST_METADATA_BYTES} can be stored; move what is large from "
            f"{METADATA_FILE} into a file of the checkpoint",
        )
    check_document(metadata_json, "the checkpoint's metadata")
    length = sum(len(file.path.encode(errors="replace")) for file in files)
    if len(files) > MOST_FILES or length > MOST_PATH_BYTES:
        raise invalid(
            "checkpoint.import",
            f"the folder has {len(files)} files with paths of {length} bytes together, at most {MOST_FILES} files and "
            f"{MOST_PATH_BYTES} bytes can be stored; pack its small files into an archive",
        )
    folders = {"/".join(parts[:depth]) for parts in _parts_of(files) for depth in range(1, len(parts))}
    seen: set[str] = set()
    for file in files:
        if file.path in seen or file.path in folders:
            raise invalid("checkpoint.path", f"the folder names {file.path!r} twice")
        seen.add(file.path)
        if file.bytes < 0 or not _SHA256.fullmatch(file.sha256):
            raise invalid("checkpoint.import", f"{file.path!r} is described by no size and sha256")


def _parts_of(files: list[ImportedFile]) -> list[list[str]]:
    """Splits the paths. Raises GanglineError `checkpoint.path` for one that names no file inside the folder."""
    for file in files:
        check_path(file.path)
    return [file.path.split("/") for file in files]


def check_path(path: str) -> None:
    """Raises GanglineError `checkpoint.path` unless the path is relative, plain and printable."""
    parts = path.split("/")
    if (
        path == METADATA_FILE
        or "\\" in path
        or not path.isprintable()
        or any(part in ("", ".", "..") or part.startswith((".partial-", ".removed-")) for part in parts)
        or any(len(part.encode()) > 255 for part in parts)
    ):
        raise invalid("checkpoint.path", f"{path!r:.200} cannot be the path of a file in a checkpoint; rename it")


def import_id(metadata_json: str, files: list[ImportedFile]) -> str:
    """Returns the checkpoint's id, in the form of a UUID, from its content."""
    described = sorted((file.path, file.bytes, file.sha256) for file in files)
    text = json.dumps([json.loads(metadata_json), described], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-8{digest[12:15]}-8{digest[15:18]}-{digest[18:30]}"


def is_import_id(text: str) -> bool:
    """Whether an id has the form of an import's. No trial makes such ids: its own are random UUIDs, of version 4."""
    return _IMPORT_ID.fullmatch(text) is not None


def steps_of(metadata: Mapping[str, Any]) -> int:
    steps = metadata.get(STEPS_COMPLETED)
    return steps if type(steps) is int and 0 <= steps < 2**53 else 0
