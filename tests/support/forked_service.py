"""Services as processes forked from one that has imported them: an import takes longer than what most tests do.

All workers of a test run share the fork server of warm_program.py. A forked service reads its flags and environment,
logs, takes signals and ends as one that was started by its command. Called by tests/support/gateway.py, scheduler.py
and agent_process.py. Those of whole clusters are forked by warm_program.py.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from gangline.launch import child, forkserver
from tests.support import warm_program


class ForkedService:
    """The members of subprocess.Popen that tests use. code: the file into which it writes its exit code. returncode:
    None until `poll` or `wait` has seen the end; a process without a code was killed."""

    def __init__(self, pid: int, code: IO[bytes]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._code = code
        # Readable once the process has ended. Then the fork server has freed its pid.
        try:
            self._end = os.pidfd_open(pid)
        except ProcessLookupError:
            self._note_end()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], 0.0)[0]:
            self._note_end()
            os.close(self._end)
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        if self.returncode is None:
            select.select([self._end], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Does nothing after the end, as another process may have the pid."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, number)

    def _note_end(self) -> None:
        with self._code:
            self._code.seek(0)
            self.returncode = int(self._code.read() or -signal.SIGKILL)


def fork_service(
    module: str,
    arguments: Sequence[str],
    log: Path,
    folder: Path,
    *,
    open_files: int | None = None,
    environment: Mapping[str, str] = os.environ,
    library: Path | None = None,
) -> ForkedService:
    """Runs `main` of the module in a process of its own, in this folder.

    open_files: its hard limit of open files. library: one that it loads before all that `main` loads.
    log: takes its stderr. A test that serves on its event loop awaits `load_services` in a thread before: the first
    call in a test process waits for the imports.
    """
    socket_path = load_services()
    code = tempfile.TemporaryFile()  # noqa: SIM115 - closed once the service has ended
    with log.open("ab") as output:
        pid = forkserver.fork(
            socket_path,
            "tests.support.forked_service:run",
            {
                "module": module,
                "arguments": list(arguments),
                "open_files": open_files,
                "library": str(library or ""),
            },
            environment=environment,
            directory=str(folder),
            fds=[output.fileno(), code.fileno()],
        )
    return ForkedService(pid, code)


@functools.cache
def load_services() -> str:
    """Returns the socket path of the fork server once it has imported the services."""
    return warm_program.WarmPair(warm_program.folder()).services()


def run(arguments: Mapping[str, Any], fds: Sequence[int]) -> NoReturn:
    """The forked process. fds: the log, and the file for the exit code."""
    log, code = fds
    os.dup2(log, 2)
    if arguments["open_files"] is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (arguments["open_files"],) * 2)
    if arguments["library"]:
        ctypes.CDLL(arguments["library"])
    sys.argv = [arguments["module"], *arguments["arguments"]]
    status = 0
    try:
        status = int(importlib.import_module(arguments["module"]).main() or 0)
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:  # noqa: BLE001 - python3 would show it and end with 1
        traceback.print_exc()
        status = 1
    os.write(code, str(status).encode())
    child.leave_like_a_program(status)
