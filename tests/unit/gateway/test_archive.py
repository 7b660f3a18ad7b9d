"""Which code archives are accepted."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from gangline.errors import GanglineError
from services.gateway import archive
from services.gateway.archive import check_archive
from tests.support.gateway import pack


def write(folder: Path, content: bytes) -> Path:
    path = folder / "code.tar.gz"
    path.write_bytes(content)
    return path


def refused(folder: Path, content: bytes) -> GanglineError:
    with pytest.raises(GanglineError) as failure:
        check_archive(write(folder, content))
    return failure.value


def with_member(name: str, kind: bytes, target: str = "") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as writing:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        writing.addfile(member)
    return packed.getvalue()


def test_plain_folder_passes(tmp_path: Path) -> None:
    check_archive(write(tmp_path, pack({"model_def.py": b"x", "deep/er/file.txt": b"y" * 100_000})))


def test_link_within_the_folder_passes(tmp_path: Path) -> None:
    check_archive(write(tmp_path, with_member("deep/link", tarfile.SYMTYPE, "../model_def.py")))


def test_empty_folder_passes(tmp_path: Path) -> None:
    check_archive(write(tmp_path, pack({})))


@pytest.mark.parametrize("kept", [0, 1, 9, 60, -1, -8])
def test_truncated_archive_is_damaged(tmp_path: Path, kept: int) -> None:
    content = pack({"model_def.py": bytes(range(256)) * 50})
    assert refused(tmp_path, content[:kept]).code == "code.corrupt"


@pytest.mark.parametrize("place", [12, 40, -6])
def test_flipped_byte_is_damage(tmp_path: Path, place: int) -> None:
    content = bytearray(pack({"model_def.py": bytes(range(256)) * 50}))
    content[place] ^= 0xFF
    assert refused(tmp_path, bytes(content)).code == "code.corrupt"


@pytest.mark.parametrize("content", [b"", b"hello", gzip.compress(b"no tar" * 200, mtime=0)])
def test_what_is_no_gzipped_tar_is_damaged(tmp_path: Path, content: bytes) -> None:
    assert refused(tmp_path, content).code == "code.corrupt"


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "a/../../outside", ".."])
def test_path_outside_is_refused_by_name(tmp_path: Path, name: str) -> None:
    error = refused(tmp_path, pack({name: b"x"}))
    assert error.code == "code.unsafe_path"
    assert name in error.message


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.SYMTYPE, "../../outside"),
        (tarfile.LNKTYPE, "../outside"),
        (tarfile.CHRTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_member_that_leads_outside_is_refused(tmp_path: Path, kind: bytes, target: str) -> None:
    assert refused(tmp_path, with_member("inside", kind, target)).code == "code.unsafe_path"


def test_exactly_the_limit_passes_and_one_byte_more_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_UNPACKED_MB", 1)
    check_archive(write(tmp_path, pack({"a": b"x" * archive.MB})))
    error = refused(tmp_path, pack({"a": b"x" * archive.MB, "b": b"x"}))
    assert error.code == "code.too_big"
    assert "at most 1 MB" in error.message


def test_stream_that_unpacks_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_STREAM_BYTES", 4 * archive.MB)
    bomb = gzip.compress(gzip.decompress(pack({"a": b"x"})) + bytes(20 * archive.MB))
    assert refused(tmp_path, bomb).code == "code.too_big"
