"""Names the files of a local cluster, including the tokens.

| file                | holds                                                                    |
|---------------------|--------------------------------------------------------------------------|
| supervisor.lock     | flock'ed by the living supervisor                                        |
| scheduler.toml, gateway.toml, agent.toml | settings of the services, where the user has put such a file |
| plan.json           | the arguments of `up`, with the chosen ports                             |
| processes.json      | every process with its pid, state and addresses                          |
| cluster.token       | the secret that the services share, 0600                                 |
| admin.token         | the user's token, 0600                                                   |
| etcd-client:0, etcd-peer:0 | the unix sockets on which etcd listens, 0700                      |
| etcd/ storage/ gateway/ agents/<id>/ | state of the services, kept from one `up` to the next   |
| etcd-<version>/     | etcd's data before they were moved to another version of etcd            |
| ready/<name>.json   | written by a service once it serves                                      |
| logs/<name>.log     | the output of a service                                                  |

Owns names, creation and modes only. The directory is 0700. Its own mode protects the files against other accounts.
Where the agents of root give owners accounts of their own, these may pass through it (0710), and the modes of the
files protect them as well; see services/agent/machine/owner_accounts.py.
"""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gangline.errors import GanglineError, invalid
from gangline.login import HOME_VARIABLE, load_login, write_private

# The default for root.
ROOTS_DIRECTORY = Path("/var/lib/gangline/local")
_FOLDERS = ("storage", "gateway", "agents", "ready", "logs")


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of one local cluster."""

    root: Path  # absolute, without links

    @property
    def lock(self) -> Path:
        return self.root / "supervisor.lock"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def processes(self) -> Path:
        return self.root / "processes.json"

    @property
    def etcd_data(self) -> Path:
        return self.root / "etcd"

    @property
    def etcd_socket(self) -> Path:
        """Returns the unix socket for etcd's clients. etcd 3.4 takes a unix socket only as a "host:port", and makes it
        in its working directory."""
        return self.root / "etcd-client:0"

    @property
    def etcd_peer_socket(self) -> Path:
        return self.root / "etcd-peer:0"

    @property
    def cluster_token(self) -> Path:
        return self.root / "cluster.token"

    @property
    def admin_token(self) -> Path:
        return self.root / "admin.token"

    def settings(self, kind: str) -> Path:
        """Returns the settings file of a kind of service; the service reads it instead of the one in /etc/gangline."""
        return self.root / f"{kind}.toml"

    def ready(self, name: str) -> Path:
        return self.root / "ready" / f"{name}.json"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def create(self) -> None:
        """Makes the directory private, and creates missing folders and tokens.

        Raises GanglineError `local.data_directory`, `local.not_private`.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make_private(self.root)
            for folder in _FOLDERS:
                (self.root / folder).mkdir(exist_ok=True, mode=0o700)
            for path in (self.cluster_token, self.admin_token):
                if not path.exists():
                    write_private(path, secrets.token_urlsafe(32) + "\n")
        except OSError as failure:
            raise unusable(self.root, failure) from failure

    def read_admin_token(self) -> str:
        return self.admin_token.read_text("utf-8").strip()


def unusable(root: Path, failure: OSError) -> GanglineError:
    """Makes the error for a data directory in which a file cannot be made or written."""
    remedy = (
        "free space there, or choose another" if failure.errno in (errno.ENOSPC, errno.EDQUOT) else "choose another"
    )
    return invalid(
        "local.data_directory",
        f"cannot use the data directory {root}: {failure.strerror}; {remedy} with --data-dir",
    )


def _make_private(directory: Path) -> None:
    """Removes the rights of other accounts on the directory. An owner other than this account could restore them at any
    time, so that is refused."""
    owner, mode = _owner_and_mode(directory)
    if owner == os.geteuid() and mode & 0o077:
        with suppress(PermissionError):
            directory.chmod(0o700)
        owner, mode = _owner_and_mode(directory)
    if owner != os.geteuid():
        problem = f"it belongs to {_name_of(owner)} and this is {_name_of(os.geteuid())}"
    elif mode & 0o077:
        problem = f"its file system keeps the mode {mode:04o}, which lets other accounts in"
    else:
        return
    raise invalid(
        "local.not_private",
        f"cannot make the data directory {directory} private (0700): {problem}; choose another with --data-dir",
    )


def _owner_and_mode(directory: Path) -> tuple[int, int]:
    status = directory.stat()
    return status.st_uid, stat.S_IMODE(status.st_mode)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def layout_of(directory: Path | None) -> Layout:
    """Returns the layout of a directory. The default is the directory of the cluster that this user last started, else
    a fixed one."""
    if directory is not None:
        return Layout(directory.expanduser().resolve())
    saved = load_login()
    if saved is not None and saved.data_directory:
        return Layout(Path(saved.data_directory))
    configured = os.environ.get(HOME_VARIABLE)
    default = Path(configured) / "cluster" if configured else Path.home() / ".local" / "share" / "gangline"
    if not configured and os.geteuid() == 0 and not (default / "plan.json").exists():
        # Nobody else may enter root's home, so trials could not have accounts without rights.
        default = ROOTS_DIRECTORY
    return Layout(default.resolve())
