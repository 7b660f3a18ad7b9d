"""Trial runners that take one short command after another: this agent's hold on each, those that are idle, and whose
turn it is to start.

Owns the sockets to them. A runner says over its socket that a command is behind it, with exit.json written, its locks
given back and nothing of it left; then the next folder goes to it. It ends when the socket is closed, so none outlives
its agent, except for the command that it runs. The launcher takes and the stories of allocations give back.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline.domain.entrypoint import program_of
from gangline.launch import channel
from gangline.v1 import runner_pb2
from services.agent.record import Process

# For the next command of a burst. What is idle for longer only takes memory.
IDLE_SECONDS = 5.0
# For a start that hangs, as on code that no gateway has: the next command starts beside it.
TURN_SECONDS = 1.0
# What a runner says once its command runs.
UP = b"+"


def is_lone_command(spec: runner_pb2.RunnerSpec) -> bool:
    """Whether its one process is a program of the user's, so that nothing of ours is loaded into it."""
    members = spec.allocation.members
    if len(members) != 1 or len(members[0].slot_ids) > 1:
        return False
    try:
        return bool(program_of(json.loads(spec.config_json)["entrypoint"]))
    except (ValueError, LookupError, TypeError):
        return False


@dataclass(frozen=True, slots=True, eq=False)
class CommandRunner:
    """One process; control: this agent's end of its socket."""

    process: Process
    control: socket.socket

    def __post_init__(self) -> None:
        self.control.setblocking(False)

    async def wait_done(self, on_up: Callable[[], None]) -> None:
        """Returns when it is free for another command; never where it ends instead. on_up: called when its command
        runs."""
        try:
            word = await asyncio.get_running_loop().sock_recv(self.control, 1)
            if word == UP:
                on_up()
                word = await asyncio.get_running_loop().sock_recv(self.control, 1)
        except OSError:
            word = b""
        if not word:
            await asyncio.Event().wait()

    def give(self, folder: Path, fds: Sequence[int]) -> bool:
        """Has it run the allocation in this folder. fds: its log, and what it holds while it runs. False when it has
        gone."""
        try:
            if self._has_gone():
                return False
            channel.send(self.control, {"directory": str(folder)}, fds)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """It ends, once a command that it runs has ended. May be called twice."""
        self.control.close()

    def _has_gone(self) -> bool:
        try:
            return not self.control.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False


class IdleRunners:
    """Those that are free, for a while."""

    def __init__(self) -> None:
        self._expiry_by_runner: dict[CommandRunner, asyncio.TimerHandle] = {}

    def put(self, runner: CommandRunner) -> None:
        expiry = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._expire, runner)
        self._expiry_by_runner[runner] = expiry

    def take(self, folder: Path, fds: Sequence[int]) -> CommandRunner | None:
        """The one that was busy last, which runs the allocation in this folder now; None when there is none."""
        while self._expiry_by_runner:
            runner, expiry = self._expiry_by_runner.popitem()
            expiry.cancel()
            if runner.give(folder, fds):
                return runner
            runner.close()
        return None

    def close(self) -> None:
        """Ends all of them."""
        while self._expiry_by_runner:
            runner, expiry = self._expiry_by_runner.popitem()
            expiry.cancel()
            runner.close()

    def _expire(self, runner: CommandRunner) -> None:
        del self._expiry_by_runner[runner]
        runner.close()


class Turn:
    """The right to start one command. Ends by itself after TURN_SECONDS."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._limit = asyncio.get_running_loop().call_later(TURN_SECONDS, self.end)
        self._is_over = False

    def end(self) -> None:
        """The command runs, or will not. May be called again."""
        if not self._is_over:
            self._is_over = True
            self._limit.cancel()
            self._free.release()


class Turns:
    """Lets one short command start for each processor, and two at least. All starts of a burst at once would need a
    process each and hold one another up; one after another, they find a process that has just ended another command."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(max(2, len(os.sched_getaffinity(0))))

    async def take(self) -> Turn:
        """In the order in which they ask."""
        await self._free.acquire()
        return Turn(self._free)
