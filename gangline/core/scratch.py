"""Temporary folders of a rank.

On the cluster they lie beside the socket to the rank's runner, in a folder that goes with the attempt; so nothing of a
rank that is killed stays behind. Elsewhere they lie where Python puts such folders.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from gangline.core.link import SOCKET_KEY


def temporary_folder(purpose: str) -> TemporaryDirectory[str]:
    """purpose: a word for whoever finds it."""
    socket_path = os.environ.get(SOCKET_KEY)
    return TemporaryDirectory(prefix=f"gangline-{purpose}-", dir=Path(socket_path).parent if socket_path else None)
