"""processes.json: the supervisor's record of the processes of its cluster.

It is written whole after every change. `status` and `down` read it, and tests that kill a service on purpose.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from gangline.local.identity import Identity
from gangline.login import write_private

ServiceState = Literal["starting", "running", "restarting", "stopped"]


@dataclass(frozen=True, slots=True)
class ServiceEntry:
    """One service."""

    name: str
    kind: str
    state: ServiceState
    pid: int = 0  # 0 while no process runs
    start_ticks: int = 0  # identifies the process together with pid, see Identity; 0 while no process runs
    addresses: dict[str, str] = field(default_factory=dict)
    restarts: int = 0
    last_exit: str = ""  # how the process before ended
    log: str = ""
    note: str = ""  # one line about its program

    @property
    def identity(self) -> Identity | None:
        return Identity(self.pid, self.start_ticks) if self.pid else None


@dataclass(frozen=True, slots=True)
class ProcessTable:
    supervisor: Identity
    services: tuple[ServiceEntry, ...]

    def find(self, kind: str) -> ServiceEntry | None:
        """Returns the first service of a kind."""
        return next((entry for entry in self.services if entry.kind == kind), None)

    def write(self, path: Path) -> None:
        table = {
            "supervisor": asdict(self.supervisor),
            "services": {entry.name: asdict(entry) for entry in self.services},
        }
        write_private(path, json.dumps(table, indent=1) + "\n")


def load_table(path: Path) -> ProcessTable | None:
    """Returns None when there is no file, or when it is no process table."""
    try:
        table = json.loads(path.read_text("utf-8"))
        services = tuple(ServiceEntry(**entry) for entry in table["services"].values())
        return ProcessTable(Identity(**table["supervisor"]), services)
    except (OSError, ValueError, TypeError, KeyError):
        return None
