"""The process of a trial runner: runs one allocation, or several short commands one after another.

The agent forks the process (`main`) with the allocation's folder. If a command ends within a moment, the process
reports itself free to the agent and takes the next command. A fork, and the copies of the pages that a forked process
writes to, cost several times what a short command needs.
The process never has more than one thread between two commands. A step that starts a thread (metrics, a connection, the
lease) makes the allocation the process's last one. So a training always has its own process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from gangline.domain.allocation import ExitReport
from gangline.launch import channel
from gangline.launch.forkserver import num_threads
from gangline.v1 import runner_pb2
from services.common.state_folder import SharedFolder
from services.common.telemetry import configure_logging
from services.trial_runner import exit_file
from services.trial_runner.gang.gang_plan import needs_no_warmth
from services.trial_runner.parts import AttemptParts
from services.trial_runner.ranks.nursery_client import NurseryProcess, end_nursery, fork_nursery
from services.trial_runner.runner import TrialRunner
from services.trial_runner.start_error import kind_of

# Sent to the agent once a command runs.
UP = b"+"

log = structlog.get_logger(__name__)


def main(arguments: dict[str, Any], held: list[int]) -> int:
    """Runs the allocation of `arguments`, and every further one that the agent hands over. Returns the exit code of the
    last one.

    arguments: `directory` is the allocation's folder; `rank_forkserver` is the rank template's socket, or empty;
    `takes_more` is true if the agent may hand over further commands.
    held: descriptors that stay open as long as the allocation's runner lives. With `takes_more`, the last one is the
    socket to the agent.
    """
    configure_logging("trial-runner")
    directory, rank_forkserver = Path(arguments["directory"]), arguments.get("rank_forkserver") or ""
    if not arguments.get("takes_more"):
        return _Process(rank_forkserver).take(directory, held)
    process = _Process(rank_forkserver, socket.socket(fileno=held.pop()))
    try:
        while True:
            code = process.take(directory, held)
            follower = process.wait_next()
            if follower is None:
                return code
            directory, held = follower
    finally:
        process.close()


@dataclass(slots=True)
class _Process:
    """One process and the state that it keeps between two allocations."""

    rank_forkserver: str
    # socket over which further commands arrive; None for a process with one allocation
    agent: socket.socket | None = None
    # nursery of the previous command, cleared; set only while this process may take another command
    nursery: NurseryProcess | None = None
    loop: asyncio.AbstractEventLoop | None = None  # event loop, made once the nursery is forked

    def take(self, directory: Path, held: Sequence[int]) -> int:
        """Runs one allocation to its end. Returns the exit code with which the process ends if this allocation is its
        last."""
        folder = SharedFolder(directory)
        try:
            lock = folder.take_lock()
        except BlockingIOError:
            log.error(f"another trial runner lives in {directory}", code="runner.already_runs")
            return self._end(1)
        except OSError as error:
            return self._end(_end_early(folder, f"cannot lock {directory}: {error}", error))
        log.info("the runner has its folder", directory=str(directory), lock=lock)
        try:
            spec = folder.read_spec()
        except (OSError, ValueError) as error:
            problem = f"cannot read {folder.spec_path}: {error}"
            return self._end(_end_early(folder, problem, error))
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(allocation_id=spec.allocation.id, node_rank=spec.node_rank)
        if needs_no_warmth(spec) and self.nursery is None:
            # The fork happens here because it needs a process with one thread. Once the event loop runs, there may be
            # more.
            private = [self.agent.fileno()] if self.agent is not None else []
            self.nursery = fork_nursery([lock, *held, *private])
        code = self._complete(self._run(folder, spec))
        if code or self.nursery is None or num_threads() > 1:
            return self._end(code)
        # The process continues, so its end does not release these descriptors.
        for fd in (lock, *held):
            os.close(fd)
        return code

    def wait_next(self) -> tuple[Path, list[int]] | None:
        """Reports to the agent that this process is free, and waits for the next allocation.

        Returns the next allocation's folder and the descriptors that its runner holds; None if there will be no next
        one.
        """
        if self.agent is None or self.nursery is None:
            return None
        try:
            self.agent.sendall(b"\n")
            received = channel.receive(self.agent)
        except OSError as error:
            log.warning("lost the agent", error=str(error))
            return None
        if received is None:
            return None
        request, (output, *held) = received
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        os.chdir(request["directory"])
        return Path(request["directory"]), held

    def close(self) -> None:
        self._end(0)
        if self.agent is not None:
            self.agent.close()

    async def _run(self, folder: SharedFolder, spec: runner_pb2.RunnerSpec) -> int:
        nursery, self.nursery = self.nursery, None
        try:
            parts = AttemptParts(folder, spec, self.rank_forkserver, nursery)
        except OSError as error:
            return _end_early(folder, f"the trial runner cannot start: {error}", error)
        keeps_nursery = self.agent is not None and nursery is not None
        runner = TrialRunner(parts, keeps_nursery=keeps_nursery, on_up=self._tell_up)
        code = await runner.run()
        self.nursery = runner.released
        return code

    def _complete(self, work: Coroutine[Any, Any, int]) -> int:
        """Runs the coroutine like asyncio.run, but in an event loop that is kept for the next command. Making and
        closing a loop takes longer than a short command."""
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
        code = self.loop.run_until_complete(work)
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        return code

    def _tell_up(self) -> None:
        """Reports to the agent that it may start the next command, because most of the work of starting this one is
        done."""
        if self.agent is not None:
            with suppress(OSError):
                self.agent.sendall(UP)

    def _end(self, code: int) -> int:
        """Ends the nursery and closes the event loop, so the process can take no further allocation. Returns `code`."""
        nursery, self.nursery = self.nursery, None
        if nursery is not None:
            end_nursery(nursery)
        loop, self.loop = self.loop, None
        if loop is not None:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
        return code


def _end_early(folder: SharedFolder, message: str, error: Exception) -> int:
    """Writes the exit of a runner that could not begin. Returns its exit code."""
    now = time.time()
    report = ExitReport(
        "", kind_of(error), message, failed_at=now, ended_at=now, is_agent_at_fault=True, has_not_begun=True
    )
    exit_file.write_exit(folder, report, ())
    return 1
