"""Code archives that a client unpacks: whole, or nothing."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from gangline.client.transfer.packing import pack_code
from gangline.client.transfer.unpacking import unpack_code
from gangline.errors import GanglineError


def _archive(*members: tuple[str, bytes, bytes]) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(content), "/etc/passwd"
            tar.addfile(member, io.BytesIO(content))
    return packed


def test_what_was_packed_is_unpacked(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "net").mkdir(parents=True)
    (source / "train.py").write_text("print(1)\n")
    (source / "net" / "run.sh").write_text("#!/bin/sh\n")
    (source / "net" / "run.sh").chmod(0o755)
    payload = pack_code(source).payload
    assert unpack_code(io.BytesIO(payload), tmp_path / "target") == 19
    assert pack_code(tmp_path / "target").payload == payload
    assert os.access(tmp_path / "target" / "net" / "run.sh", os.X_OK)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../out", tarfile.REGTYPE), ("/out", tarfile.REGTYPE), ("link", tarfile.SYMTYPE), ("a", tarfile.REGTYPE)],
    ids=["above", "absolute", "link", "twice"],
)
def test_a_member_that_leads_out_of_the_folder_leaves_nothing(tmp_path: Path, name: str, kind: bytes) -> None:
    folder = tmp_path / "parent" / "target"
    with pytest.raises(GanglineError) as refusal:
        unpack_code(_archive(("a", tarfile.REGTYPE, b"x"), (name, kind, b"")), folder)
    assert refusal.value.code in ("download.path", "download.broken")
    assert list(folder.parent.iterdir()) == []
    assert not (tmp_path / "out").exists()


def test_a_torn_archive_leaves_nothing_and_a_full_folder_stays(tmp_path: Path) -> None:
    torn = _archive(("a", tarfile.REGTYPE, bytes(100_000))).getvalue()[:60]
    with pytest.raises(GanglineError, match="cannot be unpacked into"):
        unpack_code(io.BytesIO(torn), tmp_path / "target")
    assert not (tmp_path / "target").exists()
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(GanglineError, match="exists already"):
        unpack_code(_archive(("a", tarfile.REGTYPE, b"x")), tmp_path)
    assert (tmp_path / "mine").read_text() == "kept"
