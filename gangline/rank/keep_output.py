"""`python -m gangline.rank.keep_output`: copies the output folder of a trial's processes into the storage.

Started by the trial runner when the ranks have ended. It takes an order as one JSON object on its standard input, and
confines itself first, as a rank is confined. So names that a trial has chosen are followed with the rights of the ranks
alone. It writes one JSON object a line for each file, and signs of progress between them. It ends when its runner does.

A file appears whole or not at all. What is in the storage is removed from the folder; what is not stays there. A link
is kept as the file to which it leads, unless that lies outside of the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import fsspec
import fsspec.callbacks
import fsspec.config

from gangline.core.storage_access.storage import CheckpointStore, sync
from gangline.domain.storage.output import MOST_BYTES, MOST_FILES, find_bad_path
from gangline.domain.storage.partial import PREFIX
from gangline.domain.storage.storage_fault import describe
from gangline.domain.storage.storage_url import protocol_of
from gangline.errors import GanglineError
from gangline.folder_handle import FILE, FOLDER, open_below
from gangline.launch import confinement

_CHUNK_BYTES = 1 << 20
# Pause between two signs of progress.
_SIGN_SECONDS = 0.5
# A folder this deep is no output.
_MOST_DEPTH = 64
# Of the reason why one file is not kept.
_MOST_CHARACTERS = 500
# A file is written to the disk in parts of this size, so that no single wait for the disk is long.
_SYNC_BYTES = 64 << 20


class Overdue(Exception):
    """The limit of time is reached."""


class _Left(Exception):
    """One file is not kept. The message is a clause for the user."""


@dataclass(frozen=True, slots=True)
class OutputEntry:
    """A file or a link below the folder."""

    path: str
    is_link: bool = False
    why: str = ""  # why it cannot be kept; empty if it can


@dataclass(slots=True)
class Report:
    """Writes the lines for the runner. progress: called while a file is copied; raises Overdue at the limit."""

    stream: TextIO
    limit_seconds: float
    clock: Callable[[], float] = time.monotonic
    _began_at: float = field(init=False)
    _signed_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_at = self._signed_at = self.clock()

    def write(self, **line: Any) -> None:
        """A runner that has gone takes no line, so this process ends."""
        self._signed_at = self.clock()
        self.stream.write(json.dumps(line) + "\n")
        self.stream.flush()

    def leave(self, path: str, why: str) -> None:
        """Reports a file that is not kept. why: a clause."""
        self.write(left=path, why=why[:_MOST_CHARACTERS])

    def progress(self) -> None:
        now = self.clock()
        if now - self._began_at > self.limit_seconds:
            raise Overdue
        if now - self._signed_at > _SIGN_SECONDS:
            self.write(progress=True)


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """The place in the storage."""

    filesystem: Any  # a filesystem of fsspec
    root: str
    writer: str  # names unfinished copies, so that no other attempt writes into them

    @property
    def is_local(self) -> bool:
        """Whether files can be renamed in one step."""
        protocols = self.filesystem.protocol
        return "file" in (protocols if isinstance(protocols, tuple) else (protocols,))

    def put(self, descriptor: int, path: str, num_bytes: int, progress: Callable[[], None]) -> None:
        """Stores the first bytes of an open file. Raises OSError, or what the storage's library raises."""
        place = f"{self.root}/{path}"
        if self.is_local:
            self._put_local(descriptor, Path(place), num_bytes, progress)
            return
        self.filesystem.makedirs(place.rpartition("/")[0], exist_ok=True)
        # The library opens the very file that was looked at, whatever its name leads to by now.
        self.filesystem.put_file(f"/proc/self/fd/{descriptor}", place, callback=_callback(progress))

    def _put_local(self, descriptor: int, place: Path, num_bytes: int, progress: Callable[[], None]) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(os.fsencode(place.name)).hexdigest()[:16]
        draft = place.with_name(f"{PREFIX}{self.writer}-{digest}")
        try:
            with draft.open("wb") as file:
                left = num_bytes
                while left and (chunk := os.read(descriptor, min(left, _CHUNK_BYTES))):
                    file.write(chunk)
                    left -= len(chunk)
                    if left and left % _SYNC_BYTES < _CHUNK_BYTES:
                        file.flush()
                        os.fdatasync(file.fileno())
                    progress()
                file.flush()
                os.fsync(file.fileno())
            draft.replace(place)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise
        sync(place.parent)


