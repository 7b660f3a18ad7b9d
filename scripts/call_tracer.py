"""Traces which functions of the watched folders a Python process calls, for `make mutants`.

Owns the tracer alone. The copied trees of scripts/mutants.py import it as `sitecustomize`, so that every Python process
which a test starts records its calls. It must import little for that reason, and neither pytest nor torch.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

CALLS_VARIABLE = "MUTANTS_CALLS_FOLDER"
"""Where to record: the link `current` points to the file that takes the calls of the test that runs."""
WATCHED_VARIABLE = "MUTANTS_WATCHED_FOLDERS"
"""Folders of the sources whose functions are recorded, absolute, one on each line."""
CURRENT = "current"


class Tracer:
    """Appends each function of the watched folders to the current file when it is first called there.

    A process may end without warning, so every entry is written at once. A forked process starts anew, because it may
    belong to another test than its parent.
    """

    def __init__(self, folder: Path, watched: list[str]) -> None:
        self._current = str(folder / CURRENT)
        self._watched = tuple(f"{folder_path}/" for folder_path in watched)
        self._seen_by_file: dict[str, set[str] | None] = {}
        os.register_at_fork(after_in_child=self.forget)

    def start(self) -> None:
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)

    def forget(self) -> None:
        """From here on every function counts as not called yet."""
        self._seen_by_file.clear()

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        file = code.co_filename
        try:
            seen = self._seen_by_file[file]
        except KeyError:
            seen = self._seen_by_file[file] = set() if file.startswith(self._watched) else None
        if seen is None or code.co_qualname in seen or code.co_qualname == "<module>":
            return
        seen.add(code.co_qualname)
        # Not by open(): this runs inside of any code, also of code that has replaced it.
        descriptor = os.open(self._current, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{file}\t{code.co_qualname}\n".encode())
        finally:
            os.close(descriptor)


def _start() -> Tracer | None:
    """None unless the environment asks for a record."""
    folder = os.environ.get(CALLS_VARIABLE)
    if not folder:
        return None
    tracer = Tracer(Path(folder), os.environ[WATCHED_VARIABLE].splitlines())
    tracer.start()
    return tracer


TRACER = _start()
