"""Makes temporary folders for a rank.

On the cluster they lie beside the socket to the rank's runner, in a folder that is removed with the attempt. So a
killed rank leaves no files behind. Elsewhere they lie where Python puts such folders.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from gangline.core.link import SOCKET_KEY


def temporary_folder(purpose: str) -> TemporaryDirectory[str]:
    """Makes a temporary folder. purpose: a part of its name, so that an operator who finds it knows its use."""
    socket_path = os.environ.get(SOCKET_KEY)
    return TemporaryDirectory(prefix=f"gangline-{purpose}-", dir=Path(socket_path).parent if socket_path else None)
