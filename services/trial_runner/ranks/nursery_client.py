"""The runner's connection to its nursery, the process that forks the ranks: requests to it, events from it.

Owns the socket, whose closing kills everything that the nursery started. Owns the start of the nursery as well. It is
forked from the rank template if there is one, and from the runner itself if other programs replace the ranks. Otherwise
it starts cold, which takes as long as importing torch. See gangline.launch.nursery for the messages.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import structlog

from gangline.errors import GanglineError, unavailable
from gangline.launch import channel, child, forkserver, nursery
from services.common.concurrency import cancel
from services.common.huge_pages import with_huge_pages
from services.trial_runner.ranks.confinement import Confinement

# Limit for a fork from the rank template; beyond it the nursery starts cold.
FORK_SECONDS = 20.0
# Limit for killing and reaping what the ranks started, after the nursery that would have done it has died.
BURIAL_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NurseryProcess:
    """A nursery that lives."""

    pid: int  # process id as this machine counts
    control: socket.socket  # the runner's end of its socket
    is_child: bool = False  # whether it is a child of the runner, which must reap it
    is_contained: bool = False  # whether it is the first process of a container


class NurseryClient:
    """Sends requests to one nursery and receives its events.

    events: the nursery's events in order; None once it has gone. confinement: of every process that it starts.
    """

    def __init__(self, process: NurseryProcess) -> None:
        self.pid = process.pid
        self._process = process
        self.confinement = Confinement()
        self._on_lease_over: Callable[[], None] | None = None
        self.events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._control = process.control
        self._store: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._cleared: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._hello: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._pids: dict[int, int] = {}
        self._is_released = self._is_closing = False
        self._reading = asyncio.create_task(self._read())

    @property
    def is_gone(self) -> bool:
        return self._reading.done()

    @property
    def is_contained(self) -> bool:
        """Whether the nursery and its ranks run in a container."""
        return self._process.is_contained

    def pid_of(self, pid: int) -> int:
        """Returns the pid on this machine of a process whose own pid the nursery or a rank has named; 0 if it has
        gone."""
        if not self.is_contained:
            return pid
        if pid not in self._pids and (outer := child.find_inner(self.pid, pid)):
            self._pids[pid] = outer
        return self._pids.get(pid, 0)

    async def wait_hello(self, deadline_seconds: float) -> dict[str, Any] | None:
        """Returns the first message of a nursery in a container; None if it ends or says nothing."""
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_seconds):
                return await asyncio.shield(self._hello)
        return None

    def ask_store(self, address: str) -> None:
        """Starts the store's host, which listens at this address alone; `wait_store` returns its port. Raises
        GanglineError `runner.no_nursery`."""
        self._send({"do": "host_store", "address": address})

    async def wait_store(self) -> int:
        """Returns the port of the store. Raises GanglineError `runner.no_store`.

        There is no limit while the nursery lives: a cold one imports torch first, which takes minutes on a busy
        machine. The scheduler's deadline for the start of the ranks ends the wait.
        """
        answer = await asyncio.shield(self._store)
        if "port" not in answer:
            raise unavailable("runner.no_store", f"cannot host the ranks' store: {answer['error']}")
        return int(answer["port"])

    def start(
        self,
        rank: int,
        environment: Mapping[str, str],
        *,
        directory: str,
        num_threads: int,
        fds: Sequence[int],
        program: Sequence[str] = (),
    ) -> None:
        """Asks the nursery to start one rank.

        fds: the writing ends of its standard output and error; the caller closes its own copies.
        program: the command that replaces the rank's process.
        Raises GanglineError `runner.no_nursery`; then the nursery has not received the request.
        """
        request = {"do": "start", "rank": rank, "environment": dict(environment), "directory": directory}
        request |= {"num_threads": num_threads, "program": list(program)}
        confined = self.confinement.orders(rank, is_contained=self.is_contained)
        self._send({**request, "confinement": confined}, fds)

    def _send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        try:
            channel.send(self._control, message, fds)
        except OSError as error:
            why = error.strerror or error
            text = f"the process that forks the ranks (pid {self.pid}) takes no requests any more: {why}"
            raise unavailable("runner.no_nursery", text) from error

    def hold_lease(self, record_fd: int, on_over: Callable[[], None]) -> None:
        """Has the nursery end its ranks with the lease. record_fd: reads the lease's record; the caller closes its
        copy. on_over: called when the nursery has ended them. Raises GanglineError `runner.no_nursery`."""
        self._on_lease_over = on_over
        self._send({"do": "hold_lease"}, [record_fd])

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Sends a signal to ranks. Does nothing if the nursery has gone, because then its ranks have gone too."""
        try:
            channel.send(self._control, {"do": "signal", "ranks": list(ranks), "signal": int(number)})
        except OSError as error:
            log.warning("the nursery is gone", error=str(error))

    async def release(self, deadline_seconds: float = 6.0) -> NurseryProcess | None:
        """Lets the nursery kill what its ranks left behind, and returns its process for the runner's next allocation.

        Returns None if something is left or the nursery does not answer; then it must be closed. Otherwise no method
        may be called afterwards.
        """
        try:
            channel.send(self._control, {"do": "clear"})
            async with asyncio.timeout(deadline_seconds):
                is_empty = await asyncio.shield(self._cleared)
        except (OSError, TimeoutError):
            return None
        if not is_empty:
            return None
        self._is_released = True
        await cancel(self._reading)
        return self._process

    async def close(self, deadline_seconds: float = 5.0) -> None:
        """Kills what is left and waits until the nursery has reaped it."""
        self._is_closing = True
        self._control.shutdown(socket.SHUT_WR)
        try:
            async with asyncio.timeout(deadline_seconds):
                await self._reading
        except TimeoutError:
            log.error("the nursery does not end", pid=self.pid)
        else:
            self._bury()
        self._control.close()

    def _bury(self) -> None:
        """Reaps the nursery. It has closed its socket, which is the last step before it ends."""
        if self._process.is_child:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)

    def _bury_orphans(self) -> None:
        """Ends what a nursery that died left to the runner, which inherits the processes of one that it forked itself.

        Ranks died with the nursery. Programs that replaced ranks did not, nor what hooks have started, and it may not
        have reported all of their pids.
        """
        if self._process.is_child and not self._is_closing:
            child.bury_descendants(BURIAL_SECONDS)

    async def _read(self) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=self._control.dup())
        try:
            while True:
                self._on_event(await channel.read(reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except (channel.ChannelError, LookupError, TypeError, ValueError) as error:
            # In a container the nursery runs on the user's own Python.
            log.error("the nursery sent what is no event; it counts as lost", error=str(error))
        finally:
            if self._is_released:
                writer.close()
            else:
                self._bury_orphans()
                self._on_event({"event": "store", "error": "the nursery died"})
                self._on_event({"event": "cleared", "is_empty": False})
                if not self._hello.done():
                    self._hello.set_result(None)
                self.events.put_nowait(None)

    def _on_event(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "store":
                if not self._store.done():
                    self._store.set_result(event)
            case "cleared":
                if not self._cleared.done():
                    self._cleared.set_result(bool(event["is_empty"]))
            case "hello":
                if not self._hello.done():
                    self._hello.set_result(event)
            case "lease_over":
                if self._on_lease_over is not None:
                    self._on_lease_over()
            case "started":
                # A rank that has gone already is as good as the nursery: the pid is only for ending what is left.
                self.events.put_nowait({**event, "pid": self.pid_of(event["pid"]) or self.pid})
            case _:
                self.events.put_nowait(event)


async def start_nursery(rank_forkserver: str, directory: Path, num_ranks: int | None = None) -> NurseryClient:
    """Starts the nursery warm, or else cold. num_ranks: that the next one shall have ready; None for the most. Raises
    GanglineError `runner.no_nursery` if neither works."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            pid = await asyncio.to_thread(_fork, rank_forkserver, directory, theirs, num_ranks)
        except GanglineError as error:
            log.warning("no warm process to fork the ranks from; starting cold", error=error.message)
            pid = await _start_cold(theirs)
    return NurseryClient(NurseryProcess(pid, ours))


def fork_nursery(held: Sequence[int]) -> NurseryProcess:
    """Forks the nursery from this process, which must still have one thread.

    held: descriptors that only the runner may keep open, because others see by them that the runner lives. If the
    nursery is killed, the runner inherits its processes.
    """
    child.adopt_orphans()
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _become_nursery(theirs, [ours.detach(), *held])
    theirs.close()
    return NurseryProcess(pid, ours, is_child=True)


def end_nursery(process: NurseryProcess) -> None:
    """Ends a nursery that was released, and returns once it is gone."""
    process.control.close()
    with suppress(ChildProcessError):
        os.waitpid(process.pid, 0)


def _become_nursery(control: socket.socket, foreign: Sequence[int]) -> NoReturn:
    status = 1
    try:
        os.setsid()
        child.reset_signals()
        for fd in foreign:
            os.close(fd)
        status = nursery.main({"spawns": True}, [control.detach()])
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's frames
        traceback.print_exc()
    child.leave(status)


def _fork(rank_forkserver: str, directory: Path, theirs: socket.socket, num_ranks: int | None) -> int:
    if not rank_forkserver:
        raise unavailable("forkserver.none", "this agent has no rank template")
    return forkserver.fork(
        rank_forkserver,
        "gangline.launch.nursery:main",
        {},
        environment=os.environ,
        directory=str(directory),
        fds=[theirs.fileno()],
        deadline_seconds=FORK_SECONDS,
        num_prepared=num_ranks,
    )


async def _start_cold(theirs: socket.socket) -> int:
    # -P: it starts in the allocation's folder, in which the user's code is called as a module of the standard library.
    command = [sys.executable, "-P", "-m", "gangline.rank.cold_nursery", "--fd", str(theirs.fileno())]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env=with_huge_pages(os.environ),
        )
    except OSError as error:
        raise unavailable("runner.no_nursery", f"cannot start the process that forks the ranks: {error}") from error
    return process.pid
