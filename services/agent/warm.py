"""The agent's two fork servers: processes that have imported what trial runners and ranks need.

Owns their life: starts them, starts them again when they die, ends them with the agent (they end by themselves when
the agent is killed, because it holds their standard input). What is forked from them outlives them. The launcher asks
`fork`; trial runners reach the rank template by its socket path.
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
from services.agent import metrics

FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 30.0
# A server that lived this long was well: the next restart is quick again.
HEALTHY_AFTER_SECONDS = 30.0
BIND_SECONDS = 3.0
LOG_BYTES = 1 << 20

log = structlog.get_logger(__name__)


class Template:
    """One fork server. `run` is its long-lived task."""

    def __init__(self, name: str, preload: Sequence[str], state_directory: Path) -> None:
        self.name = name
        self._preload = ",".join(preload)
        self._socket = state_directory.absolute() / f"{name}.sock"
        self._log_path = state_directory / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def socket_path(self) -> str:
        return str(self._socket)

    async def run(self) -> None:
        """Until cancelled; then the fork server is ended."""
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
        """The exit code of one fork server; None where a disk that refuses its files did not let it start."""
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
        """The pid of the new process. Raises GanglineError `forkserver.*`; then a fork may still happen, unless the
        server is ended."""
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
        """Kills the fork server, not its children, and returns when it is gone. `run` starts the next one."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def _wait_bound(self) -> None:
        """A server that has just been started binds its socket within a moment; waiting beats a cold start."""
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
                "-m",
                "gangline.launch.forkserver",
                "--socket",
                self.socket_path,
                "--preload",
                self._preload,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                # Its own session: Ctrl-C in the agent's terminal is the agent's to answer.
                start_new_session=True,
            )
        finally:
            os.close(output)
