"""Checkpoints that published versions of Determined wrote; determined_checkpoints/README.md tells how."""

from __future__ import annotations

import tarfile
from pathlib import Path

VERSIONS = ("0.17.7", "0.20.0", "0.21.0", "0.38.1")
NEWEST = VERSIONS[-1]
# Trained batches of each of them.
BATCHES = 8
# The losses of the next four batches when Determined 0.38.1 trained on from the state of its own checkpoint.
NEXT_LOSSES = (5.784051895141602, 0.4588519036769867, 1.0750842094421387, 7.650576591491699)


def unpack(version: str, folder: Path) -> Path:
    """Writes the checkpoint into a new folder and returns it."""
    with tarfile.open(Path(__file__).parent / "determined_checkpoints" / f"{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder
