"""Trial runners that run one short command after another: the agent's connection to each, the idle ones, and the turns
to start.

Owns the sockets to them. A runner reports over its socket that its command is over. By then exit.json is written, its
locks are released, and no process of the command is left. Then it gets the next folder. It ends when the socket is
closed, so no idle runner outlives its agent. The launcher takes runners, and the lifecycles of allocations give them
back.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline.domain.entrypoint import program_of
from gangline.domain.settled.record import Settled
from gangline.launch import channel
from gangline.v1 import runner_pb2
from services.agent.allocations.journal_record import Process

# Time for which a runner waits for the next command of a burst. After it, an idle runner only uses memory.
IDLE_SECONDS = 5.0
# Limit of a turn, for a start that hangs, such as one with code that no gateway has. The next command then starts
# beside it.
TURN_SECONDS = 1.0
# The byte that a runner sends once its command runs.
UP = b"+"


def is_lone_command(spec: runner_pb2.RunnerSpec, settled: Settled) -> bool:
    """Whether the allocation's one process is a program of the user, which loads nothing of Gangline. settled: the
    configuration in the specification."""
    members = spec.allocation.members
    if len(members) != 1 or len(members[0].slot_ids) > 1:
        return False
    try:
        return bool(settled.entrypoint and program_of(settled.entrypoint)) and not settled.has_image
    except ValueError:
        # A quotation mark without its other one. The runner reports it.
        return False


@dataclass(frozen=True, slots=True, eq=False)
class CommandRunner:
    """One process that takes commands."""

    process: Process
    control: socket.socket  # this agent's end of its socket

    def __post_init__(self) -> None:
        self.control.setblocking(False)

    async def wait_done(self, on_up: Callable[[], None]) -> None:
        """Returns when the runner is free for another command; never returns if it ends instead. on_up: called when its
        command runs."""
        try:
            word = await asyncio.get_running_loop().sock_recv(self.control, 1)
            if word == UP:
                on_up()
                word = await asyncio.get_running_loop().sock_recv(self.control, 1)
        except OSError:
            word = b""
        # A closed socket means that the runner ends; the caller waits for its pidfd as well.
        if not word:
            await asyncio.Event().wait()

    def give(self, folder: Path, fds: Sequence[int]) -> bool:
        """Gives the runner the allocation in this folder. Returns False if the runner has gone.

        fds: the runner's log, and the descriptors that it holds while it runs.
        """
        try:
            if self._has_gone():
                return False
            channel.send(self.control, {"directory": str(folder)}, fds)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Ends the runner once its current command has ended. May be called twice."""
        self.control.close()

    def _has_gone(self) -> bool:
        try:
            return not self.control.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False


class IdleRunners:
    """The runners that are free, each for IDLE_SECONDS."""

    def __init__(self) -> None:
        self._expiry_by_runner: dict[CommandRunner, asyncio.TimerHandle] = {}

    def put(self, runner: CommandRunner) -> None:
        expiry = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._expire, runner)
        self._expiry_by_runner[runner] = expiry

    def take(self, folder: Path, fds: Sequence[int]) -> CommandRunner | None:
        """Gives the allocation in this folder to the runner that was busy last. Returns this runner, or None if none is
        free."""
        while self._expiry_by_runner:
            runner, expiry = self._expiry_by_runner.popitem()
            expiry.cancel()
            if runner.give(folder, fds):
                return runner
            runner.close()
        return None

    def close(self) -> None:
        """Ends all idle runners."""
        while self._expiry_by_runner:
            runner, expiry = self._expiry_by_runner.popitem()
            expiry.cancel()
            runner.close()

    def _expire(self, runner: CommandRunner) -> None:
        del self._expiry_by_runner[runner]
        runner.close()


class Turn:
    """The right to start one command. It ends by itself after TURN_SECONDS."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._limit = asyncio.get_running_loop().call_later(TURN_SECONDS, self.end)
        self._is_over = False

    def end(self) -> None:
        """Ends the turn, because the command runs or will not run. May be called again."""
        if not self._is_over:
            self._is_over = True
            self._limit.cancel()
            self._free.release()


class StartTurns:
    """Lets one short command start for each processor, and at least two.

    If all starts of a burst ran at once, they would need one process each and delay one another. In turns, most of them
    find a process that has just ended another command.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(max(2, len(os.sched_getaffinity(0))))

    async def take(self) -> Turn:
        """Waits for a turn. Turns are given in the order of the calls."""
        await self._free.acquire()
        return Turn(self._free)
