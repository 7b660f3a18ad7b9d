"""Says why a local cluster does not answer, and what brings it back: for `gangline status` and for failed calls.

Owns the sentences about a supervisor or service that does not run, and about a disk without space. It reads the data
directory and /proc. It starts and stops nothing, and it asks no service.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from gangline.local.layout import Layout
from gangline.local.lock import is_locked
from gangline.local.plan import ClusterPlan
from gangline.local.process_table import ProcessTable, ServiceEntry, load_table
from gangline.local.shutdown import find_cluster_processes

# etcd writes its log in files of this size, and ends where it cannot make the next one.
_NEEDED_BYTES = 64 << 20
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Space:
    """What this account may still write on a file system. Some file systems do not count files; has_files is then
    True."""

    free_bytes: int
    has_files: bool


def describe_outage(root: Path) -> str:
    """Returns a clause about what of this cluster does not run, and the remedy. Empty where all of it runs, or where
    this account may not see it."""
    try:
        return _describe(Layout(root), root)
    except OSError:
        return ""


def _describe(layout: Layout, root: Path) -> str:
    if not root.is_dir():
        return f"the local cluster in {root} is gone with its directory; start a new one with `gangline up`"
    shortage = describe_shortage(layout)
    if is_locked(layout.lock):
        table = load_table(layout.processes)
        down = _describe_services(table) if table is not None else ""
        return "; ".join(part for part in (down, shortage and f"{shortage}, then the services come back") if part)
    if find_cluster_processes(layout):
        end = f"`gangline down --data-dir {shlex.quote(str(root))}`"
        problem = f"the supervisor of the local cluster in {root} is gone, so nothing restarts a service"
        return "; ".join(part for part in (problem, shortage, f"run {end}, then {start_command(layout)}") if part)
    problem = f"the local cluster in {root} does not run"
    return "; ".join(part for part in (problem, shortage, f"start it with {start_command(layout)}") if part)


def describe_shortage(layout: Layout) -> str:
    """Returns a clause about a file system that is too full for etcd; empty where it has space, or is not there."""
    try:
        return say_shortage(_measure(layout.root), layout.root)
    except OSError:
        return ""


def say_shortage(space: Space, root: Path) -> str:
    """Returns a clause about too little space; empty where there is enough."""
    if not space.has_files:
        return f"the file system of {root} takes no more files; delete some there"
    if space.free_bytes >= _NEEDED_BYTES:
        return ""
    if space.free_bytes < _MIB:
        return f"the file system of {root} is full; free space there"
    left, needed = f"{space.free_bytes // _MIB} MiB", f"{_NEEDED_BYTES // _MIB} MiB"
    return f"the file system of {root} has {left} left and etcd needs {needed}; free space there"


def start_command(layout: Layout) -> str:
    """Returns the command that starts this cluster again, as it was."""
    try:
        plan = ClusterPlan.parse(layout.plan.read_text("utf-8"))
        shape = f" --agents {plan.num_agents} --slots {plan.slots}"
    except (OSError, ValueError, TypeError):
        shape = ""
    return f"`gangline up{shape} --data-dir {shlex.quote(str(layout.root))}`"


def state_of(entry: ServiceEntry) -> str:
    """Returns the state of a service. The table of a supervisor that is gone, or that cannot write, may name a process
    that has ended."""
    identity = entry.identity
    return "gone" if identity is not None and not identity.is_alive() else entry.state


def _describe_services(table: ProcessTable) -> str:
    down = [f"{entry.name} ({_why(entry)})" for entry in table.services if state_of(entry) != "running"]
    verb = "does" if len(down) == 1 else "do"
    return f"{', '.join(down)} {verb} not run now; see `gangline status`" if down else ""


def _why(entry: ServiceEntry) -> str:
    state = state_of(entry)
    return f"{state}, {entry.last_exit}" if entry.last_exit and state != "gone" else state


def _measure(path: Path) -> Space:
    status = os.statvfs(path)
    blocks, files = (status.f_bfree, status.f_ffree) if os.geteuid() == 0 else (status.f_bavail, status.f_favail)
    return Space(blocks * status.f_frsize, has_files=status.f_files == 0 or files > 0)
