"""Packs a code folder into the archive that the gateway stores and trial runners unpack.

The same files give the same bytes on every machine (sorted, no times, no owners), so that code sent twice is stored
once. The archive has only regular files; links are followed. The client calls it before an upload.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.client.record import OnProgress, ignore_progress
from gangline.domain.limits import MAX_FILES, MAX_MB, MAX_PART_BYTES, MAX_PATH_BYTES, MB
from gangline.errors import GanglineError, invalid

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

# Links may multiply folders without a single file in them, so folders have a limit of their own.
MAX_FOLDERS = MAX_FILES
IGNORE_FILES = (".detignore", ".ganglineignore")
# Files and folders that many code folders collect and no trial needs.
ALWAYS_IGNORED = (".git/", "__pycache__/", "*.pyc", ".venv/", ".ipynb_checkpoints/")


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """The code of an experiment, packed for upload."""

    sha256: str
    payload: bytes  # a gzipped tar
    num_files: int
    num_bytes: int  # bytes of all files, unpacked


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    path: Path
    num_bytes: int
    is_executable: bool


def pack_code(folder: Path, on_progress: OnProgress = ignore_progress) -> CodeArchive:
    """Packs a folder. on_progress: told of bytes before compression.

    Raises GanglineError: code.no_folder, code.too_big, code.too_many, code.long_path, code.unreadable, code.link_loop.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise invalid("code.no_folder", f"the code folder {folder} {what}; give the folder that holds the trial")
    files = sorted(_walk(folder, "", _Rules(folder), ()), key=lambda file: file.name)
    _check_size(folder, files)
    payload = _pack(files, on_progress)
    num_bytes = sum(file.num_bytes for file in files)
    return CodeArchive(hashlib.sha256(payload).hexdigest(), payload, len(files), num_bytes)


def pack_nothing() -> CodeArchive:
    """Packs the code of a task that brings none."""
    payload = _pack([], ignore_progress)
    return CodeArchive(hashlib.sha256(payload).hexdigest(), payload, 0, 0)


class _Rules:
    """Decides which files are left out, and ends the walk with an error when it meets too many files or folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ignored = _load_ignored(folder)
        self._num_folders = 0
        self._num_files = 0

    def ignores(self, name: str) -> bool:
        """Returns whether the name is ignored. name: below the folder; a folder's name ends with a slash."""
        return self._ignored.match_file(name)

    def enter(self) -> None:
        """Counts a folder whose content is read."""
        self._num_folders += 1
        if self._num_folders > MAX_FOLDERS:
            raise self._too_many(f"{MAX_FOLDERS} folders")

    def take(self, name: str) -> None:
        """Counts a file that goes into the archive, and checks the length of its path."""
        self._num_files += 1
        if self._num_files > MAX_FILES:
            raise self._too_many(f"{MAX_FILES} files")
        is_long = any(len(os.fsencode(part)) > MAX_PART_BYTES for part in name.split("/"))
        if is_long or len(os.fsencode(name)) > MAX_PATH_BYTES:
            raise invalid(
                "code.long_path",
                f"{name} has a path of more than {MAX_PATH_BYTES} bytes, or a part of more than {MAX_PART_BYTES}; "
                "shorten it or list it in an ignore file",
            )

    def _too_many(self, limit: str) -> GanglineError:
        return invalid(
            "code.too_many",
            f"the code folder {self._folder} holds more than {limit}, also through links; list what the trial does not "
            f"need in {self._folder / '.ganglineignore'}",
        )


def _load_ignored(folder: Path) -> GitIgnoreSpec:
    lines = list(ALWAYS_IGNORED)
    for name in IGNORE_FILES:
        path = folder / name
        if path.is_file():
            lines += path.read_text("utf-8").splitlines()
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - only a submit needs it, and it takes long to load

    return GitIgnoreSpec.from_lines(lines)


def _walk(folder: Path, prefix: str, rules: _Rules, above: tuple[Path, ...]) -> Iterator[_File]:
    real = folder.resolve()
    # Links are followed, so a link to a folder above would never end.
    if real in above:
        raise invalid(
            "code.link_loop", f"{folder} is a link to a folder around it; remove it or list it in an ignore file"
        )
    rules.enter()
    with _readable(folder):
        paths = list(folder.iterdir())
    for path in paths:
        name = prefix + path.name
        is_folder = path.is_dir()
        if rules.ignores(name + "/" if is_folder else name):
            continue
        if is_folder:
            yield from _walk(path, name + "/", rules, (*above, real))
        elif (file := _describe(path, name)) is not None:
            rules.take(name)
            yield file


def _describe(path: Path, name: str) -> _File | None:
    """Returns None for sockets, pipes and devices."""
    with _readable(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return None
    return _File(name, path, status.st_size, bool(status.st_mode & stat.S_IXUSR))


def _check_size(folder: Path, files: list[_File]) -> None:
    total = sum(file.num_bytes for file in files)
    if total <= MAX_MB * MB:
        return
    largest = sorted(files, key=lambda file: -file.num_bytes)[:3]
    listed = ", ".join(f"{file.name} {file.num_bytes / MB:.1f} MB" for file in largest)
    raise invalid(
        "code.too_big",
        f"the code folder {folder} holds {total / MB:.1f} MB, above the limit of {MAX_MB} MB; the largest are "
        f"{listed}; list what the trial does not need in {folder / '.ganglineignore'}",
    )


def _pack(files: list[_File], on_progress: OnProgress) -> bytes:
    packed = io.BytesIO()
    num_bytes, total_bytes = 0, sum(file.num_bytes for file in files)
    # Without a file name and with mtime 0 the gzip header is always the same.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=6, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for file in files:
            _add(tar, file)
            num_bytes += file.num_bytes
            on_progress("packing", num_bytes, total_bytes)
    return packed.getvalue()


def _add(tar: tarfile.TarFile, file: _File) -> None:
    with _readable(file.path):
        content = file.path.read_bytes()
    entry = tarfile.TarInfo(file.name)
    entry.size = len(content)
    # Only the executable bit is kept, so that equal files give equal bytes under any umask.
    entry.mode = 0o755 if file.is_executable else 0o644
    tar.addfile(entry, io.BytesIO(content))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns an OSError on a path into a one-line error for the user."""
    try:
        yield
    except OSError as failure:
        raise invalid(
            "code.unreadable",
            f"cannot read {path}: {failure.strerror}; repair it or list it in an ignore file",
        ) from failure
