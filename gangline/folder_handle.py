"""Opens files and folders that a user's processes may replace by a link or a pipe at any time.

No name below the first handle is followed as a link, because each folder on the way is opened by the handle of the one
above it. Called where services and copying programs read folders of trials.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe without a writer would block; O_NONBLOCK changes nothing for regular files.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_below(handle: int, names: Iterable[str]) -> int:
    """Returns a handle on the folder that these names lead to, and closes the given one. Raises OSError, as for a link
    on the way; then the given one is closed too."""
    for name in names:
        above = handle
        try:
            handle = os.open(name, FOLDER, dir_fd=above)
        finally:
            os.close(above)
    return handle
