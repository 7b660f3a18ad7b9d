"""One service under supervision: its process, its readiness, and its restart after a death.

The clock is an argument everywhere. The supervisor owns the services, reaps processes and calls `on_exit`.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

from gangline import unix_socket
from gangline.local.identity import Identity, identify
from gangline.local.layout import Layout
from gangline.local.process_table import ServiceEntry, ServiceState
from gangline.local.program import MARKER, Program

# The back-off before a restart doubles from the first to the longest pause.
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
# A service that lived this long is healthy, so its next restart begins with the first pause again.
_STEADY_SECONDS = 30.0


class Service:
    """Supervises one service. restart_at: when the next process is to be started; None while one lives."""

    def __init__(self, program: Program, layout: Layout) -> None:
        self.program = program
        self.process: Identity | None = None
        self.state: ServiceState = "stopped"
        self.restart_at: float | None = None
        self._layout = layout
        self._started_at = 0.0
        self._restarts = 0
        self._pause = _FIRST_PAUSE_SECONDS
        self._last_exit = ""

    @property
    def entry(self) -> ServiceEntry:
        return ServiceEntry(
            name=self.program.name,
            kind=self.program.kind,
            state=self.state,
            pid=self.process.pid if self.process else 0,
            start_ticks=self.process.start_ticks if self.process else 0,
            addresses=self.program.addresses,
            restarts=self._restarts,
            last_exit=self._last_exit,
            log=str(self._layout.log(self.program.name)),
            note=self.program.note,
        )

    def start(self, now: float) -> None:
        """Starts the process. What the machine refuses, such as a file on a full disk, counts as a death."""
        self._started_at = now
        try:
            self.process = self._launch()
        except OSError as failure:
            self._end(f"cannot start: {failure.strerror}", now)
            return
        self.state = "starting"
        self.restart_at = None

    def _launch(self) -> Identity | None:
        for left in (self._layout.ready(self.program.name), *self.program.sockets):
            left.unlink(missing_ok=True)
        # etcd takes every ETCD_* variable for a flag.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        environment |= {MARKER: str(self._layout.root), **dict(self.program.environment)}
        with self._layout.log(self.program.name).open("ab") as log:
            process = subprocess.Popen(
                self.program.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._layout.root,
                env=environment,
                start_new_session=True,
                umask=self.program.umask,
            )
        # The supervisor reaps all children itself. Without this, Popen would warn about a child that is not waited for.
        process.returncode = 0
        return identify(process.pid)

    def check_ready(self) -> bool:
        """Moves from starting to running once the service serves. Returns True when it has just done so."""
        if self.state != "starting" or self.process is None or not self._serves(self.process):
            return False
        self.state = "running"
        return True

    def on_exit(self, status: int, now: float) -> None:
        """Records the end of the process and schedules the restart. status: as os.waitpid returns it."""
        self._end(describe_exit(status), now)

    def _end(self, how: str, now: float) -> None:
        if now - self._started_at >= _STEADY_SECONDS:
            self._pause = _FIRST_PAUSE_SECONDS
        self.process = None
        self.state = "restarting"
        self.restart_at = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        self._restarts += 1
        self._last_exit = how

    def last_line(self) -> str:
        """Returns the last line that it printed; empty when there is none."""
        lines = read_tail(self._layout.log(self.program.name)).strip().splitlines()
        return readable(lines[-1]) if lines else ""

    def _serves(self, process: Identity) -> bool:
        if self.program.health_socket:
            return is_healthy(self.program.health_socket)
        try:
            ready = json.loads(self._layout.ready(self.program.name).read_text("utf-8"))
        except (OSError, ValueError):
            return False
        return bool(ready.get("pid") == process.pid)


def describe_exit(status: int) -> str:
    """Describes a wait status: exited with 1, killed by SIGKILL."""
    code = os.waitstatus_to_exitcode(status)
    return f"exited with {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def readable(line: str) -> str:
    """Returns the message of a JSON log line; any other line unchanged."""
    try:
        event = json.loads(line)
        words = str(event.get("event") or event.get("msg") or line)
        problem = event.get("error")
    except (ValueError, AttributeError):
        return line
    return f"{words}: {problem}" if problem else words


def read_tail(path: Path, num_bytes: int = 8192) -> str:
    """Returns the end of a text file; empty without a file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - num_bytes))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


class UnixConnection(http.client.HTTPConnection):
    """A connection to an HTTP server that listens on a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=1)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        unix_socket.connect(self.sock, str(self._path))


def is_healthy(path: Path) -> bool:
    """Returns etcd's answer at /health on its unix socket."""
    connection = UnixConnection(path)
    try:
        connection.request("GET", "/health")
        return bool(json.load(connection.getresponse()).get("health") == "true")
    except (OSError, ValueError, http.client.HTTPException):
        return False
    finally:
        connection.close()
