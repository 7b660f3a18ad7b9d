"""Keeps the folder of this rank's TensorBoard files, and copies the files to the trial's storage.

Owns their place and the copying. The place is <storage URL>/tensorboard/<trial>; each rank other than the chief has a
folder of its own below it. Storage that is a directory is written to directly. Elsewhere, and where the directory takes
nothing at the start, a background thread copies
changed files every 30 seconds and at the end. A failed upload is logged once and retried, because it must not end a
training.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import fsspec

from gangline.core.temporary import temporary_folder
from gangline.domain.trace import tensorboard_url_of
from gangline.errors import GanglineError, invalid

_UPLOAD_SECONDS = 30.0
_log = logging.getLogger("gangline")


class TensorboardMode(Enum):
    """AUTO: files are copied to storage automatically. MANUAL: only upload_tensorboard_files() copies them."""

    AUTO = "AUTO"
    MANUAL = "MANUAL"


def take_all(_path: Path) -> bool:
    return True


def keep_name(path: Path, _rank: int) -> Path:
    return path


_current: TensorboardFolder | None = None


def current_folder() -> TensorboardFolder:
    """Returns the folder of the newest context of gangline.core.init() in this process."""
    if _current is None:
        raise invalid(
            "core.tensorboard",
            "nobody has made a context yet; open gangline.pytorch.init() or gangline.core.init() before a TorchWriter",
        )
    return _current


class TensorboardFolder:
    """Keeps one rank's TensorBoard files. It opens nothing before the first use of `path`."""

    def __init__(
        self,
        storage_url: str,
        trial_id: str,
        rank: int,
        mode: TensorboardMode,
        *,
        check_storage: Callable[[], None] = lambda: None,
    ) -> None:
        """check_storage: raises where the storage is away, so that its folders are not made anew."""
        place = tensorboard_url_of(storage_url, trial_id)
        self.url = place if rank == 0 else f"{place}/rank{rank}"
        self._check_storage = check_storage
        self._rank = rank
        self._mode = mode
        self._known_path: Path | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._sent: dict[Path, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_warned = False

    def become_current(self) -> None:
        """Makes this the folder of TorchWriters that are made later."""
        global _current  # noqa: PLW0603  a process trains one trial
        _current = self

    @property
    def path(self) -> Path:
        """This rank's folder; it exists."""
        if self._known_path is None:
            self._known_path = self._open()
        return self._known_path

    def upload(
        self,
        selector: Callable[[Path], bool] = take_all,
        mangler: Callable[[Path, int], Path] = keep_name,
    ) -> None:
        """Copies the files that have changed since the last upload. selector: chooses files by their path inside the
        folder. mangler: gets that path and the rank, and returns the path in storage."""
        if self._known_path is None or self._is_direct:
            return
        self._check_storage()
        filesystem, root = fsspec.core.url_to_fs(self.url)
        with self._lock:
            for file in sorted(entry for entry in self._known_path.rglob("*") if entry.is_file()):
                inside = file.relative_to(self._known_path)
                if selector(inside):
                    self._send(file, filesystem, f"{root}/{mangler(inside, self._rank).as_posix()}")

    def close(self) -> None:
        """Uploads for the last time and ends. It may be called twice."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._mode is TensorboardMode.AUTO:
            self._try_upload()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = self._known_path = None

    @property
    def _is_direct(self) -> bool:
        return self._temporary is None

    def _open(self) -> Path:
        filesystem, target = fsspec.core.url_to_fs(self.url)
        protocols = filesystem.protocol if isinstance(filesystem.protocol, tuple) else (filesystem.protocol,)
        if "file" in protocols and self._mode is TensorboardMode.AUTO:
            path = Path(str(target))
            try:
                self._check_storage()
                path.mkdir(parents=True, exist_ok=True)
            except (OSError, GanglineError) as error:
                # The files are kept here and copied when the storage takes them.
                self._warn(error)
            else:
                return path
        self._temporary = temporary_folder("tensorboard")
        if self._mode is TensorboardMode.AUTO:
            self._thread = threading.Thread(target=self._serve, name="gangline-tensorboard", daemon=True)
            self._thread.start()
        return Path(self._temporary.name)

    def _serve(self) -> None:
        while not self._is_over.wait(_UPLOAD_SECONDS):
            self._try_upload()

    def _try_upload(self) -> None:
        try:
            self.upload()
        except Exception as error:  # noqa: BLE001  storage of any kind may fail in any way, and training goes on
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("TensorBoard files do not reach %s: %s: %s", self.url, type(error).__name__, error)

    def _send(self, file: Path, filesystem: Any, destination: str) -> None:
        # A writer may remove its file between the listing and here.
        with contextlib.suppress(FileNotFoundError):
            status = file.stat()
            # A file with the same size and time as at its last upload has not changed.
            state = (status.st_size, status.st_mtime_ns)
            if self._sent.get(file) == state:
                return
            filesystem.makedirs(destination.rpartition("/")[0], exist_ok=True)
            filesystem.put_file(str(file), destination)
            self._sent[file] = state
