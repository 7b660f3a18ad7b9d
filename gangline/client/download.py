"""Writes the files of a checkpoint, as they arrive, into a folder: whole or not at all.

It refuses paths that lead out of the folder, so that a broken checkpoint cannot overwrite other files. Called by the
client's download_checkpoint.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.v1 import gateway_pb2


def check_target(folder: Path) -> None:
    """Raises GanglineError `download.exists` when the folder exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise invalid("download.exists", f"{folder} exists already; give a folder that is new or empty")


def write_files(chunks: Iterable[gateway_pb2.DownloadCheckpointResponse], folder: Path) -> int:
    """Writes the files and returns the number of bytes. The folder appears under its name once every file is
    complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        num_bytes = _write(chunks, part)
        if folder.exists():
            folder.rmdir()
        # mkdtemp makes the folder 0700; the finished one gets usual rights.
        part.chmod(0o755)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return num_bytes


def _write(chunks: Iterable[gateway_pb2.DownloadCheckpointResponse], part: Path) -> int:
    file: BinaryIO | None = None
    num_bytes = 0
    try:
        for message in chunks:
            if message.path:
                if file is not None:
                    file.close()
                file = _create(part, message.path)
            if file is None:
                raise GanglineError("download.broken", "the gateway sent data without a file name", ErrorKind.INTERNAL)
            num_bytes += file.write(message.chunk)
    finally:
        if file is not None:
            file.close()
    return num_bytes


def _create(part: Path, name: str) -> BinaryIO:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise invalid("download.path", f"the checkpoint names a file {name!r}, which lies outside its folder")
    target = part / path
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.open("wb")
