"""Control groups (version 2) of ranks: one for each rank, with its limits of memory and processes.

They lie beside the agent's own group, below a group that systemd has delegated to the agent's unit (`Delegate=` and
`DelegateSubgroup=`). A group that is not delegated belongs to systemd, and is never touched. The agent finds the root
at its start. Trial runners make and remove the groups of their ranks; the agent removes those of a runner that died.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("memory", "pids")
# systemd marks what it has delegated with one of these extended attributes.
_MARKS = ("trusted.delegate", "user.delegate")


def is_delegated(group: Path) -> bool:
    """Whether systemd has marked the group as delegated."""
    for mark in _MARKS:
        with suppress(OSError):
            if os.getxattr(group, mark) == b"1":
                return True
    return False


def find_root(
    own_groups: str, mount: Path = MOUNT, is_delegated: Callable[[Path], bool] = is_delegated
) -> tuple[Path | None, str]:
    """Returns the group below which ranks may have theirs, and the reason if there is none.

    own_groups: the content of /proc/self/cgroup. The agent must be in a subgroup of the delegated group, because no
    group with limits for its subgroups has processes itself.
    """
    paths = [line.partition("::")[2] for line in own_groups.splitlines() if line.startswith("0::")]
    if not paths:
        return None, "the kernel has no control groups of version 2"
    own = mount / paths[0].lstrip("/")
    root = own.parent
    if own == mount or not is_delegated(root):
        return None, "the agent is in no subgroup of a delegated group; see Delegate= and DelegateSubgroup= of systemd"
    try:
        available = (root / "cgroup.controllers").read_text().split()
    except OSError as error:
        return None, f"cannot read the controllers of {root}: {error.strerror}"
    missing = [name for name in _CONTROLLERS if name not in available]
    if missing:
        return None, f"{root} has no controller {missing[0]}; delegate it"
    return root, ""


def enable(root: Path) -> None:
    """Lets subgroups have limits. May be repeated. Raises OSError."""
    (root / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))


def path_of(root: Path, allocation_id: str, rank: int) -> Path:
    return root / f"{_prefix(allocation_id)}{rank}"


def make(group: Path, memory_bytes: int, processes: int) -> None:
    """Makes a rank's group with its limits; 0 for no limit. Raises OSError."""
    group.mkdir(exist_ok=True)
    if memory_bytes:
        (group / "memory.max").write_text(str(memory_bytes))
        # The kernel without swap has no such file. With swap, the limit would only move the memory to the disk.
        with suppress(FileNotFoundError):
            (group / "memory.swap.max").write_text("0")
        # A rank without its data loaders is of no use, so the kernel ends all of its processes.
        (group / "memory.oom.group").write_text("1")
    if processes:
        (group / "pids.max").write_text(str(processes))


def count_memory_kills(group: Path) -> int:
    """Returns how many processes of the group the kernel has killed because of its limit."""
    return _read_count(group / "memory.events", "oom_kill")


def remove_all(root: Path, allocation_id: str) -> None:
    """Kills what is left in the groups of an allocation's ranks, and removes the groups. A group whose processes are
    still dying stays; the agent calls this again after the end of its runner."""
    for group in _groups(root, allocation_id):
        with suppress(OSError):
            (group / "cgroup.kill").write_text("1")
        with suppress(OSError):
            group.rmdir()


def _groups(root: Path, allocation_id: str) -> Iterable[Path]:
    prefix = _prefix(allocation_id)
    with suppress(OSError):
        return [entry for entry in root.iterdir() if entry.name.startswith(prefix)]
    return []


def _prefix(allocation_id: str) -> str:
    return f"ranks-{allocation_id}-"


def _read_count(path: Path, key: str) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return 0
