"""Runs the startup hook of the user's code, `startup-hook.sh`, once on each machine of an attempt, before its ranks.

bash reads the hook into itself, as Determined does, so variables that it exports reach the ranks. The hook ends at its
first command that fails. Its processes belong to the nursery, so they end with the attempt.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gangline.domain.failure import describe_signal
from gangline.errors import GanglineError, unavailable
from gangline.launch.beat_file import BEAT_KEY
from services.common.foreign_file import read_foreign
from services.trial_runner.gang.gang_plan import is_reserved
from services.trial_runner.ranks.log_pump import LogPump
from services.trial_runner.ranks.nursery_client import NurseryClient
from services.trial_runner.ranks.step import STEP_RANK, wait_step

HOOK_NAME = "startup-hook.sh"
# The number of the hook among the nursery's processes; ranks have 0 and more.
HOOK_RANK = STEP_RANK
# Of all variables that a hook leaves. The kernel gives a program less (execve(2)).
MAX_LISTING_BYTES = 16 << 20
# Variables of the shell itself.
_SHELL_OWN = {"_", "PWD", "OLDPWD", "SHLVL", "BASH_EXECUTION_STRING"}
# Variables that only a process of its own has before the hook starts; the hook is no rank.
_RANK_OWN = {"RANK", "LOCAL_RANK", "GANGLINE_RUNNER_SOCKET", BEAT_KEY}


class HookFailed(Exception):
    """The hook did not end well. The message is for the user."""


@dataclass(frozen=True, slots=True)
class EnvironmentChange:
    """The variables that a hook has set and removed."""

    changed: Mapping[str, str]
    removed: frozenset[str] = frozenset()

    def apply(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in {**environment, **self.changed}.items() if name not in self.removed}

    @property
    def needs_fresh_process(self) -> bool:
        """Whether a variable has changed that the loader or Python reads only when a process starts."""
        names = {*self.changed, *self.removed}
        return any(name.startswith(("LD_", "PYTHON")) and name != "PYTHONPATH" for name in names)


def find_change(before: Mapping[str, str], after: Mapping[str, str]) -> EnvironmentChange:
    """Returns the difference of two environments, without the variables that the runner itself sets."""
    changed = {name: value for name, value in after.items() if before.get(name) != value and _is_free(name)}
    return EnvironmentChange(changed, frozenset(name for name in before if name not in after and _is_free(name)))


def _is_free(name: str) -> bool:
    return name not in _SHELL_OWN and not is_reserved(name)


async def run_hook(
    nursery: NurseryClient,
    pump: LogPump,
    *,
    environment: Mapping[str, str],
    directory: Path,
    listing: Path,
    limit_seconds: float,
    on_up: Callable[[int], None],
) -> EnvironmentChange:
    """Runs the hook to its end. A cancelled call leaves the processes to the nursery's end.

    Raises HookFailed for a failure of the hook itself, and GanglineError `runner.*` where the machine did not run it.

    environment: of the machine's first rank. directory: has the hook; it runs there. listing: a file for the variables
    afterwards. on_up: called with the pid.
    """
    given = {name: value for name, value in environment.items() if name not in _RANK_OWN}
    fds = [pump.open_pipe(HOOK_RANK, stream) for stream in ("stdout", "stderr")]
    program = ["bash", "-c", f"set -e; source ./{HOOK_NAME}; set +e; exec env -0 > {shlex.quote(str(listing))}"]
    try:
        nursery.start(HOOK_RANK, given, directory=str(directory), num_threads=1, fds=fds, program=program)
    finally:
        for fd in fds:
            os.close(fd)
    try:
        end = await wait_step(nursery, limit_seconds, on_up)
    except GanglineError as error:
        raise error.reworded(f"{HOOK_NAME} was lost: {error.message}") from error
    if end.is_overdue:
        raise HookFailed(f"{HOOK_NAME} did not end within {limit_seconds:g} s (hang_detection.start_seconds)")
    if end.problem:
        raise unavailable("runner.no_rank", f"{HOOK_NAME} cannot be run: {end.problem}")
    if end.signal is not None:
        raise HookFailed(f"{HOOK_NAME} {describe_signal(end.signal)}")
    if end.exit_code:
        raise HookFailed(f"{HOOK_NAME} failed with exit code {end.exit_code}")
    return find_change(given, read_variables(listing) or given)


def read_variables(listing: Path) -> dict[str, str] | None:
    """Returns the variables in a listing of `env -0`. None if the hook left bash with exit 0, so there is none.
    Raises HookFailed."""
    try:
        content = read_foreign(listing, MAX_LISTING_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HookFailed(f"{HOOK_NAME} leaves no readable list of its variables: {error.strerror}") from error
    if len(content) > MAX_LISTING_BYTES:
        raise HookFailed(
            f"{HOOK_NAME} leaves variables of more than {MAX_LISTING_BYTES >> 20} MiB, with which no program starts"
        )
    text = os.fsdecode(content)
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
