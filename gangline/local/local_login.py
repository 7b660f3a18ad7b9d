"""Decides which of this user's local clusters commands use.

Owns the change of the login by `gangline up` and `gangline down`, and the list of the clusters to which it can change
back: `local-clusters.json` beside the login. It starts and stops nothing. Clusters under another GANGLINE_HOME are not
in the list, so commands never change to them.
"""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path

from gangline.errors import GanglineError
from gangline.local.layout import Layout
from gangline.local.lock import is_locked
from gangline.local.plan import ClusterPlan
from gangline.local.port import HOST
from gangline.login import Login, forget_login, home, load_login, save_login, write_private


def login_of(layout: Layout) -> Login:
    """Returns the administrator's login to a local cluster. Raises OSError and ValueError where none was started."""
    ports = ClusterPlan.parse(layout.plan.read_text("utf-8")).port_by_name
    return Login(
        address=f"{HOST}:{ports['gateway.grpc']}",
        token=layout.read_admin_token(),
        http_address=f"{HOST}:{ports['gateway.http']}",
        data_directory=str(layout.root),
    )


def take_login(login: Login) -> str:
    """Makes commands use a local cluster. Returns a sentence about the cluster that they used before, where that one
    goes on; else an empty one. Raises GanglineError `login.unwritable`."""
    before = _load_login()
    save_login(login)
    former = [before.data_directory] if before is not None and before.data_directory else []
    _remember([*_known(), *former, login.data_directory])
    if before is None or before.address == login.address or before.data_directory == login.data_directory:
        return ""
    if not before.data_directory:
        return f"commands no longer use {before.address}; log in there again with: gangline login {before.address}"
    if not is_running(before.data_directory):
        return ""
    again = f"gangline up --data-dir {shlex.quote(before.data_directory)}"
    went = f"commands no longer use the local cluster in {before.data_directory}, which goes on"
    return f"{went}; use it again with: {again}"


def give_back_login(layout: Layout) -> str:
    """Removes the login to a cluster that was stopped, and makes commands use the one before it that still runs.
    Returns its data directory; empty where there is none, or where the login is to another cluster."""
    root = str(layout.root)
    known = [directory for directory in _known() if directory != root]
    if not forget_login(root):
        return ""
    for directory in reversed(known):
        with suppress(OSError, ValueError, KeyError, TypeError):
            if is_running(directory):
                save_login(login_of(Layout(Path(directory))))
                return directory
    return ""


def find_local(login: Login) -> Login | None:
    """Returns the login to the same gateway with what the files of its local cluster tell of it; None where the gateway
    is of no local cluster that this user has started."""
    before = _load_login()
    directories = [*_known(), *([before.data_directory] if before is not None else [])]
    for directory in filter(None, reversed(directories)):
        with suppress(OSError, ValueError, KeyError, TypeError):
            local = login_of(Layout(Path(directory)))
            if is_running(directory) and {_as_local(address) for address in login.addresses} == {local.address}:
                return Login(login.address, login.token, local.http_address, local.data_directory)
    return None


def is_running(directory: str) -> bool:
    """Returns whether the supervisor of a local cluster runs."""
    with suppress(OSError):
        return is_locked(Layout(Path(directory)).lock)
    return False


def _as_local(address: str) -> str:
    """Returns the address with the other names of this machine replaced by the one in the files."""
    host, _, port = address.rpartition(":")
    return f"{HOST}:{port}" if host in ("localhost", HOST) else address


def _load_login() -> Login | None:
    """Returns None also for a file that is no login, because a new one replaces it."""
    with suppress(GanglineError):
        return load_login()
    return None


def _known() -> list[str]:
    """Returns the directories of the clusters that were started, the last one last."""
    try:
        known = json.loads(_path().read_text("utf-8"))
    except (OSError, ValueError):
        return []
    return [each for each in known if isinstance(each, str)] if isinstance(known, list) else []


def _remember(directories: list[str]) -> None:
    """Stores those that run, each once. A list that cannot be written is only missed by a later `down`."""
    running = [directory for directory in reversed(list(dict.fromkeys(reversed(directories)))) if is_running(directory)]
    with suppress(OSError):
        write_private(_path(), json.dumps(running, indent=1) + "\n")


def _path() -> Path:
    return home() / "local-clusters.json"
