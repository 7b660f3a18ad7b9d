"""Which code archives are unpacked, and what is said of the others."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.errors import ErrorKind, GanglineError
from services.common import archive as rules
from services.trial_runner import code_folder
from tests.support import hostile
from tests.support.source import ROOT


def archive(folder: Path, *members: tarfile.TarInfo) -> Path:
    path = folder / "abc.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def file(name: str, size: int = 3) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def device(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = tarfile.CHRTYPE
    return member


def test_files_are_unpacked(tmp_path: Path) -> None:
    late = file("late.txt")
    late.mtime = 1e300
    packed = archive(tmp_path, file("model.py"), file("data/a.txt"), late)
    code_folder.unpack(packed, tmp_path / "code")
    assert (tmp_path / "code/model.py").read_text() == "xxx"
    assert (tmp_path / "code/data/a.txt").read_text() == "xxx"
    assert (tmp_path / "code/late.txt").stat().st_mtime == 0


# Takes from the standard library what 3.11.4 added to it, so that this Python is as Debian 12's 3.11.2.
_UNPACK_WITHOUT_FILTERS = """
import sys, tarfile
from pathlib import Path
added = ["data_filter", "tar_filter", "fully_trusted_filter", "FilterError", "LinkOutsideDestinationError"]
for name in added:
    if hasattr(tarfile, name):
        delattr(tarfile, name)
if hasattr(tarfile.TarInfo, "replace"):
    del tarfile.TarInfo.replace
from services.trial_runner.code_folder import unpack
unpack(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_files_are_unpacked_where_tarfile_has_no_filters_as_on_debian_12(tmp_path: Path) -> None:
    pytest.importorskip("backports.tarfile", reason="installed only where a Python may lack the filters")
    packed = archive(tmp_path, file("model.py"), file("data/a.txt"))
    command = [sys.executable, "-c", _UNPACK_WITHOUT_FILTERS, str(packed), str(tmp_path / "code")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "code/data/a.txt").read_text() == "xxx"


@pytest.mark.parametrize(
    ("make", "part"), [(make, part) for make, _, part in hostile.ARCHIVES.values()], ids=hostile.ARCHIVES
)
def test_hostile_archive_is_refused_for_good_and_leaves_nothing(
    tmp_path: Path, make: Callable[[], bytes], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ErrorKind.INVALID becomes a failure that is not tried again."""
    part = part.replace("20000", "200")
    monkeypatch.setattr(rules, "MAX_FILES", 200)
    (tmp_path / "abc.tar.gz").write_bytes(make())
    (tmp_path / "inner").mkdir()
    with pytest.raises(GanglineError) as caught:
        code_folder.unpack(tmp_path / "abc.tar.gz", tmp_path / "inner" / "code")
    assert caught.value.kind is ErrorKind.INVALID
    assert part.partition(";")[0] in caught.value.message
    assert caught.value.message.endswith("; submit the experiment again")
    assert list((tmp_path / "inner").iterdir()) == []


@pytest.mark.parametrize(
    "member",
    [
        file("/etc/passwd"),
        file("../outside"),
        file("a/../../outside"),
        link("inside", "/etc/passwd"),
        link("inside", "../../outside"),
        link("inside", "../outside", tarfile.LNKTYPE),
        link("inside", "model.py"),
        device("tty"),
    ],
    ids=lambda member: f"{member.name}->{member.linkname}",
)
def test_what_leads_out_is_refused_and_leaves_nothing(tmp_path: Path, member: tarfile.TarInfo) -> None:
    target = tmp_path / "inner" / "code"
    target.parent.mkdir()
    with pytest.raises(GanglineError) as caught:
        code_folder.unpack(archive(tmp_path, file("model.py"), member), target)
    assert caught.value.code == "code.unsafe"
    assert list(target.parent.iterdir()) == []
    assert not (tmp_path / "outside").exists()


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_MB", 1)
    with pytest.raises(GanglineError, match="1 MB and more") as caught:
        code_folder.unpack(archive(tmp_path, file("big", 1 << 20), file("one more", 1)), tmp_path / "code")
    assert caught.value.code == "code.unsafe"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"not a tar at all",
        lambda content: b"",
        lambda content: content[:40] + b"\0" * 20 + content[60:],
    ],
    ids=["cut", "text", "empty", "zeros"],
)
def test_a_corrupted_archive_is_one_clear_line(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    packed = archive(tmp_path, file("model.py", 5000))
    packed.write_bytes(spoil(packed.read_bytes()))
    with pytest.raises(GanglineError) as caught:
        code_folder.unpack(packed, tmp_path / "code")
    assert caught.value.code == "code.corrupt"
    assert caught.value.message.startswith("the code archive abc is corrupt: ")
    assert "\n" not in caught.value.message
    assert not (tmp_path / "code").exists()


def test_unpacking_again_replaces_what_was_there(tmp_path: Path) -> None:
    packed = archive(tmp_path, file("model.py"))
    code_folder.unpack(packed, tmp_path / "code")
    (tmp_path / "code/left over").touch()
    code_folder.unpack(packed, tmp_path / "code")
    assert [path.name for path in (tmp_path / "code").iterdir()] == ["model.py"]


def test_an_archive_with_another_checksum_is_damaged_and_leaves_nothing(tmp_path: Path) -> None:
    """Also where the damage is no valid archive any more."""
    (tmp_path / "inner").mkdir()
    packed = archive(tmp_path, file("model.py", 5000))
    content = packed.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    # Byte 4 is the time in gzip's header, which no reader checks.
    for place in (4, len(content) // 2, len(content) - 1):
        packed.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(code_folder.Damaged):
            code_folder.unpack(packed, tmp_path / "inner" / "code", sha256)
        assert list((tmp_path / "inner").iterdir()) == []
    packed.write_bytes(content)
    code_folder.unpack(packed, tmp_path / "inner" / "code", sha256)
    assert (tmp_path / "inner" / "code" / "model.py").read_text() == "x" * 5000
