"""Services as processes forked from one that has imported them: an import takes longer than what most tests do.

Owns one server for each service, which ends with the test process. A forked service reads its flags and environment,
logs, takes signals and ends as one that was started by its command. Called by tests/support/gateway.py and
tests/support/scheduler.py. The whole clusters of tests/e2e start the commands.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.source import ROOT


class ForkedService:
    """The members of subprocess.Popen that tests use. returncode: None until `poll` or `wait` has seen the end."""

    def __init__(self, server: _Server, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.find_code(self.pid)
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self._server.wait_for_message()
        return code

    def send_signal(self, number: int) -> None:
        """Does nothing after the end, as another process may have the pid."""
        if self.poll() is None:
            os.kill(self.pid, number)


def fork_service(module: str, arguments: Sequence[str], log: Path, folder: Path) -> ForkedService:
    """Runs `main` of the module in a process of its own, in this folder, with this process's environment.

    log: takes its stderr. A test that serves on its event loop awaits `load_service` in a thread before: the first call
    in a test process waits for the imports.
    """
    request = {"arguments": arguments, "log": str(log), "folder": str(folder), "environment": dict(os.environ)}
    server = load_service(module)
    return ForkedService(server, server.start(request))


class _Server:
    """The server of one service. It sends the exit codes of its children as they end."""

    def __init__(self, module: str) -> None:
        self._link, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.forked_service", module, str(other.fileno())]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()])
        other.close()
        self._lock = threading.Lock()
        self._code_by_pid: dict[int, int] = {}
        assert self._receive() == {}, "the first message is empty: the imports are done"
        atexit.register(self._end)

    def start(self, request: dict[str, Any]) -> int:
        """Returns the pid of the new process."""
        with self._lock:
            self._link.send(json.dumps(request).encode())
            while "started" not in (message := self._receive()):
                self._note(message)
            return int(message["started"])

    def find_code(self, pid: int) -> int | None:
        with self._lock:
            while self._has_message(0.0):
                self._note(self._receive())
            return self._code_by_pid.pop(pid, None)

    def wait_for_message(self) -> None:
        """Returns soon: another thread may read what comes."""
        self._has_message(0.02)

    def _has_message(self, seconds: float) -> bool:
        return bool(select.select([self._link], [], [], seconds)[0])

    def _receive(self) -> dict[str, Any]:
        message = self._link.recv(1 << 16)
        assert message, "the server of forked services has ended"
        received: dict[str, Any] = json.loads(message)
        return received

    def _note(self, message: dict[str, Any]) -> None:
        self._code_by_pid[message["ended"]] = message["code"]

    def _end(self) -> None:
        self._link.close()
        self._process.wait(20)


_servers: dict[str, _Server] = {}
_servers_lock = threading.Lock()


def load_service(module: str) -> _Server:
    """Returns the module's server once it has imported the module."""
    with _servers_lock:
        if module not in _servers:
            _servers[module] = _Server(module)
        return _servers[module]


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Forks a process for each request. Returns the request in the new process, and None at the end of the tests."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    link.send(b"{}")
    while True:
        ready = select.select([link.fileno(), reader], [], [])[0]
        if reader in ready:
            os.read(reader, 1 << 16)
            _report_ends(link)
        if link.fileno() in ready:
            message = link.recv(1 << 20)
            if not message:
                return None
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(reader)
                os.close(writer)
                request: dict[str, Any] = json.loads(message)
                return request
            link.send(json.dumps({"started": pid}).encode())


def _report_ends(link: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        link.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _become(module: str, request: dict[str, Any]) -> None:
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [module, *request["arguments"]]
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 2)
    os.close(log)


def main() -> None:
    module = sys.argv[1]
    service = importlib.import_module(module)
    link = socket.socket(fileno=int(sys.argv[2]))
    request = _serve(link)
    link.close()
    if request is not None:
        _become(module, request)
        service.main()


if __name__ == "__main__":
    main()
