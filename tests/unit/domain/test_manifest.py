"""The content of a checkpoint's metadata.json, and which of it a reader accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gangline.domain.storage.manifest import StoredFile, files_of, read_document, write_document
from gangline.errors import GanglineError

_FILES = {"tensors/__0_0.distcp": StoredFile(7, "ab" * 32), "trainer.pth": StoredFile(4, "cd" * 32)}


def _document(**changes: Any) -> dict[str, Any]:
    document = json.loads(write_document({"steps_completed": 4, "hparams": {"lr": 0.1}}, _FILES))
    return {**document, **changes}


def _read(document: Any) -> dict[str, Any]:
    return read_document(json.dumps(document).encode(), "/c/metadata.json")


def test_what_was_written_is_read() -> None:
    document = _read(_document())
    assert (document["steps_completed"], document["hparams"]) == (4, {"lr": 0.1})
    assert files_of(document) == _FILES


def test_checkpoints_of_earlier_versions_have_no_digest() -> None:
    document = _document()
    del document["manifest"]["document_sha256"]
    assert files_of(_read(document)) == _FILES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "/c/metadata.json is no JSON: Expecting value: line 1 column 1 (char 0); use another checkpoint"),
        (b'{"steps_com', "/c/metadata.json is no JSON: Unterminated string"),
        (b"\xff\xfe\xff", "/c/metadata.json is no JSON: "),
        (b"[" * 100_000, "/c/metadata.json is no JSON: "),
        (b"[]", "/c/metadata.json has no manifest; use another checkpoint"),
        (b"{}", "/c/metadata.json has no manifest; use another checkpoint"),
        (b'{"manifest": {}}', "/c/metadata.json has a manifest without a format; use another checkpoint"),
        (b'{"manifest": {"format": 1}}', "/c/metadata.json names no files; use another checkpoint"),
        (
            b'{"manifest": {"format": 1, "files": {"a": {"bytes": 1}}}}',
            "/c/metadata.json does not describe a; use another checkpoint",
        ),
        (
            b'{"manifest": {"format": 1, "files": {"a": {"bytes": 1, "sha256": "", "crc": 1}}}}',
            "/c/metadata.json describes a by 'crc', which this version of Gangline does not know; use a newer one",
        ),
        (
            b'{"manifest": {"format": 1, "files": {}, "parts": 2}}',
            "the manifest in /c/metadata.json has the key 'parts', which this version of Gangline does not know; use a",
        ),
        (
            b'{"manifest": {"format": 2}}',
            "the checkpoint has format 2, this version of Gangline reads up to 1; use a newer one",
        ),
    ],
)
def test_what_cannot_be_believed_is_told_in_one_line(content: bytes, message: str) -> None:
    with pytest.raises(GanglineError) as caught:
        read_document(content, "/c/metadata.json")
    assert caught.value.message.startswith(message)
    assert "\n" not in caught.value.message


def test_changed_values_are_noticed() -> None:
    with pytest.raises(GanglineError, match="differs from what was saved; use another checkpoint"):
        _read(_document(steps_completed=5))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"a": {"b": Path("/data")}}, "cannot be written: a.b is a PosixPath; give numbers"),
        ({"a": [1, Path("/data")]}, "cannot be written: a: Object of type PosixPath is not JSON serializable; give"),
    ],
)
def test_metadata_that_is_no_json_is_refused(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(GanglineError, match=message) as caught:
        write_document(metadata, {})
    assert caught.value.code == "checkpoint.metadata"
