"""The account of an owner's ranks, which exists only by its number: its home, its name, and its folders in the storage.

Owns what such an account needs beside its number. The homes stay on the machine, because caches of compilers and data
sets lie there; nobody else ever gets the number. The runner calls this before anything of the attempt starts.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import structlog

from gangline.domain.output import output_url_of
from gangline.domain.storage_url import protocol_of
from gangline.domain.trace import tensorboard_url_of
from services.common.disk import write_atomic
from services.common.rank_rules import RankUser

# With a group of its own, an account shares with nobody; in the storage, with the services.
UMASK = 0o002
# Everyone may make entries, each for himself. The group of the folder is that of all that is made in it, so services
# of another account than root can remove it.
_SHARED_MODE = 0o3777
# The folders of a storage in which trials choose names.
_SHARED_FOLDERS = ("checkpoints", "batch_output")
_ACCOUNTS = Path("/etc/passwd")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

log = structlog.get_logger(__name__)


def settle_home(user: RankUser, homes: Path) -> RankUser:
    """Returns the account with its home and its shell."""
    shell = "/bin/bash" if Path("/bin/bash").exists() else user.shell
    return replace(user, home=str((homes / str(user.uid)).absolute()), shell=shell)


def make_home(user: RankUser) -> None:
    """Makes the home if there is none. Raises OSError."""
    home = Path(user.home)
    home.parent.mkdir(mode=0o711, exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(home, _FOLDER)
    try:
        # A home that is still ours was made by a runner that was killed before it gave it away.
        if os.fstat(handle).st_uid == os.geteuid():
            os.fchown(handle, user.uid, user.gid)
    finally:
        os.close(handle)


def write_accounts(path: Path, user: RankUser) -> None:
    """Writes the list of accounts that the ranks see: that of the machine, and the owner's. Programs such as ssh and
    git end without an entry for their account. Raises OSError."""
    try:
        text = _ACCOUNTS.read_text(errors="surrogateescape")
    except OSError:
        text = ""
    entry = f"{user.name}:x:{user.uid}:{user.gid}::{user.home}:{user.shell}\n"
    lines = text if not text or text.endswith("\n") else f"{text}\n"
    write_atomic(path, (lines + entry).encode(errors="surrogateescape").decode(errors="replace"), is_durable=False)


def storage_folder(url: str) -> Path | None:
    """Returns the folder of the checkpoint storage; None for a storage that is no folder."""
    return Path(url.partition("://")[2] or url) if url and protocol_of(url) == "file" else None


def open_storage(url: str, trial_id: str, user: RankUser) -> None:
    """Lets the account write its own files into a storage that is a folder, and nobody else's. May be repeated.

    Where this machine's root has no rights in the storage, as on NFS, the folders stay as the operator has made them.
    """
    root = storage_folder(url)
    if root is None:
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        _close(root / "code")
        _let_pass(root, user)
        for name in _SHARED_FOLDERS:
            _share(root / name)
        for own_url in (tensorboard_url_of(url, trial_id), output_url_of(url, trial_id)):
            _own(Path(str(storage_folder(own_url))), user)
    except OSError as error:
        log.warning("cannot open the storage for the ranks", storage=url, user=user.uid, error=str(error))


def _let_pass(root: Path, user: RankUser) -> None:
    """Lets the accounts of all owners enter a storage that is closed to everyone but us."""
    status = root.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == os.geteuid() and not mode & 0o077:
        os.chown(root, -1, user.groups[-1])
        root.chmod(mode | 0o010)


def _close(folder: Path) -> None:
    """Keeps other accounts out of the archives of code, which gateways alone read, each for the code's owner."""
    try:
        handle = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        if mode & 0o007:
            os.fchmod(handle, mode & ~0o007)
    finally:
        os.close(handle)


def _share(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    handle = os.open(folder, _FOLDER)
    try:
        if stat.S_IMODE(os.fstat(handle).st_mode) != _SHARED_MODE:
            os.fchmod(handle, _SHARED_MODE)
    finally:
        os.close(handle)


def _own(folder: Path, user: RankUser) -> None:
    """Makes a folder for the account alone, in one where it makes nothing."""
    folder.parent.mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(mode=0o755, exist_ok=True)
    handle = os.open(folder, _FOLDER)
    try:
        if os.fstat(handle).st_uid == os.geteuid():
            os.fchown(handle, user.uid, -1)
    finally:
        os.close(handle)
