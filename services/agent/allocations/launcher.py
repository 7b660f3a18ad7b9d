"""Starts one trial runner: forked from the runner template, or cold if that does not work. A short command goes to a
process that has just ended another one, if there is one.

Owns the invariant that an allocation gets at most one runner, whatever fails in between. The flock on the folder's
`alive` file is taken before the fork and inherited by the runner. This module does not watch the processes that it
starts.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, field

import structlog

from gangline.errors import GanglineError
from gangline.launch import child
from services.agent.allocations import process_watch, runner_entry
from services.agent.allocations.command_runner import CommandRunner, IdleRunners, StartTurns
from services.agent.allocations.folder import AllocationFolder
from services.agent.allocations.journal_record import Process
from services.agent.allocations.warm import WarmTemplate
from services.agent.machine import metrics

# Limit for a fork. The runner template needs less time for its imports, and waiting for it is faster than importing the
# same again.
FORK_SECONDS = 10.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerProgram:
    """The program of a trial runner."""

    target: str = "services.trial_runner.program:main"  # called in the fork with the runner's arguments
    # Modules that the template of runners imports before it forks. The last two are modules that the standard library
    # would otherwise load in each runner by itself.
    preload: tuple[str, ...] = ("services.trial_runner.program", "concurrent.futures.thread", "encodings.idna")
    # starts the same program without a template
    command: tuple[str, ...] = (sys.executable, "-P", "-m", "services.trial_runner")
    # modules that the template of ranks imports before it forks
    rank_preload: tuple[str, ...] = (
        "torch",
        "torch._dynamo",
        "gangline.pytorch",
        "gangline.core",
        "gangline.rank.entrypoint",
    )


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts the runners of one agent."""

    program: RunnerProgram
    runner_template: WarmTemplate | None  # None for cold starts only
    rank_socket_path: str  # empty if there is no rank template
    # processes that have ended a short command and may take the next one
    idle: IdleRunners = field(default_factory=IdleRunners)
    turns: StartTurns = field(default_factory=StartTurns)  # lets short commands start in turns

    async def start_command(self, folder: AllocationFolder) -> tuple[Process | None, CommandRunner | None]:
        """Starts a lone command, like `start`. The second result is None if the process takes no other command.

        Raises the errors of `start`.
        """
        if self.runner_template is None:
            return await self.start(folder), None
        try:
            alive = folder.hold_alive()
        except BlockingIOError:
            return next(iter(process_watch.find_openers(folder.alive_path)), None), None
        output = folder.open_log()
        try:
            runner = self.idle.take(folder.path, (output, alive))
            if runner is not None:
                metrics.runner_starts.labels(kind="reused").inc()
                return runner.process, runner
            ours, theirs = socket.socketpair()
            with theirs:
                pid = await self._start(folder, alive, output, theirs.fileno())
            process = process_watch.identify(pid)
            if process is None:
                ours.close()
                return None, None
            return process, CommandRunner(process, ours)
        finally:
            os.close(output)
            os.close(alive)

    async def start(self, folder: AllocationFolder) -> Process | None:
        """Returns the runner that runs now, or the one that already ran; None if it has ended already.

        Raises OSError if no process can be started.
        """
        try:
            alive = folder.hold_alive()
        except BlockingIOError:
            return next(iter(process_watch.find_openers(folder.alive_path)), None)
        output = folder.open_log()
        try:
            return process_watch.identify(await self._start(folder, alive, output))
        finally:
            os.close(output)
            os.close(alive)

    async def _start(self, folder: AllocationFolder, alive: int, output: int, control: int | None = None) -> int:
        """Starts the runner and returns its pid. control: the runner's end of a socket over which it may get further
        commands."""
        if self.runner_template is not None:
            pid = await self._fork(self.runner_template, folder, alive, output, control)
            if pid is not None:
                metrics.runner_starts.labels(kind="warm").inc()
                return pid
        metrics.runner_starts.labels(kind="cold").inc()
        return self._spawn(folder, alive, output)

    async def _fork(
        self, template: WarmTemplate, folder: AllocationFolder, alive: int, output: int, control: int | None
    ) -> int | None:
        """Returns the pid of the forked runner. Returns None if the template did not fork it, and certainly will
        not."""
        arguments: dict[str, object] = {"directory": str(folder.path), "rank_forkserver": self.rank_socket_path}
        fds = [output, alive]
        if control is not None:
            arguments["takes_more"] = True
            fds.append(control)
        try:
            return await template.fork(
                runner_entry.TARGET,
                {"target": self.program.target, "arguments": arguments},
                environment=os.environ,
                directory=folder.path,
                fds=fds,
                deadline_seconds=FORK_SECONDS,
            )
        except GanglineError as error:
            log.warning("warm start failed; starting cold", allocation_id=folder.allocation_id, error=error.message)
        # A missing answer may mean that the fork has happened. Once the server is gone, any other process that holds
        # `alive` is the runner.
        await template.end()
        return next((each.pid for each in process_watch.find_openers(folder.alive_path)), None)

    def _spawn(self, folder: AllocationFolder, alive: int, output: int) -> int:
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        # Any descriptor that is not a standard stream will do; the runner only keeps it open.
        held = os.dup(alive)
        os.set_inheritable(held, True)
        try:
            return os.posix_spawn(
                self.program.command[0],
                [*self.program.command, "--spec", str(folder.spec_path), "--rank-forkserver", self.rank_socket_path],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, output, 2),
                ],
                setsid=True,
                setsigdef=child.DEFAULT_SIGNALS,
            )
        finally:
            os.close(held)
            os.close(null)
