"""Checks the settings about the ranks' users, limits and containers at the agent's start, and writes them down for its
runners.

A setting that this machine cannot carry out ends the agent with one line, before any work arrives. Called by the
program.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import structlog

from gangline.errors import GanglineError, invalid, unavailable
from services.agent.machine import owner_accounts
from services.agent.machine.owner_accounts import NO_UIDS
from services.agent.settings import AgentSettings
from services.common import rank_cgroup
from services.common.container_program import find_program
from services.common.rank_rules import RankRules, RankUser, find_user, write_rules
from services.common.state_folder import StateFolder

# The capabilities that let an agent run ranks as other users, by their bits in /proc/self/status (capabilities(7)).
NEEDED_CAPABILITIES = {"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7}
# Limit for one check that a user can start Gangline. A cold start from a network disk takes seconds.
PROBE_SECONDS = 60.0
# Checks of one user, where an answer of a busy machine proves nothing.
PROBE_TRIES = 3
# Errors of a machine that is short of something for the moment.
_PASSING_ERRORS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE})
_PASSING_LINE = re.compile("MemoryError|" + "|".join(rf"\[Errno {number}\]" for number in sorted(_PASSING_ERRORS)))
# The kernel follows as many.
_MOST_LINKS = 40
_PROBE = "import os, sys, gangline.launch.child; os.chdir(sys.argv[1])"

log = structlog.get_logger(__name__)


def settle_rules(settings: AgentSettings) -> str:
    """Checks and writes the rules. Returns what trials can read of the cluster, and why; empty while their ranks have
    accounts without rights. Raises GanglineError `agent.rank_user`, `agent.rank_uids`, `agent.busy`,
    `agent.rank_limits`, `agent.container_command`."""
    names = {settings.rank_user, *settings.rank_users.values()} - {""}
    if settings.rank_users and not settings.rank_user:
        raise _bad_user("rank_users needs rank_user too, for owners that it does not name")
    users = {name: _find(name) for name in sorted(names)}
    others = [user for user in users.values() if user.uid != os.geteuid()]
    if others:
        _check_rights(others[0])
        _open_state(settings.state_dir)
        for user in others:
            _probe(user, StateFolder(settings.state_dir).allocations)
    uids, why_not = owner_accounts.settle(settings, _probe_account) if not settings.rank_user else (NO_UIDS, "")
    cgroup = _find_cgroup(settings)
    if settings.rank_processes and not cgroup and os.geteuid() == 0 and not settings.rank_user and uids == NO_UIDS:
        text = "the kernel does not limit the processes of root: set rank_user too, or delegate a control group"
        raise invalid("agent.rank_limits", f"rank_processes has no effect here, because {text}")
    rules = RankRules(
        settings.rank_user,
        settings.rank_users,
        settings.rank_memory_mb,
        settings.rank_processes,
        cgroup,
        _find_program(settings),
        tuple(settings.container_options),
        *uids,
        settings.shared_notebooks,
    )
    try:
        write_rules(settings.state_dir, rules)
    except OSError as error:
        _on_unwritten(rules, error)
    return "" if others or uids != NO_UIDS else owner_accounts.describe_exposure(why_not)


def _probe_account(user: RankUser, settings: AgentSettings) -> None:
    """Opens the state for the accounts, and starts this Python as one. Raises GanglineError `agent.rank_user` and
    `agent.busy`."""
    _check_rights(user)
    _open_state(settings.state_dir)
    _probe(user, StateFolder(settings.state_dir).allocations)


def _find_program(settings: AgentSettings) -> tuple[str, ...]:
    """Returns the program for containers. Raises GanglineError `agent.container_command` if the named one is not
    there."""
    program = find_program(settings.container_command)
    if program and shutil.which(program[0]) is None:
        text = (
            f"container_command: there is no program {program[0]!r} here; install it, or set container_command to none"
        )
        raise invalid("agent.container_command", text)
    return program


def missing_capabilities(status: str) -> list[str]:
    """Returns the names of the needed capabilities that a process lacks. status: the content of /proc/self/status."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    effective = int(match[1], 16) if match else 0
    return [name for name, bit in NEEDED_CAPABILITIES.items() if not effective >> bit & 1]


def _find(name: str) -> RankUser:
    try:
        return find_user(name)
    except GanglineError as error:
        raise _bad_user(f"rank_user: {error.message}") from error


def _check_rights(user: RankUser) -> None:
    missing = missing_capabilities(Path("/proc/self/status").read_text())
    if missing:
        text = f"run the agent as root, or give its unit AmbientCapabilities={' '.join(NEEDED_CAPABILITIES)}"
        raise _bad_user(f"rank_user {user.name}: the agent may not run processes as another user; {text}")


