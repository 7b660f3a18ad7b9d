"""The number of processes here that the kernel has killed because memory ran out.

Owns one number, read before the ranks start and after one was killed. If the number has grown, the kernel sent the
SIGKILL. The number of this process's own cgroup is used if there is one, otherwise that of the machine.
"""

from __future__ import annotations

import re
from pathlib import Path

_OOM_KILLS = re.compile(r"^oom_kill (\d+)", re.MULTILINE)
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def count_oom_kills() -> int:
    """Returns the number of kills up to now."""
    count = _read_count(_own_cgroup() / "memory.events")
    return (_read_count(Path("/proc/vmstat")) or 0) if count is None else count


def _own_cgroup() -> Path:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return _CGROUP_ROOT
    paths = [line.partition("::")[2] for line in lines if line.startswith("0::")]
    return _CGROUP_ROOT / paths[0].lstrip("/") if paths else _CGROUP_ROOT


def _read_count(path: Path) -> int | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    found = _OOM_KILLS.search(text)
    return int(found[1]) if found else None
