"""PURE: the document in a checkpoint's metadata.json, with the caller's metadata and the manifest that describes the
files.

Owns its format and the digest that it holds of itself. Checkpoints of earlier versions have no digest and are read
without that check. Called by gangline.core.storage_access.storage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gangline.domain.storage.storage_url import check_file_inside
from gangline.errors import GanglineError, invalid

MANIFEST_KEY = "manifest"
# Documents with a higher format are refused, because a newer version of Gangline wrote them.
MANIFEST_FORMAT = 1
_FORMAT, _FILES, _DIGEST = "format", "files", "document_sha256"
_FILE_TYPES = {"bytes": int, "sha256": str}


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The manifest's entry for one file."""

    bytes: int
    sha256: str


def write_document(metadata: Mapping[str, Any], files: Mapping[str, StoredFile]) -> bytes:
    """Returns the bytes of metadata.json. Raises GanglineError `checkpoint.metadata` for values that JSON does not
    have."""
    odd = find_unwritable(metadata)
    if odd is not None:
        raise invalid(
            "checkpoint.metadata",
            f"the checkpoint's metadata cannot be written: {odd}; give numbers, strings, lists and dictionaries",
        )
    manifest = {_FORMAT: MANIFEST_FORMAT, _FILES: {path: asdict(file) for path, file in files.items()}}
    # The digest covers the document as it will be read back, in which every key is a string.
    document = json.loads(json.dumps({**metadata, MANIFEST_KEY: manifest}))
    document[MANIFEST_KEY][_DIGEST] = _digest_of(document)
    return json.dumps(document, indent=2, sort_keys=True).encode()


def read_document(content: bytes, place: str) -> dict[str, Any]:
    """Parses and checks the bytes of metadata.json. place: its name in errors. Raises GanglineError
    `checkpoint.corrupt`, or `checkpoint.newer_format`."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _corrupt(place, f"is no JSON: {error}") from None
    manifest = document.get(MANIFEST_KEY) if isinstance(document, dict) else None
    if not isinstance(manifest, dict):
        raise _corrupt(place, "has no manifest")
    _check_format(manifest, place)
    digest = manifest.get(_DIGEST)
    if digest is not None and digest != _digest_of(document):
        raise _corrupt(place, "differs from what was saved")
    _check_entries(manifest, place)
    checked_document: dict[str, Any] = document
    return checked_document


def files_of(document: Mapping[str, Any]) -> dict[str, StoredFile]:
    """Returns the files of a document that `read_document` returned, by path."""
    return {path: StoredFile(**entry) for path, entry in document[MANIFEST_KEY][_FILES].items()}


def find_unwritable(values: Mapping[str, Any]) -> str | None:
    """Returns the first value that JSON cannot hold, as "optimizer.lr is a PosixPath"; None where there is none."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            inner = find_unwritable(value)
            if inner is not None:
                return f"{key}.{inner}"
        else:
            try:
                json.dumps(value)
            except (TypeError, ValueError, RecursionError) as error:
                is_list = isinstance(value, list | tuple)
                return f"{key}: {error}" if is_list else f"{key} is a {type(value).__name__}"
    return None


def _digest_of(document: Mapping[str, Any]) -> str:
    """Hashes all of the document but the digest itself, independent of the document's layout as text."""
    manifest = {key: value for key, value in document[MANIFEST_KEY].items() if key != _DIGEST}
    text = json.dumps({**document, MANIFEST_KEY: manifest}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_format(manifest: Mapping[str, Any], place: str) -> None:
    format_number = manifest.get(_FORMAT)
    if type(format_number) is not int:
        raise _corrupt(place, "has a manifest without a format")
    if format_number > MANIFEST_FORMAT:
        raise _newer(
            f"the checkpoint has format {format_number}, this version of Gangline reads up to {MANIFEST_FORMAT}"
        )


def _check_entries(manifest: Mapping[str, Any], place: str) -> None:
    files = manifest.get(_FILES)
    unknown = sorted(manifest.keys() - {_FORMAT, _FILES, _DIGEST})
    if unknown:
        raise _newer(
            f"the manifest in {place} has the key {unknown[0]!r}, which this version of Gangline does not know"
        )
    if not isinstance(files, dict):
        raise _corrupt(place, "names no files")
    for path, entry in files.items():
        if not isinstance(entry, dict):
            raise _corrupt(place, f"does not describe {path}")
        try:
            check_file_inside(path)
        except GanglineError as error:
            raise _corrupt(place, error.message) from None
        unknown = sorted(entry.keys() - _FILE_TYPES.keys())
        if unknown:
            text = f"{place} describes {path} by {unknown[0]!r}, which this version of Gangline does not know"
            raise _newer(text)
        if any(type(entry.get(key)) is not value_type for key, value_type in _FILE_TYPES.items()):
            raise _corrupt(place, f"does not describe {path}")


def _newer(text: str) -> GanglineError:
    return invalid("checkpoint.newer_format", f"{text}; use a newer one")


def _corrupt(place: str, what: str) -> GanglineError:
    return invalid("checkpoint.corrupt", f"{place} {what}; use another checkpoint")
