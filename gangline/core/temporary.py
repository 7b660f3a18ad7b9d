"""Makes the temporary folders of a rank.

On the cluster they lie beside the runner's socket, in a folder that is removed with the attempt.
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
