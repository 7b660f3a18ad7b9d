"""The agent's two fork servers: processes that have imported the modules that trial runners and ranks need.

Owns their lifecycle: starts them, restarts them when they die, and ends them with the agent. They end by themselves if
the agent is killed, because the agent holds their standard input. The processes forked from them outlive them. The
launcher calls `fork`; trial runners reach the rank template by its socket path.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from gangline.launch import forkserver
from services.agent.machine import metrics

# Back-off before a restart. It doubles with each server that dies early.
FIRST_DELAY_SECONDS = 0.2
# Cap of the back-off.
LONGEST_DELAY_SECONDS = 30.0
# Lifetime after which a server counts as healthy, so that the back-off begins anew.
HEALTHY_AFTER_SECONDS = 30.0
# Limit for a new server to bind its socket.
BIND_SECONDS = 3.0
# Size of a server's log beyond which the next start empties it.
LOG_BYTES = 1 << 20

# Ranks that are forked before they are needed, for each start. A machine with more slots forks the others then.
MOST_SPARES = 16

log = structlog.get_logger(__name__)


def spare_options(num_slots: int) -> tuple[str, ...]:
    """Returns the options of a rank template on a machine with so many slots."""
    return ("--prepare", "gangline.launch.nursery:prepare", "--prepare-count", str(min(num_slots, MOST_SPARES)))


class WarmTemplate:
    """One fork server. `run` is its long-lived task. environment: of the server; its forks get one each. options: more
    options of its command line."""

    def __init__(
        self,
        name: str,
        preload: Sequence[str],
        state_directory: Path,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._environment = environment
        self._preload = ",".join(preload)
        self._options = options
        self._socket = state_directory.absolute() / f"{name}.sock"
        self._log_path = state_directory / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def socket_path(self) -> str:
        return str(self._socket)

    async def run(self) -> None:
        """Keeps the fork server running until it is cancelled; then ends it."""
        delay = FIRST_DELAY_SECONDS
        try:
            while True:
                started_at = time.monotonic()
                code = await self._run_once()
                is_early = time.monotonic() - started_at < HEALTHY_AFTER_SECONDS
                delay = min(LONGEST_DELAY_SECONDS, delay * 2) if is_early else FIRST_DELAY_SECONDS
                log.warning(
                    "a fork server ended and is started again; until then starts are cold",
                    template=self.name,
                    exit_code=code,
                    delay_seconds=delay,
                    log_path=str(self._log_path),
                )
                await asyncio.sleep(delay)
        finally:
            await self.end()

    async def _run_once(self) -> int | None:
        """Runs one fork server to its end. Returns its exit code, or None if it could not start because a disk refuses
        its files."""
        try:
            self._process = await self._start()
        except OSError as error:
            log.error("a fork server cannot start", template=self.name, error=str(error))
            return None
        metrics.template_up.labels(template=self.name).set(1)
        code = await self._process.wait()
        metrics.template_up.labels(template=self.name).set(0)
        return code

    async def fork(
        self,
        target: str,
        arguments: Mapping[str, Any],
        *,
        environment: Mapping[str, str],
        directory: Path,
        fds: Sequence[int],
        deadline_seconds: float,
    ) -> int:
        """Returns the pid of the new process. Raises GanglineError `forkserver.*`; then a fork may still happen, unless
        the server is ended."""
        await self._wait_bound()
        return await asyncio.to_thread(
            forkserver.fork,
            self.socket_path,
            target,
            arguments,
            environment=environment,
            directory=str(directory),
            fds=fds,
            deadline_seconds=deadline_seconds,
        )

    async def end(self) -> None:
        """Kills the fork server, but not its children, and returns when it is gone. `run` starts the next one."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def _wait_bound(self) -> None:
        """Waits until a new server has bound its socket, which takes a moment. Waiting is faster than a cold start."""
        give_up_at = time.monotonic() + BIND_SECONDS
        while not self._socket.exists() and time.monotonic() < give_up_at:  # noqa: ASYNC110 - another process binds it
            await asyncio.sleep(0.02)

    async def _start(self) -> asyncio.subprocess.Process:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        if self._log_path.exists() and self._log_path.stat().st_size > LOG_BYTES:
            flags |= os.O_TRUNC
        self._socket.unlink(missing_ok=True)
        output = os.open(self._log_path, flags, 0o600)
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                # The folder in which the agent runs adds no modules to it.
                "-P",
                "-m",
                "gangline.launch.forkserver",
                "--socket",
                self.socket_path,
                "--preload",
                self._preload,
                *self._options,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                # A session of its own: Ctrl-C in the agent's terminal must reach the agent only.
                start_new_session=True,
                env=self._environment,
            )
        finally:
            os.close(output)
