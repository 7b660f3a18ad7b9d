"""The account of an owner's ranks, which exists only by its number: its home, its name, and its folders in the storage.

Owns what such an account needs beside its number. The homes stay on the machine, because caches of compilers and data
sets lie there; no other owner ever gets the number. The runner calls this before anything of the attempt starts.

The runner has root's rights in the storage, so it makes no folder in one whose mount is lost: the rank that then writes
there would fill the machine's own disk. The marker file of the storage tells. All folders are made by the handle of the
root that had the file, so a mount that is lost meanwhile changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import structlog

from gangline.domain.storage.output import output_url_of
from gangline.domain.storage.storage_fault import MARKER_FILE, check_marker, storage_away
from gangline.domain.storage.storage_url import protocol_of
from gangline.domain.trace import tensorboard_url_of
from gangline.errors import GanglineError
from gangline.folder_handle import FOLDER
from services.common.access.user_rights import rights_of
from services.common.disk import write_atomic
from services.common.rank_rules import RankUser

# The group of an account has no other member. In the storage the group is that of the folder, with the services in it.
UMASK = 0o002
# Every account may make entries, which only that account can change. No account may list them, because the name of an
# unfinished checkpoint tells its id, under which another owner could make a folder first. The group of the folder is
# that of all that is made in it, so services of another account than root can remove it.
_SHARED_MODE = 0o3733
# The folders of a storage in which trials choose names.
_SHARED_FOLDERS = ("checkpoints", "batch_output")
_ACCOUNTS = Path("/etc/passwd")
_MARKER_BYTES = 4096

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
    handle = os.open(home, FOLDER)
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


def open_storage(url: str, trial_id: str, user: RankUser, marker: str) -> None:
    """Lets the account write its own files into a storage that is a folder, and no files of others. May be repeated.

    marker: as `holds_storage`. Where this machine's root has no rights in the storage, as on NFS, the folders stay as
    the operator has made them.
    """
    root = storage_folder(url)
    if root is None:
        return
    try:
        if not marker:
            root.mkdir(parents=True, exist_ok=True)
        with _opened(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as storage:
            _check_marker(root, storage, marker)
            _close(storage, "code")
            _let_pass(storage, user)
            for name in _SHARED_FOLDERS:
                _share(storage, name)
            for own_url in (tensorboard_url_of(url, trial_id), output_url_of(url, trial_id)):
                _own(storage, Path(str(storage_folder(own_url))).relative_to(root), user)
    except (OSError, GanglineError) as error:
        log.warning("cannot open the storage for the ranks", storage=url, user=user.uid, error=str(error))


def find_theft(url: str, trial_id: str, user: RankUser, checkpoint_id: str, checkpoint_url: str) -> str:
    """Returns why a rank's report of a checkpoint is false: the folder is not its account's, or is not there. Empty
    where it is true, and where the storage does not tell: it is no folder, is away, or keeps no accounts, as some NFS
    do. What a trial reports is deleted for it one day, so it must not name a checkpoint of another owner.

    It looks with the account's rights, because root may have none there.
    """
    root = storage_folder(url)
    if root is None:
        return ""
    own, place = storage_folder(tensorboard_url_of(url, trial_id)), root / "checkpoints" / checkpoint_id
    try:
        with rights_of(user):
            # No account can make or rename this folder, which `open_storage` has given to the account.
            if own is None or own.lstat().st_uid != user.uid or place.lstat().st_uid == user.uid:
                return ""
        why = "its folder belongs to another account"
    except FileNotFoundError as error:
        is_elsewhere = checkpoint_url.rstrip("/") != f"{url.rstrip('/')}/checkpoints/{checkpoint_id}"
        if str(error.filename) != str(place) or is_elsewhere:
            return ""
        why = "its folder is not there"
    except (OSError, ValueError):
        # ValueError: a name with a zero byte, which the scheduler refuses.
        return ""
    return f"checkpoint {checkpoint_id!r:.100} is not reported for this trial, because {why}: {place!s:.200}"


def holds_storage(root: Path, marker: str) -> bool:
    """Returns whether a folder is there. Raises OSError, and GanglineError `storage.away` where it is not the cluster's
    storage, as a mount point whose mount is lost.

    marker: the content of the storage's marker file; empty where it is not known, and then any folder counts. One that
    this account may not enter counts too, because its ranks may.
    """
    try:
        with _opened(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as storage:
            _check_marker(root, storage, marker)
            return True
    except (FileNotFoundError, NotADirectoryError):
        if marker:
            raise storage_away(str(root)) from None
        return False
    except PermissionError:
        return True


def _check_marker(root: Path, storage: int, marker: str) -> None:
    """Raises GanglineError `storage.away`."""
    if not marker:
        return
    found = None
    with suppress(FileNotFoundError), _opened(MARKER_FILE, os.O_RDONLY | os.O_CLOEXEC, storage) as file:
        found = os.read(file, _MARKER_BYTES).decode(errors="replace").strip()
    check_marker(str(root), found, marker)


@contextmanager
def _opened(path: Path | str, flags: int = FOLDER, parent: int | None = None) -> Iterator[int]:
    handle = os.open(path, flags, dir_fd=parent)
    try:
        yield handle
    finally:
        os.close(handle)


def _let_pass(storage: int, user: RankUser) -> None:
    """Lets the accounts of all owners enter a storage that is closed to all users but the agent's."""
    status = os.fstat(storage)
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == os.geteuid() and not mode & 0o077:
        os.fchown(storage, -1, user.groups[-1])
        # Without the bit that would give all folders in it to this group, as all owners' accounts are in it.
        os.fchmod(storage, (mode & ~stat.S_ISGID) | 0o010)


def _close(storage: int, name: str) -> None:
    """Keeps other accounts out of the archives of code, which gateways alone read, each for the code's owner."""
    with suppress(FileNotFoundError), _opened(name, parent=storage) as folder:
        mode = stat.S_IMODE(os.fstat(folder).st_mode)
        if mode & 0o007:
            os.fchmod(folder, mode & ~0o007)


def _share(storage: int, name: str) -> None:
    _make(name, storage, 0o777)
    with _opened(name, parent=storage) as folder:
        if stat.S_IMODE(os.fstat(folder).st_mode) != _SHARED_MODE:
            os.fchmod(folder, _SHARED_MODE)


def _own(storage: int, place: Path, user: RankUser) -> None:
    """Makes a folder for the account alone, in one where it makes nothing. Gives it away also if it is that of an
    earlier id of the owner, where only we can have made it."""
    _make(str(place.parent), storage, 0o755)
    with _opened(str(place.parent), parent=storage) as parent:
        _make(place.name, parent, 0o755)
        above = os.fstat(parent)
        is_ours = above.st_uid == os.geteuid() and not above.st_mode & 0o022
        with _opened(place.name, parent=parent) as folder:
            owner = os.fstat(folder).st_uid
            if owner != user.uid and (is_ours or owner == os.geteuid()):
                os.fchown(folder, user.uid, -1)


def _make(name: str, parent: int, mode: int) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)
