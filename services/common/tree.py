"""Removes a folder in which a program of a user may have left anything."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path

# Errors with which Python's function gives up a folder that is too deep for it.
_TOO_DEEP = (errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG)


def remove_tree(path: Path) -> None:
    """Removes a folder with all that it holds, and follows no link. Others may remove it at the same time. Raises
    OSError if something stays.

    A program may have made a folder so deep that Python's function cannot enter it. rm can, and stays in one file
    system.
    """
    try:
        shutil.rmtree(path, onerror=_pass_over_what_is_gone)
    except (OSError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno not in _TOO_DEEP:
            raise
        subprocess.run(
            ["rm", "-rf", "--one-file-system", "--", str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if path.exists():
            raise


def _pass_over_what_is_gone(_: object, __: str, ___: object) -> None:
    failure = sys.exc_info()[1]
    if failure is not None and not isinstance(failure, FileNotFoundError):
        raise failure