def _open_state(state_directory: Path) -> None:
    """Lets other users pass through the state directory to the folders of their own attempts. They can list nothing
    there, and every file in it is for the agent's user alone."""
    state = StateFolder(state_directory)
    try:
        # Earlier versions have made the spools' folder, with the drainer's log, for all users.
        if state.spools.is_dir():
            state.spools.chmod(0o700)
        for folder in (state.path, state.allocations):
            folder.chmod(0o711)
    except OSError as error:
        raise _bad_user(f"rank_user: cannot let the ranks pass through {state_directory}: {error}") from error


def _probe(user: RankUser, folder: Path) -> None:
    """Starts this Python as the user, which finds every obstacle on the way to it, to Gangline and to the attempts.

    Raises GanglineError `agent.rank_user` for an obstacle, and `agent.busy` where this machine could not find out.
    """
    for left in reversed(range(PROBE_TRIES)):
        problem = _try_probe(user, folder)
        if not problem:
            return
        log.warning("the check of a user of ranks has failed", user=user.name, reason=problem, tries_left=left)
    text = f"rank_user {user.name} cannot be checked now, {PROBE_TRIES} times in a row: {sys.executable} {problem}"
    raise unavailable("agent.busy", f"{text}; start the agent again when this machine is less busy")


def _try_probe(user: RankUser, folder: Path) -> str:
    """Returns why it is not known whether the user can start Gangline; empty if it can. Raises GanglineError
    `agent.rank_user` if it cannot."""
    try:
        probe = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE, str(folder.absolute())],
            cwd="/",
            env=_plain_environment(os.environ),
            user=user.uid,
            group=user.gid,
            extra_groups=user.groups,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"has not started within {PROBE_SECONDS:g} s"
    except (OSError, subprocess.SubprocessError) as error:
        if isinstance(error, OSError) and error.errno in _PASSING_ERRORS:
            return f"does not start: {error}"
        closed = _closed_folder(user, Path(sys.executable)) if isinstance(error, PermissionError) else None
        advice = f"; it may not enter {closed}: allow it with chmod o+x, or install Gangline elsewhere"
        raise _unusable(user, f"{error}{advice if closed else ''}") from error
    last = (probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"])[-1]
    # A signal comes from outside, such as the kernel's when memory is short.
    if probe.returncode < 0 or (probe.returncode and _PASSING_LINE.search(last)):
        return f"has ended: {last}"
    if probe.returncode:
        raise _unusable(user, last)
    return ""


def _closed_folder(user: RankUser, file: Path) -> Path | None:
    """Returns the first folder on the way to a file that the user may not enter, by its mode; None for none. The file
    may be a link to another one, as in a virtual environment."""
    steps = [file.absolute()]
    while steps[-1].is_symlink() and len(steps) < _MOST_LINKS:
        steps.append(steps[-1].parent / steps[-1].readlink())
    for folder in (folder for step in (*steps, file.resolve()) for folder in reversed(step.parents)):
        status = folder.stat()
        if status.st_uid == user.uid:
            needed = stat.S_IXUSR
        else:
            needed = stat.S_IXGRP if status.st_gid in (user.gid, *user.groups) else stat.S_IXOTH
        if not status.st_mode & needed:
            return folder
    return None


def _plain_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")}


def _find_cgroup(settings: AgentSettings) -> str:
    """Returns the control group below which ranks get theirs; empty without a limit, or if the limits are those of
    processes."""
    if not settings.rank_memory_mb and not settings.rank_processes:
        return ""
    root, why_not = rank_cgroup.find_root(Path("/proc/self/cgroup").read_text())
    if root is not None:
        try:
            rank_cgroup.enable(root)
        except OSError as error:
            root, why_not = None, f"cannot use {root}: {error.strerror}"
    if root is None:
        log.warning("the limits of ranks are those of each process and user, not of control groups", reason=why_not)
        return ""
    return str(root)


def _on_unwritten(rules: RankRules, error: OSError) -> None:
    """Ends the agent if its ranks would run without their rules. Without rules, the disk check handles a full disk."""
    if rules != RankRules(container_command=rules.container_command):
        raise invalid("agent.rank_rules", f"cannot write the rules for the ranks: {error}") from error
    log.warning("cannot write the rules for the ranks", error=str(error))


def _unusable(user: RankUser, problem: str) -> GanglineError:
    return _bad_user(f"rank_user {user.name} cannot run {sys.executable} here: {problem}")


def _bad_user(text: str) -> GanglineError:
    return invalid("agent.rank_user", text)
