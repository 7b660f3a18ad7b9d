"""The `determined` that a process finds when a rank or gangline.launch started it. It only imports the right one.

This folder is on such a process's PYTHONPATH, which comes before installed packages. So it steps aside at once, for an
installed Determined or for Gangline's proxy. An interpreter without Gangline, which a command may start, has no proxy.
In a trial that is an error: an installed Determined would train without this cluster, and no metric would arrive.

Start: __init__.py
"""

import importlib
import os
import sys
from pathlib import Path

try:
    from gangline.alias.finder import take_place
except ModuleNotFoundError as missing:
    if missing.name not in ("gangline", "gangline.alias"):
        raise
    if "GANGLINE_CLUSTER_INFO" in os.environ:
        raise ImportError(
            f"in a trial, `import determined` gives Gangline, and {sys.executable} has none; install it there: "
            f"{sys.executable} -m pip install gangline (docs/install.md says from where)",
            name="determined",
        ) from None
    _shim = str(Path(__file__).parents[1])
    sys.path[:] = [entry for entry in sys.path if entry != _shim]
    importlib.invalidate_caches()
    del sys.modules["determined"]
    importlib.import_module("determined")
else:
    take_place()