@dataclass(slots=True)
class OutputKeeper:
    """Copies what one folder has. Call `run` once."""

    folder: Path
    target: OutputTarget
    report: Report
    _left_bytes: int = MOST_BYTES
    _kept: list[tuple[str, os.stat_result]] = field(default_factory=list)

    def run(self) -> None:
        """Reports each file: `kept` with its bytes, or `left` with the reason."""
        entries = first_entries(self.folder, self.report)
        for number, entry in enumerate(entries):
            try:
                self._keep(entry)
            except Overdue:
                for other in entries[number:]:
                    self.report.leave(other.path, f"the copying took more than {self.report.limit_seconds:.0f} s")
                break
            except _Left as why:
                self.report.leave(entry.path, str(why))
            except BrokenPipeError:
                raise
            except Exception as error:  # noqa: BLE001  a storage raises whatever its library raises; the user reads it
                # A file that has vanished meanwhile is no loss that anybody can mend.
                if os.path.lexists(self.folder / entry.path):
                    self.report.leave(entry.path, describe(error))
        # A link and the file to which it leads are both kept, whatever their order.
        for path, status in self._kept:
            self._remove(path, status)

    def _keep(self, entry: OutputEntry) -> None:
        if entry.why:
            raise _Left(entry.why)
        self.report.progress()
        descriptor = self._open(entry)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _Left("it is a link to a folder" if entry.is_link else "it is no file")
            if status.st_size > self._left_bytes:
                raise _Left(f"at most {MOST_BYTES >> 30} GiB are kept of one machine")
            self.target.put(descriptor, entry.path, status.st_size, self.report.progress)
        finally:
            os.close(descriptor)
        self._left_bytes -= status.st_size
        self._kept.append((entry.path, status))
        self.report.write(kept=entry.path, bytes=status.st_size)

    def _open(self, entry: OutputEntry) -> int:
        path = entry.path
        if entry.is_link:
            root = os.path.realpath(self.folder)
            place = os.path.realpath(self.folder / path)
            if not place.startswith(f"{root}/"):
                raise _Left("it is a link that leads out of the folder")
            path = place[len(root) + 1 :]
        below, _, name = path.rpartition("/")
        try:
            handle = _open_folder(self.folder, below)
            try:
                return os.open(name, FILE, dir_fd=handle)
            finally:
                os.close(handle)
        except FileNotFoundError:
            if entry.is_link:
                raise _Left("it is a link to nothing") from None
            raise

    def _remove(self, path: str, status: os.stat_result) -> None:
        """Removes a file that is in the storage, unless it has changed since."""
        below, _, name = path.rpartition("/")
        with suppress(OSError):
            handle = _open_folder(self.folder, below)
            try:
                now = os.stat(name, dir_fd=handle, follow_symlinks=False)
                is_same = (now.st_size, now.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
                if is_same or stat.S_ISLNK(now.st_mode):
                    os.unlink(name, dir_fd=handle)
            finally:
                os.close(handle)


def first_entries(folder: Path, report: Report) -> list[OutputEntry]:
    """Returns the entries up to the limit, and reports that there are more."""
    entries = list(islice(find_entries(folder), MOST_FILES + 1))
    if len(entries) > MOST_FILES:
        report.write(rest=f"at most {MOST_FILES} files are kept of one machine")
    return entries[:MOST_FILES]


def find_entries(folder: Path) -> Iterator[OutputEntry]:
    """Yields the files and links below a folder, the names of each folder in their order, and follows no link. What is
    neither, and a folder that cannot be listed, is yielded with the reason why it is not kept."""
    waiting = [""]
    while waiting:
        below = waiting.pop()
        folders: list[str] = []
        try:
            names = _list(folder, below)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield OutputEntry(below or ".", why=f"the folder cannot be listed: {error.strerror}")
            continue
        for name, mode in names:
            path = f"{below}/{name}" if below else name
            if not stat.S_ISDIR(mode):
                is_known = stat.S_ISREG(mode) or stat.S_ISLNK(mode)
                why = find_bad_path(path) if is_known else "it is neither a file nor a link"
                yield OutputEntry(path, stat.S_ISLNK(mode), why)
            elif path.count("/") >= _MOST_DEPTH:
                yield OutputEntry(path, why=f"it lies more than {_MOST_DEPTH} folders deep")
            else:
                folders.append(path)
        waiting.extend(reversed(folders))


def _list(folder: Path, below: str) -> list[tuple[str, int]]:
    handle = _open_folder(folder, below)
    try:
        found = []
        for name in sorted(os.listdir(handle)):  # noqa: PTH208 - of a handle
            with suppress(FileNotFoundError):
                found.append((name, os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode))
        return found
    finally:
        os.close(handle)


def _open_folder(folder: Path, below: str) -> int:
    """Returns a handle; the caller closes it. A folder of the path that has become a link raises OSError."""
    return open_below(os.open(folder, FOLDER), below.split("/") if below else ())


def _callback(progress: Callable[[], None]) -> Any:
    class Progress(fsspec.callbacks.Callback):  # type: ignore[misc]  # fsspec is untyped
        def call(self, hook_name: str | None = None, **_: Any) -> None:
            progress()

    return Progress()


def open_target(storage_url: str, marker: str, path: str, writer: str) -> OutputTarget:
    """Raises GanglineError `storage.away` for a storage folder without its marker file, ValueError and ImportError for
    a URL that cannot be opened."""
    CheckpointStore(storage_url, marker=marker).check_present()
    filesystem, root = fsspec.core.url_to_fs(storage_url)
    return OutputTarget(filesystem, f"{str(root).rstrip('/')}/{path}", writer)


def run(order: Mapping[str, Any], stream: TextIO) -> None:
    """Carries out one order of the runner (services/trial_runner/output.py)."""
    report = Report(stream, float(order["limit_seconds"]))
    folder = Path(order["folder"])
    try:
        target = open_target(order["storage_url"], order["marker"], order["path"], order["writer"])
    except (GanglineError, OSError, ValueError, ImportError) as error:
        for entry in first_entries(folder, report):
            report.leave(entry.path, describe(error))
        return
    OutputKeeper(folder, target, report).run()


def main() -> None:
    order = json.load(sys.stdin)
    # Loaded before the confinement, because the ranks' account may not reach this Python's folders.
    with suppress(ImportError, ValueError):
        fsspec.get_filesystem_class(protocol_of(order["storage_url"]))
    confinement.enter(order["confinement"], becomes_program=False)
    # Python and the loader read their own variables at the start only, so those of the user change nothing here.
    os.environ.clear()
    os.environ.update(order["environment"])
    fsspec.config.set_conf_env(fsspec.config.conf)
    with suppress(BrokenPipeError):
        run(order, sys.stdout)
        sys.stdout.flush()
        return
    os._exit(1)


if __name__ == "__main__":
    main()
