"""Reads how much memory this process may use: limits of its control groups (version 2), and the memory that is free.

Called by the plan of `parallelism: auto`, and by the saver before it locks memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

MEMBERSHIP = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")


def cgroup_limits(membership: Path = MEMBERSHIP, root: Path = CGROUP_ROOT) -> dict[str, int]:
    """Returns the limits of a process's control group and the groups above it. membership: the process's file
    /proc/PID/cgroup. root: where the groups are mounted."""
    limits = {str(group): _read_number(group / "memory.max") for group in _groups(membership, root)}
    # The root has no limit, and a group without the memory controller has none.
    return {group: limit for group, limit in limits.items() if limit is not None}


def free_host_bytes(membership: Path = MEMBERSHIP, root: Path = CGROUP_ROOT) -> int:
    """Returns the bytes that this machine can still give to this process: those that are available without swapping,
    and no more than what its control groups have left."""
    free = int(psutil.virtual_memory().available)
    for group, limit in cgroup_limits(membership, root).items():
        # The kernel drops the inactive pages of files before it ends a process.
        used = (_read_number(Path(group) / "memory.current") or 0) - _inactive_file_bytes(Path(group))
        free = min(free, max(0, limit - max(0, used)))
    return free


def _groups(membership: Path, root: Path) -> Iterator[Path]:
    """Yields the control group of a process, and those above it up to the root."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None:
        return
    for group in (root / own, *(root / own).parents):
        if not group.is_relative_to(root):
            return
        yield group


def _inactive_file_bytes(group: Path) -> int:
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def _read_number(file: Path) -> int | None:
    """Returns None for a file that is not there, and for `max`."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
