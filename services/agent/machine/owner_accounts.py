"""Accounts of their own for the owners of experiments: whether this agent can give them, and what follows if not.

They exist only by their numbers, as those of systemd's DynamicUser, but in a range of their own (settings.py).
services/common/rank_rules.py computes the number from that of the owner, so it is the same on every machine, and no
other owner ever gets it. Ranks run as the agent's own user only for a reason that lasts. An agent that cannot find out
for the moment does not start. Called at the agent's start.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

import structlog

from gangline.errors import ErrorKind, GanglineError, invalid
from services.agent.settings import AgentSettings
from services.common.rank_rules import RankRules, RankUser, owners_user

NO_UIDS = (0, 0)
# The variable with the data directory of a cluster that `gangline up` has started; see gangline/local/program.py.
LOCAL_CLUSTER = "GANGLINE_LOCAL_CLUSTER"

log = structlog.get_logger(__name__)


def settle(settings: AgentSettings, probe: Callable[[RankUser, AgentSettings], None]) -> tuple[tuple[int, int], str]:
    """Returns the range of the accounts; NO_UIDS with the reason where ranks run as the agent's own user.

    probe: opens the state for an account and starts a process as one; raises GanglineError if that does not work, with
    the kind UNAVAILABLE where it may work later. Raises that error, and GanglineError `agent.rank_uids` for a range
    with an account of this machine.
    """
    if os.geteuid() != 0:
        return NO_UIDS, "only an agent that runs as root gives owners accounts of their own"
    if not settings.rank_uids:
        return NO_UIDS, "rank_uids is empty"
    first, last = map(int, settings.rank_uids.split("-"))
    taken = sorted(entry.pw_name for entry in pwd.getpwall() if first <= entry.pw_uid <= last)
    if taken:
        text = f"rank_uids {settings.rank_uids} has the id of {taken[0]}, an account of this machine"
        raise invalid("agent.rank_uids", f"{text}; give all agents of the cluster a range without accounts")
    user = owners_user(RankRules(first_uid=first, last_uid=last), 0)
    state_mode = _mode_of(settings.state_dir)
    opened = open_way(settings.state_dir, user.gid)
    try:
        probe(user, settings)
    except GanglineError as error:
        for folder, mode in opened.items():
            folder.chmod(mode)
        if state_mode is not None:
            settings.state_dir.chmod(state_mode)
        if error.kind is ErrorKind.UNAVAILABLE:
            raise
        reason = error.message.removeprefix(f"rank_user {user.name} ")
        log.warning("owners get no accounts of their own here", reason=reason)
        return NO_UIDS, f"an account without rights {reason}"
    return (first, last), ""


def open_way(state_directory: Path, gid: int) -> dict[Path, int]:
    """Lets the accounts pass through the data directory of a local cluster, in which they can list nothing. Returns the
    former modes. The files of that directory are for the agent's user alone afterwards; its folders are already."""
    local = os.environ.get(LOCAL_CLUSTER, "")
    root = Path(local)
    if not local or not state_directory.absolute().is_relative_to(root):
        return {}
    opened = {}
    for folder in (root, *reversed(state_directory.absolute().relative_to(root).parents[:-1])):
        place = root / folder
        if (mode := let_pass(place, gid)) is not None:
            opened[place] = mode
    for entry in os.scandir(root):
        if entry.is_file(follow_symlinks=False):
            os.chmod(entry.path, stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode) & 0o700)  # noqa: PTH101
    return opened


def let_pass(folder: Path, gid: int) -> int | None:
    """Lets a group enter one of our folders that is closed to all others. Returns its former mode; None for a folder
    that stays as it is."""
    status = folder.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid() or mode & 0o077:
        return None
    os.chown(folder, -1, gid)
    folder.chmod(mode | 0o010)
    return mode


def describe_exposure(why: str) -> str:
    """Returns what a trial can read where its ranks run as the agent's own user."""
    name = _own_name()
    text = f"trials run as {name}, so each can read the cluster's token and all other files of {name}"
    if os.environ.get(LOCAL_CLUSTER):
        text += ", the administrator's token and etcd among them"
    return f"{text}: {why}" if why else text


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"the user {os.geteuid()}"


def _mode_of(folder: Path) -> int | None:
    try:
        return stat.S_IMODE(folder.stat().st_mode)
    except OSError:
        return None
