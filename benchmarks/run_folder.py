"""A folder for the data of one measured run, which stays until the benchmark ends.

ext4 passes over each inode that was freed in the last minute, or five where the disk has not taken note of it, whenever
it makes a new one. So the removal of one run's files would slow down the runs after it, ours and the peer's.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path


def make_run_folder(prefix: str) -> Path:
    """Makes a folder of its own for one run. The end of the program removes it."""
    folder = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
