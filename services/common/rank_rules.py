"""The rules that an agent sets for the ranks of its machine: their users, their limits, and the program for containers.

The agent writes them into its state directory when it starts, and each trial runner reads them when it starts. So a
running attempt keeps the rules that it began with.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from gangline.errors import GanglineError, invalid, unavailable
from services.common.disk import write_atomic

FILE_NAME = "rank_rules.json"
# Of the names of accounts for owners.
ACCOUNT_PREFIX = "gangline-"


@dataclass(frozen=True, slots=True)
class RankUser:
    """A user of this machine, as which ranks run."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]  # ids of all its groups
    home: str
    shell: str
    # Whether it is an account for one owner, which exists only by its number. The attempt then sets the home.
    is_dynamic: bool = False


@dataclass(frozen=True, slots=True)
class RankRules:
    """The rules of one agent."""

    user: str = ""  # a name or a number; empty for the agent's own user
    # users by the owner of the experiment, for owners with a user of their own
    users: Mapping[str, str] = field(default_factory=dict)
    memory_mb: int = 0  # memory limit of one rank, in MiB; 0 for none
    processes: int = 0  # the most processes of one rank; 0 for no limit
    # control group below which each rank gets its own; empty if the limits are those of processes (rlimits)
    cgroup: str = ""
    container_command: tuple[str, ...] = ()  # program that runs containers, with its first arguments; empty without one
    container_options: tuple[str, ...] = ()  # further arguments of its `run`
    first_uid: int = 0  # first id of the accounts for owners, which replace `user`; 0 without them
    last_uid: int = 0  # last id of the accounts for owners; 0 without them
    shared_notebooks: bool = False  # whether a notebook may run where programs of other owners can reach it

    def user_of(self, owner: str) -> str:
        """Returns the user for an owner's ranks; empty for the agent's own."""
        return self.users.get(owner, self.user)

    def shares_user(self, owner: str) -> bool:
        """Returns whether ranks of other owners run as the same user."""
        if not self.user:
            return not self.first_uid
        name = self.user_of(owner)
        return name == self.user or list(self.users.values()).count(name) > 1


def write_rules(state_directory: Path, rules: RankRules) -> None:
    """Raises OSError."""
    write_atomic(state_directory / FILE_NAME, json.dumps(asdict(rules)), mode=0o600, is_durable=False)


def load_rules(state_directory: Path) -> RankRules:
    """Returns the rules; those without any limit if there is no file.

    Raises GanglineError `environment.rules` if the file cannot be read: a rank must not run with more rights than the
    operator wants.
    """
    path = state_directory / FILE_NAME
    try:
        fields = json.loads(path.read_text())
        if not isinstance(fields, dict):
            raise ValueError("it holds no mapping")
        rules = RankRules(**{name: fields[name] for name in RankRules.__dataclass_fields__ if name in fields})
        command, options = tuple(rules.container_command), tuple(rules.container_options)
        return replace(rules, users=dict(rules.users), container_command=command, container_options=options)
    except FileNotFoundError:
        return RankRules()
    except (OSError, ValueError, TypeError) as error:
        raise invalid(
            "environment.rules", f"cannot read {path}: {error}; restart the agent, which writes it"
        ) from error


def owners_user(rules: RankRules, owner_id: int) -> RankUser:
    """Returns the account of an owner's ranks, which no file of this machine names. It is the same on every machine of
    the cluster with the same range, so gangs can share files. Raises GanglineError `environment.rank_uids`, which is
    the operator's to correct.

    owner_id: the number that the cluster never gives again; 0 for an owner without one.
    """
    uid, span = rules.first_uid + owner_id, f"rank_uids {rules.first_uid}-{rules.last_uid}"
    if owner_id < 0 or uid > rules.last_uid:
        text = f"{span} has no id for the owner with the number {owner_id}; give all agents a longer range"
        raise unavailable("environment.rank_uids", text)
    # The first id is also the group of all these accounts, which may pass where no other account may.
    return RankUser(f"{ACCOUNT_PREFIX}{owner_id}", uid, uid, (uid, rules.first_uid), "", "/bin/sh", is_dynamic=True)


def check_free(user: RankUser) -> None:
    """Raises GanglineError `environment.rank_uids` where an account of this machine has the id of an owner's account.
    It may be newer than the agent's start, as those of systemd's DynamicUser and of a directory service are."""
    try:
        entry = pwd.getpwuid(user.uid)
    except KeyError:
        return
    text = f"{entry.pw_name}, an account of this machine, has the id {user.uid} of rank_uids"
    raise unavailable("environment.rank_uids", f"{text}; give all agents a range without accounts")


def find_user(name: str) -> RankUser:
    """Looks a user up on this machine. Raises GanglineError `environment.no_user`, also for root."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except (KeyError, OverflowError) as error:
        raise _no_user(f"this machine has no user {name!r}; make one, or name another") from error
    if entry.pw_uid == 0:
        raise _no_user("ranks never run as root by this setting; name a user without rights")
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return RankUser(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell)


def _no_user(text: str) -> GanglineError:
    return invalid("environment.no_user", text)
