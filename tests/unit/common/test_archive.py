"""Which code archives are accepted."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.domain.limits import MB
from gangline.errors import GanglineError
from services.common import archive, archive_judge
from services.common.archive import judge
from services.common.archive_judge import judge_archive
from tests.support import hostile
from tests.support.gateway import pack
from tests.support.work import calls_of


def write(folder: Path, content: bytes) -> Path:
    path = folder / "code.tar.gz"
    path.write_bytes(content)
    return path


def refused(folder: Path, content: bytes) -> GanglineError:
    with pytest.raises(GanglineError) as failure:
        judge(write(folder, content))
    return failure.value


def with_member(name: str, kind: bytes, target: str = "") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as writing:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        writing.addfile(member)
    return packed.getvalue()


def test_plain_folder_passes(tmp_path: Path) -> None:
    judge(write(tmp_path, pack({"model_def.py": b"x", "deep/er/file.txt": b"y" * 100_000})))


def test_long_name_and_a_time_that_no_file_has_pass(tmp_path: Path) -> None:
    headers = hostile.record("path", f"{'deep/' * 20}{'n' * 100}") + hostile.record("mtime", "1e300")
    judge(write(tmp_path, hostile.packed(hostile.pax(headers), hostile.plain())))


@pytest.mark.parametrize(("make", "code", "part"), hostile.ARCHIVES.values(), ids=hostile.ARCHIVES)
def test_hostile_archive_is_refused_with_little_work(
    tmp_path: Path, make: Callable[[], bytes], code: str, part: str
) -> None:
    errors = []
    content = make()
    assert calls_of(lambda: errors.append(refused(tmp_path, content))) < 6_000_000
    (error,) = errors
    assert error.code == code
    assert part in error.message


async def test_judge_of_its_own_says_the_same(tmp_path: Path) -> None:
    await judge_archive(write(tmp_path, pack({"model_def.py": b"x"})))
    with pytest.raises(GanglineError) as failure:
        await judge_archive(write(tmp_path, pack({"../up": b"x"})))
    assert (failure.value.code, failure.value.message) == (
        "code.unsafe_path",
        "the code archive holds '../up', which does not stay inside the code folder; leave it out",
    )


@pytest.mark.parametrize(
    ("program", "code", "part"),
    [
        (
            "import services.common.archive as a; a.judge = lambda _: [None for _ in iter(int, 1)]",
            "code.too_big",
            "1 s of",
        ),
        ("import services.common.archive as a; a.judge = lambda _: bytearray(8 << 30)", "code.too_big", "memory"),
        ("import os; os._exit(3)", "code.not_judged", "exit code 3"),
    ],
    ids=["time", "memory", "crash"],
)
async def test_reader_that_takes_too_much_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, code: str, part: str
) -> None:
    """The limits hold whatever an archive makes its reader do."""
    (tmp_path / "reader.py").write_text(f"{program}\na.CPU_SECONDS = 1\na._main()\n")
    monkeypatch.setattr(archive_judge, "_PROGRAM", "reader")
    monkeypatch.setattr(archive_judge, "_ROOT", f"{tmp_path}{os.pathsep}{archive_judge._ROOT}")
    monkeypatch.setattr(archive_judge, "CPU_SECONDS", 1)
    with pytest.raises(GanglineError) as failure:
        await judge_archive(write(tmp_path, pack({"model_def.py": b"x"})))
    assert failure.value.code == code
    assert part in failure.value.message


def test_empty_folder_passes(tmp_path: Path) -> None:
    judge(write(tmp_path, pack({})))


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
    monkeypatch.setattr(archive, "MAX_MB", 1)
    judge(write(tmp_path, pack({"a": b"x" * MB})))
    assert refused(tmp_path, pack({"a": b"x" * MB, "b": b"x"})).code == "code.too_big"


def test_stream_that_unpacks_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_STREAM_BYTES", 4 * MB)
    bomb = gzip.compress(gzip.decompress(pack({"a": b"x"})) + bytes(20 * MB))
    assert refused(tmp_path, bomb).code == "code.too_big"
