"""`determined.import_from_path`: imports modules from a folder, apart from those of the same names.

A program uses it to load the code of a checkpoint beside its own code.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from gangline.errors import conflict

_lock = threading.Lock()


@contextmanager
def import_from_path(path: str | os.PathLike[str]) -> Iterator[None]:
    """Imports from this folder first, inside the block. Afterwards the modules that came from it are forgotten, so that
    their names mean again what they did before. References to them stay valid. Raises GanglineError `alias.nested` for
    a block inside another one, or in another thread: Python has one table of modules."""
    if not _lock.acquire(blocking=False):
        raise conflict("alias.nested", "import_from_path is in use already; leave its block before the next one")
    folder = Path(path).resolve()
    before, bytecode = list(sys.path), sys.dont_write_bytecode
    # Modules of the same names give way, also those that were imported from the folder itself by then.
    names = _names_in(folder)
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in names}
    try:
        for name in hidden:
            del sys.modules[name]
        sys.path.insert(0, str(folder))
        # A checkpoint's folder stays as it is.
        sys.dont_write_bytecode = True
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = before, bytecode
        for name in [name for name, module in sys.modules.items() if _is_from(module, folder)]:
            del sys.modules[name]
        sys.modules.update(hidden)
        _lock.release()


def _names_in(folder: Path) -> frozenset[str]:
    """Returns the names of the modules and packages in the folder."""
    entries = list(folder.iterdir()) if folder.is_dir() else []
    return frozenset(entry.stem for entry in entries if entry.suffix == ".py" or entry.is_dir())


def _is_from(module: ModuleType | None, folder: Path) -> bool:
    # Not by getattr, which some packages answer by loading further modules.
    contents = vars(module) if isinstance(module, ModuleType) else {}
    spec = contents.get("__spec__")
    places = [contents.get("__file__"), *(getattr(spec, "submodule_search_locations", None) or ())]
    return any(isinstance(place, str) and Path(place).resolve().is_relative_to(folder) for place in places)
