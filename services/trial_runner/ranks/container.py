"""Runs the ranks' nursery in a container, by the agent's podman or docker.

Owns the program that runs the container and the socket at which the nursery connects. The nursery ends when that socket
closes, and it is the container's first process. So the container ends with its runner, whatever ends the runner. The
agent removes by its name what is left. container_plan.py decides about the arguments.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gangline import unix_socket
from gangline.errors import GanglineError, invalid, unavailable
from services.common.concurrency import cancel
from services.common.container_program import remove_container
from services.common.state_folder import SharedFolder
from services.trial_runner.ranks.nursery_client import NurseryClient, NurseryProcess

SOCKET = "nursery.sock"
# Limit for the image, which may have to be fetched, and for the start of the container.
START_SECONDS = 3600.0
# Limit for the nursery's first message: it imports torch before it.
HELLO_SECONDS = 300.0
# Limit for the end of the container after its nursery has ended.
END_SECONDS = 10.0
# Number of last lines of the program that are kept for the report of a failure.
_LAST_LINES = 20
# Texts by which the programs report what another attempt would meet as well.
_LASTING = (
    *("manifest unknown", "not found", "no such", "denied", "unauthorized", "invalid reference", "unknown flag"),
    *("executable file", "duplicate mount", "short-name", "must be"),
)

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Container:
    """One container."""

    folder: SharedFolder
    image: str  # for messages
    agent_id: str  # for messages
    name: str
    python: str  # interpreter in the container
    command: Sequence[str]  # whole command that runs the container
    program: Sequence[str]  # first arguments of the command, which name the program
    note: Callable[[str], None]  # writes a line into the trial's log
    # makes the files that the container mounts, and lets the user of the ranks use the socket
    prepare_files: Callable[[], Awaitable[None]]
    # environment variables of the image, once the nursery has connected
    environment: dict[str, str] = field(default_factory=dict)
    problem: str = ""  # why the image cannot run ranks that use Gangline; empty if it can
    _is_connected: bool = False
    _client: asyncio.subprocess.Process | None = None
    _reading: asyncio.Task[None] | None = None
    _lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))

    @property
    def socket_path(self) -> Path:
        return self.folder.ranks_path.absolute() / SOCKET

    async def start(self) -> NurseryClient:
        """Returns the nursery in the container. Raises GanglineError `environment.no_container`."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with listener:
            unix_socket.bind(listener, str(self.socket_path))
            listener.listen(1)
            listener.setblocking(False)
            await self.prepare_files()
            self.folder.write_container(self.program, self.name)
            await self._run()
            connection = await self._wait_connected(listener)
        nursery = NurseryClient(NurseryProcess(_peer_pid(connection), connection, is_contained=True))
        hello = await nursery.wait_hello(HELLO_SECONDS)
        if hello is None:
            await nursery.close()
            raise self._failed("the process that starts the ranks in it did not answer")
        # The image belongs to the user, so its Python may send anything.
        environment = hello.get("environment")
        variables = environment.items() if isinstance(environment, dict) else ()
        self.environment = {name: str(value) for name, value in variables}
        self.problem = str(hello.get("problem") or "")
        return nursery

    async def close(self) -> None:
        """Returns once the container is gone, or after END_SECONDS, when the agent has to remove it. May be called at
        any time."""
        client, self._client = self._client, None
        if client is None:
            return
        # Without its nursery the container ends by itself; before that, the program may still be fetching the image.
        is_clean = self._is_connected and await _has_ended(client, END_SECONDS)
        if not is_clean:
            with suppress(ProcessLookupError):
                client.kill()
            await client.wait()
        is_clean = is_clean and (client.returncode or 0) >= 0
        if self._reading is not None:
            await cancel(self._reading)
        if is_clean or await remove_container(self.program, self.name):
            self.folder.forget_container()
        shutil.rmtree(self.folder.registry_path, ignore_errors=True)

    async def _run(self) -> None:
        try:
            self._client = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            text = f"environment.image: {self.agent_id} cannot run {self.program[0]}: {error.strerror}"
            raise invalid("environment.no_container", text) from error
        self._reading = asyncio.create_task(self._read(self._client))

    async def _read(self, client: asyncio.subprocess.Process) -> None:
        assert client.stdout is not None
        while chunk := await client.stdout.read(64 << 10):
            for line in chunk.decode(errors="replace").splitlines():
                if line.strip():
                    self._lines.append(line.strip()[:500])
                    self.note(f"{Path(self.program[0]).name}: {line.strip()[:500]}")

    async def _wait_connected(self, listener: socket.socket) -> socket.socket:
        assert self._client is not None
        accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
        ending = asyncio.ensure_future(self._client.wait())
        try:
            done, _ = await asyncio.wait(
                [accepting, ending], timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if accepting in done:
                connection, _ = accepting.result()
                connection.setblocking(True)
                self._is_connected = True
                return connection
            if not done:
                raise self._failed(f"it did not start within {START_SECONDS:g} s")
            if self._reading is not None:
                await self._reading
            raise self._failed(f"{Path(self.program[0]).name} ended with exit code {ending.result()}")
        finally:
            await cancel(accepting, ending)

    def _failed(self, problem: str) -> GanglineError:
        """Returns the error, with the program's last line. It is final if another attempt would meet it too."""
        # docker's last line refers to its manual.
        lines = [line for line in self._lines if not line.startswith("See '")]
        last = lines[-1].removeprefix("Error: ") if lines else problem
        text = f"environment.image: {self.agent_id} cannot start a container of {self.image}: {last}"
        is_lasting = any(words in last.lower() for words in _LASTING)
        return (invalid if is_lasting else unavailable)("environment.no_container", text)


async def _has_ended(process: asyncio.subprocess.Process, limit_seconds: float) -> bool:
    try:
        async with asyncio.timeout(limit_seconds):
            await process.wait()
    except TimeoutError:
        return False
    return True


def _peer_pid(connection: socket.socket) -> int:
    """Returns the pid of the process at the other end, as this machine counts."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])
