"""Unpacks the code of an experiment into a folder, whole or not at all.

The gateway stores archives of regular files and folders only; anything else in one is refused. Called by the client's
download_code.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import BinaryIO, cast

from gangline.client.transfer.download import NewFolder, place_file
from gangline.errors import ErrorKind, GanglineError

_EXECUTABLE = 0o100


def unpack_code(archive: BinaryIO, folder: Path) -> int:
    """Returns the bytes of the files. archive: a gzipped tar, which is read from its beginning. Raises GanglineError
    `download.exists`, `download.path`, `download.broken`."""
    archive.seek(0)
    num_bytes = 0
    try:
        with NewFolder(folder) as target, tarfile.open(fileobj=archive, mode="r:gz") as tar:
            for member in tar:
                num_bytes += _unpack(tar, member, target)
    except (tarfile.TarError, EOFError, OSError) as failure:
        text = f"the code cannot be unpacked into {folder} ({failure}); nothing was written"
        raise GanglineError("download.broken", text, ErrorKind.INTERNAL) from failure
    return num_bytes


def _unpack(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> int:
    path = place_file(target, member.name)
    if member.isdir():
        path.mkdir(exist_ok=True)
        return 0
    if not member.isreg():
        raise tarfile.ReadError(f"{member.name!r} is neither a file nor a folder")
    with cast(BinaryIO, tar.extractfile(member)) as source, path.open("xb") as writing:
        shutil.copyfileobj(source, writing)
    path.chmod(0o755 if member.mode & _EXECUTABLE else 0o644)
    return member.size
