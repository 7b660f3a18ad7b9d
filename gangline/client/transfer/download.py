"""Writes downloaded files into a folder: those of a checkpoint or an output whole or not at all, those for TensorBoard
as they grow.

It refuses paths that lead out of the folder, so that a broken checkpoint cannot overwrite other files. Called by the
client's download_checkpoint, download_code, download_output and download_tensorboard.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO

from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.v1 import gateway_pb2


class NewFolder:
    """A folder that appears whole or not at all. As a context it gives a folder beside the target. The target appears
    under its name at the end of the context, and not at all after an error."""

    def __init__(self, folder: Path) -> None:
        """Raises GanglineError `download.exists` when the folder exists and is not empty."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise invalid("download.exists", f"{folder} exists already; give a folder that is new or empty")
        # A path that ends in .. has no name of its own.
        self._folder = folder.absolute()

    def __enter__(self) -> Path:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        self._part = Path(tempfile.mkdtemp(prefix=f".{self._folder.name}.", dir=self._folder.parent))
        return self._part

    def __exit__(
        self, error_type: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if failure is None:
                self._put_inplace_file()
        finally:
            shutil.rmtree(self._part, ignore_errors=True)

    def _put_inplace_file(self) -> None:
        if self._folder.exists():
            self._folder.rmdir()
        # mkdtemp makes the folder 0700; the finished one gets usual rights.
        self._part.chmod(0o755)
        self._part.rename(self._folder)


class _WrittenFile:
    """The file of a download that is being written, of which there is one at a time."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self.num_bytes = 0  # of all files

    def write(self, folder: Path, name: str, chunk: bytes, offset: int = 0) -> None:
        """Writes to the file of this name from the offset on; without a name, goes on with the open one. Raises
        GanglineError `download.path`, `download.broken`."""
        if name:
            self.close()
            self._file = _open_at(folder, name, offset)
        if self._file is None:
            raise GanglineError("download.broken", "the gateway sent data without a file name", ErrorKind.INTERNAL)
        self.num_bytes += self._file.write(chunk)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class ReceivedFolder:
    """Receives the files of a checkpoint or of a trial's output, as a context, into a folder that appears whole or not
    at all.

    on_bytes: called with the bytes that are there, and with all bytes; 0 where the gateway is too old to tell them.
    """

    def __init__(self, folder: Path, on_bytes: Callable[[int, int], None]) -> None:
        """Raises GanglineError `download.exists` when the folder exists and is not empty."""
        self._folder = NewFolder(folder)
        self._on_bytes = on_bytes
        self._files = _WrittenFile()
        self._total_bytes = 0

    @property
    def num_bytes(self) -> int:
        return self._files.num_bytes

    def __enter__(self) -> ReceivedFolder:
        self._part = self._folder.__enter__()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()
        self._folder.__exit__(error_type, failure, trace)

    def write(self, message: gateway_pb2.DownloadCheckpointResponse | gateway_pb2.DownloadOutputResponse) -> None:
        """Raises GanglineError `download.path`, `download.broken`."""
        self._files.write(self._part, message.path, message.chunk)
        self._total_bytes = message.total_bytes or self._total_bytes
        self._on_bytes(min(self.num_bytes, self._total_bytes or self.num_bytes), self._total_bytes)


def list_sizes(folder: Path) -> dict[str, int]:
    """Returns the bytes of each file below a folder, by its path below it; none if the folder does not exist."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


class GrowingFolder:
    """Receives additions to files. As a context it keeps one file open. Each file is written from its offset on; a file
    that is sent whole replaces the former one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = _WrittenFile()

    @property
    def num_bytes(self) -> int:
        return self._files.num_bytes

    def __enter__(self) -> GrowingFolder:
        return self

    def __exit__(self, *failure: object) -> None:
        self._files.close()

    def write(self, message: gateway_pb2.DownloadTensorboardResponse) -> None:
        """Raises GanglineError `download.path`, `download.broken`."""
        self._files.write(self._folder, message.path, message.chunk, message.offset)


def _open_at(folder: Path, name: str, offset: int) -> BinaryIO:
    target = place_file(folder, name)
    if not offset:
        return target.open("wb")
    file = target.open("r+b")
    file.seek(offset)
    return file


def place_file(folder: Path, name: str) -> Path:
    """Returns the file's place, and makes its folder. Raises GanglineError `download.path`."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise invalid("download.path", f"the gateway names a file {name!r}, which lies outside its folder")
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
