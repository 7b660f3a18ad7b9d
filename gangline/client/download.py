"""Writes downloaded files into a folder: those of a checkpoint whole or not at all, those for TensorBoard as they grow.

It refuses paths that lead out of the folder, so that a broken checkpoint cannot overwrite other files. Called by the
client's download_checkpoint and download_tensorboard.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.v1 import gateway_pb2


def check_target(folder: Path) -> None:
    """Raises GanglineError `download.exists` when the folder exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise invalid("download.exists", f"{folder} exists already; give a folder that is new or empty")


def write_files(
    chunks: Iterable[gateway_pb2.DownloadCheckpointResponse], folder: Path, on_bytes: Callable[[int, int], None]
) -> int:
    """Writes the files and returns the number of bytes. The folder appears under its name once every file is complete.

    on_bytes: called with the bytes that are there, and with all bytes; 0 where the gateway is too old to tell them.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        num_bytes = _write(chunks, part, on_bytes)
        if folder.exists():
            folder.rmdir()
        # mkdtemp makes the folder 0700; the finished one gets usual rights.
        part.chmod(0o755)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return num_bytes


def list_sizes(folder: Path) -> dict[str, int]:
    """Returns the bytes of each file below a folder, by its path below it; none if the folder does not exist."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def append_files(messages: Iterable[gateway_pb2.DownloadTensorboardResponse], folder: Path) -> int:
    """Writes each file from its offset on, and returns the number of bytes. A file that is sent whole replaces the
    former one."""
    num_bytes = 0
    with contextlib.ExitStack() as open_file:
        file: BinaryIO | None = None
        for message in messages:
            if message.path:
                open_file.close()
                file = open_file.enter_context(_open_at(folder, message.path, message.offset))
            if file is None:
                raise GanglineError("download.broken", "the gateway sent data without a file name", ErrorKind.INTERNAL)
            num_bytes += file.write(message.chunk)
    return num_bytes


def _open_at(folder: Path, name: str, offset: int) -> BinaryIO:
    target = _place(folder, name)
    if not offset:
        return target.open("wb")
    file = target.open("r+b")
    file.seek(offset)
    return file


def _write(
    chunks: Iterable[gateway_pb2.DownloadCheckpointResponse], part: Path, on_bytes: Callable[[int, int], None]
) -> int:
    file: BinaryIO | None = None
    num_bytes, total_bytes = 0, 0
    try:
        for message in chunks:
            if message.path:
                if file is not None:
                    file.close()
                file = _create(part, message.path)
            if file is None:
                raise GanglineError("download.broken", "the gateway sent data without a file name", ErrorKind.INTERNAL)
            num_bytes += file.write(message.chunk)
            total_bytes = message.total_bytes or total_bytes
            on_bytes(min(num_bytes, total_bytes or num_bytes), total_bytes)
    finally:
        if file is not None:
            file.close()
    return num_bytes


def _create(part: Path, name: str) -> BinaryIO:
    return _place(part, name).open("wb")


def _place(folder: Path, name: str) -> Path:
    """Returns the file's place, and makes its folder. Raises GanglineError `download.path`."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise invalid("download.path", f"the gateway names a file {name!r}, which lies outside its folder")
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
