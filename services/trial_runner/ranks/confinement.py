"""The user and the limits of the ranks of one attempt: files that change their owner, variables, control groups.

Owns what the ranks get of the machine. The agent's rules decide; gangline/launch/confinement.py applies them in each
rank. The runner and the nursery keep the agent's rights. The runner calls `load` once, before anything of the attempt
starts, and `release` at the end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from gangline.domain.limits import MB
from gangline.errors import GanglineError, unavailable
from gangline.launch.beat_file import stacks_path_of
from gangline.v1 import runner_pb2, types_pb2
from services.common import rank_cgroup
from services.common.access.user_rights import is_folder_of
from services.common.concurrency import in_own_thread
from services.common.rank_rules import RankRules, RankUser, check_free, find_user, load_rules, owners_user
from services.common.state_folder import SharedFolder
from services.trial_runner.gang.limit import Limits
from services.trial_runner.ranks import owner_account

# The number of the startup hook among the nursery's processes.
_HOOK = -1
# Limit for opening the storage to the ranks. One that hangs is for the ranks to meet.
STORAGE_SECONDS = 5.0
# Limit for a look at the folders of PATH. One that does not answer would hold up each search for a program.
PATH_SECONDS = 5.0
# Variables that belong to the session of the agent's user.
_SESSION = ("DBUS_SESSION_BUS_ADDRESS", "MAIL", "SUDO_", "XDG_")


log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Confinement:
    """The confinement of one attempt's ranks; without arguments, and before `load`, there is none."""

    rules: RankRules = field(default_factory=RankRules)
    user: RankUser | None = None  # None for the agent's own user
    allocation_id: str = ""
    agent_id: str = ""
    accounts: str = ""  # file in which processes find the name of an account for an owner

    @property
    def uid(self) -> int:
        """The account as which the ranks run."""
        return self.user.uid if self.user is not None else os.geteuid()

    @property
    def limits(self) -> Limits:
        return Limits(self.agent_id, self.rules.memory_mb, self.rules.processes)

    def load(self, folder: SharedFolder, owner: str, owner_id: int) -> None:
        """Takes the agent's rules for the owner. Raises GanglineError `environment.*`."""
        rules = load_rules(folder.state.path)
        name = rules.user_of(owner)
        try:
            user = find_user(name) if name else None
            if user is None and rules.first_uid:
                user = owner_account.settle_home(owners_user(rules, owner_id), folder.state.homes)
                check_free(user)
        except GanglineError as error:
            account = repr(name) if name else "an account of its own"
            text = f"{self.agent_id} is set to run the ranks of {owner or 'everyone'} as {account}: {error.message}"
            raise error.reworded(text) from error
        self.rules = rules
        self.user = None if user is not None and user.uid == os.geteuid() else user

    def orders(self, rank: int, *, is_contained: bool = False) -> dict[str, Any]:
        """Returns the nursery's orders for one rank; empty if nothing is confined.

        is_contained: the nursery runs in a container, whose processes have their user already and see no other control
        groups.
        """
        orders: dict[str, Any] = {}
        if self.rules.cgroup and not is_contained:
            if self._has_limits:
                orders["cgroup"] = str(self._cgroup(rank))
        else:
            orders |= plan_limits(self.rules)
        if self.user is not None and not is_contained:
            orders["user"] = {"uid": self.user.uid, "gid": self.user.gid, "groups": list(self.user.groups)}
            if self.user.is_dynamic:
                orders["user"] |= {"accounts": self.accounts, "umask": owner_account.UMASK, "no_new_privileges": True}
        return orders

    def make_groups(self, ranks: range) -> None:
        """Makes the control groups of the ranks and of the startup hook. Raises GanglineError `environment.cgroup`."""
        if not self.rules.cgroup or not self._has_limits:
            return
        try:
            for rank in (_HOOK, *ranks):
                rank_cgroup.make(self._cgroup(rank), self.rules.memory_mb * MB, self.rules.processes)
        except OSError as error:
            raise unavailable("environment.cgroup", f"cannot limit the ranks on {self.agent_id}: {error}") from error

    def exceeded_memory(self, rank: int) -> bool:
        """Whether the kernel killed the rank, or a process of it, at the limit of its control group."""
        return bool(self.rules.cgroup and self._has_limits and rank_cgroup.count_memory_kills(self._cgroup(rank)))

    def release(self) -> None:
        """Ends what is left in the control groups and removes them."""
        if self.rules.cgroup:
            rank_cgroup.remove_all(Path(self.rules.cgroup), self.allocation_id)

    async def open(self, folder: SharedFolder, spec: runner_pb2.RunnerSpec) -> None:
        """Opens to the ranks' user what lies outside of its own folders: the way to them, and the storage."""
        self.open_folder(folder)
        await self.open_storage(spec.storage_url, spec.trial.id, spec.storage_marker)

    def open_folder(self, folder: SharedFolder) -> None:
        """Lets the ranks' user pass through the allocation's folder, in which it cannot list or make anything."""
        if self.user is not None:
            folder.path.chmod(0o711)
        if self.user is not None and self.user.is_dynamic:
            owner_account.make_home(self.user)
            owner_account.write_accounts(folder.accounts_path, self.user)

    async def open_storage(self, url: str, trial_id: str, marker: str) -> None:
        """Lets an owner's account write into the storage. Returns after a moment if the storage does not answer."""
        if self.user is None or not self.user.is_dynamic:
            return
        work = partial(owner_account.open_storage, url, trial_id, self.user, marker)
        if not await in_own_thread(work, STORAGE_SECONDS):
            log.warning("the storage does not answer; going on without a look at it", storage=url)

    async def find_theft(self, spec: runner_pb2.RunnerSpec, checkpoint: types_pb2.Checkpoint) -> str | None:
        """Returns why a rank's report of a checkpoint is false; empty where it is not. None: the storage does not
        answer."""
        is_deletion = checkpoint.state == types_pb2.CHECKPOINT_STATE_DELETING
        if is_deletion or self.user is None or not self.user.is_dynamic:
            return ""
        found: list[str] = []
        what = (spec.storage_url, spec.trial.id, self.user, checkpoint.id, checkpoint.url)
        await in_own_thread(lambda: found.append(owner_account.find_theft(*what)), STORAGE_SECONDS)
        return found[0] if found else None

    def give_beats(self, beat_paths: Mapping[int, Path]) -> None:
        """Gives the ranks their beat files. The dumps of their stacks lie in the allocation's folder too, in which the
        user makes no files. So it cannot put a link to another file there, which the runner would read."""
        if self.user is None:
            return
        for path in beat_paths.values():
            for each in (path, stacks_path_of(path)):
                self.give_file(each)

    def give_file(self, path: Path) -> None:
        """Makes the file, empty if it is new, and gives it to the user of the ranks."""
        if self.user is not None:
            path.touch(0o600)
            os.chown(path, self.user.uid, self.user.gid, follow_symlinks=False)

    def give(self, path: Path) -> None:
        """Gives a folder with its content to the user of the ranks. The folder itself comes last, so this user cannot
        change its content meanwhile. A folder that the user has already stays as it is: by now it may hold anything."""
        if self.user is None or not path.is_dir() or path.lstat().st_uid == self.user.uid:
            return
        path.chmod(0o700)
        give_tree(path, self.user.uid, self.user.gid)

    def settle(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns a rank's environment with the variables of its user."""
        return dict(environment) if self.user is None else with_user(environment, self.user, Path.is_dir)

    async def keep_enterable(self, search_path: str) -> str:
        """Returns a search path like PATH without the folders that the ranks' user may not enter, in the same order.

        In such a folder every program is denied to the user, so a shell reports a wrong name as a missing permission.
        Relative entries stay, because they depend on the folder of a process. Folders that do not answer are dropped.
        """
        if self.user is None:
            return search_path
        entries = search_path.split(os.pathsep)
        enterable: set[str] = set()

        def look(folder: str) -> None:
            if is_folder_of(self.user, folder):
                enterable.add(folder)

        folders = {entry for entry in entries if Path(entry).is_absolute()}
        await asyncio.gather(*(in_own_thread(partial(look, folder), PATH_SECONDS) for folder in folders))
        return os.pathsep.join(entry for entry in entries if entry not in folders or entry in enterable)

    @property
    def _has_limits(self) -> bool:
        return bool(self.rules.memory_mb or self.rules.processes)

    def _cgroup(self, rank: int) -> Path:
        return rank_cgroup.path_of(Path(self.rules.cgroup), self.allocation_id, rank)


def plan_limits(rules: RankRules) -> dict[str, int]:
    """Returns the limits of processes (rlimits)."""
    limits = {"memory_bytes": rules.memory_mb * MB, "processes": rules.processes}
    return {name: value for name, value in limits.items() if value}


def with_user(environment: Mapping[str, str], user: RankUser, is_dir: Callable[[Path], bool]) -> dict[str, str]:
    """Returns the environment with the variables that a login as the user sets. A user without a home has /tmp."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_SESSION)}
    home = user.home if is_dir(Path(user.home)) else "/tmp"  # noqa: S108 - as for any user without a home
    return kept | {"HOME": home, "USER": user.name, "LOGNAME": user.name, "SHELL": user.shell}


def give_tree(path: Path, uid: int, gid: int) -> None:
    """Changes the owner of a folder and all that it holds, and follows no link."""
    for root, folders, files, descriptor in os.fwalk(path, topdown=False):
        for name in (*folders, *files):
            os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
        if root == str(path):
            os.fchown(descriptor, uid, gid)
