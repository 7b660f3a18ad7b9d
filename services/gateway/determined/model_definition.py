"""PURE: the code folder as Determined's client sends it, a list of files, packed into the archive that we store."""

from __future__ import annotations

import binascii
import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any

from gangline.errors import invalid

_FOLDER = int.from_bytes(tarfile.DIRTYPE, "big")


def pack_files(files: Iterable[Any]) -> tuple[bytes, str]:
    """Returns a gzipped tar of the files, and its sha256; the same files give the same archive.

    files: entries of `modelDefinition`: path, type, content in base64, mode. Raises GanglineError
    `code.model_definition`.
    """
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressing,
        tarfile.open(fileobj=compressing, mode="w") as archive,
    ):
        for file in sorted(map(_checked, files), key=lambda file: str(file["path"])):
            is_folder = file.get("type") in (_FOLDER, str(_FOLDER))
            content = b"" if is_folder else _decode(file)
            member = tarfile.TarInfo(str(file["path"]).rstrip("/"))
            member.type = tarfile.DIRTYPE if is_folder else tarfile.REGTYPE
            member.size, member.mode = len(content), 0o755 if is_folder else _mode(file)
            archive.addfile(member, io.BytesIO(content))
    payload = packed.getvalue()
    return payload, hashlib.sha256(payload).hexdigest()


def _checked(file: Any) -> Mapping[str, Any]:
    path = file.get("path") if isinstance(file, Mapping) else None
    # The name in an archive ends at a NUL.
    if isinstance(path, str) and path.strip("/.") and "\0" not in path:
        return dict(file)
    raise invalid("code.model_definition", "an entry of modelDefinition is no file with a path")


def _mode(file: Mapping[str, Any]) -> int:
    return 0o755 if str(file.get("mode", "")).isdecimal() and int(file["mode"]) & 0o100 else 0o644


def _decode(file: Mapping[str, Any]) -> bytes:
    try:
        return binascii.a2b_base64(file.get("content") or "", strict_mode=True)
    except (ValueError, TypeError) as error:
        raise invalid("code.model_definition", f"the content of {file['path']} is no base64 ({error})") from error
