"""Forks the ranks of one allocation on one machine, and the host of their store, and reports how they end.

It starts in one of three ways. It is forked from a process that has torch loaded (the rank template), or from the trial
runner when other programs take the ranks' places. Else it starts cold, see gangline/rank/cold_nursery.py. It has one
thread, runs no grpc and has one socket, to its trial runner. When that socket closes it kills all processes that it
started, to the last grandchild, and ends.

All ranks die with it. The kernel kills the ranks that the nursery forked. The runner kills the programs that the
nursery spawned; only a nursery that is a child of the runner spawns. Each rank leads a session of its own, with its
children in it, as under torchrun. Where the kernel divides processors between sessions (autogroup), ranks in one
session would share one part among them. The nursery decides nothing.

From the runner:
- {"do": "host_store", "address"}
- {"do": "start", "rank", "environment", "directory", "num_threads", "program", "target", "confinement"}, with the write
  ends of the rank's standard output and error. A program takes the rank's place; a target is called in the rank. The
  rank gets the user and the limits of the confinement, see confinement.py.
- {"do": "signal", "ranks", "signal"}
- {"do": "hold_lease"}, with a descriptor of the lease's record, see lease_record.py. Once the lease is over, everything
  that the nursery started is killed, and nothing is started any more.
- {"do": "clear"}, before its runner takes another allocation.

To the runner:
- {"event": "store", "port"} or {"event": "store", "error"}
- {"event": "started", "rank", "pid"} or {"event": "start_failed", "rank", "error"}
- {"event": "exited", "rank", "pid", "exit_code", "signal", "at", "was_killed"}, where was_killed reports that a SIGKILL
  of the nursery found the rank alive.
- {"event": "lease_over"}, before the ends of the ranks that it killed for that reason.
- {"event": "cleared", "is_empty"}, once it has killed and reaped the processes that its ranks left behind.
"""

from __future__ import annotations

import faulthandler
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from gangline.launch import channel, child, confinement, spare, store_host
from gangline.launch.lease_record import LeaseGuard
from gangline.launch.spare import Spare

DEFAULT_TARGET = "gangline.rank.entrypoint:run"
# Time limit for the kernel to end the killed processes.
BURIAL_SECONDS = 5.0
# Without a request or an event while a rank lives, after which the spares for further ranks are let go.
_SPARE_MILLISECONDS = 1000


class Spares:
    """The forks of a process that will be a nursery. It makes them while it waits for its order."""

    def __init__(self) -> None:
        self.store: Spare | None = None
        self.ranks: list[Spare] = []

    def fork(self, num_ranks: int) -> None:
        """Stops as soon as this process has its order, and without an error where the machine allows no more
        processes."""
        with suppress(OSError):
            self.store = Spare(store_host.become_store_host, self.let_go)
            while len(self.ranks) < num_ranks and not spare.has_order():
                self.ranks.append(Spare(_become_rank, self.let_go))

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in (*self.ranks, self.store) if each is not None]

    def let_go(self) -> None:
        """Lets those that have no order end. In a fork: closes what belongs to its parent."""
        for each in (*self.ranks, self.store):
            if each is not None:
                each.let_go()
        self.store, self.ranks = None, []


_spares = Spares()


class Nursery:
    """Serves one trial runner until its socket closes. spawns: whether programs start without a fork."""

    def __init__(self, control: socket.socket, spawns: bool = False) -> None:
        self._control = control
        self._spawns = spawns
        self._spares = _spares
        # The pids of spares that were let go, by pidfd.
        self._ending_spares: dict[int, int] = {}
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)
        self._rank_by_pid: dict[int, int] = {}
        self._pid_by_pidfd: dict[int, int] = {}
        self._killed_pids: set[int] = set()
        self._store_fd = -1
        self._lease: LeaseGuard | None = None
        self._is_lease_over = False

    def serve(self) -> None:
        """Serves until the runner has gone, then returns once all descendants are dead or BURIAL_SECONDS are over."""
        try:
            is_wanted = True
            while is_wanted:
                ready = self._poll.poll(_SPARE_MILLISECONDS if self._rank_by_pid and self._spares.pids else None)
                if not ready:
                    # All ranks have started.
                    self._end_spares()
                for fd, _ in ready:
                    is_wanted = self._on_ready(fd) and is_wanted
        except OSError as error:
            print(f"nursery: lost its runner: {error}", file=sys.stderr)
        finally:
            child.bury_descendants(BURIAL_SECONDS)

    def _on_ready(self, fd: int) -> bool:
        """Handles one ready descriptor. Returns False when the runner has closed its end."""
        if fd == self._control.fileno():
            received = channel.receive(self._control)
            if received is None:
                return False
            self._on_request(*received)
        elif fd == self._store_fd:
            self._on_store_answer()
        elif self._lease is not None and fd == self._lease.timer_fd:
            self._check_lease(self._lease)
        elif fd in self._pid_by_pidfd:
            self._on_exit(fd)
        elif fd in self._ending_spares:
            self._poll.unregister(fd)
            os.close(fd)
            with suppress(ChildProcessError):
                os.waitpid(self._ending_spares.pop(fd), 0)
        return True

    def _end_spares(self) -> None:
        for pid in self._spares.pids:
            with suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                self._ending_spares[pidfd] = pid
                self._poll.register(pidfd, select.POLLIN)
        self._spares.let_go()

    def _on_request(self, request: dict[str, Any], fds: list[int]) -> None:
        match request["do"]:
            case "host_store":
                store, self._spares.store = self._spares.store, None
                _, self._store_fd = store_host.fork_store_host(request["address"], store, self._release)
                self._poll.register(self._store_fd, select.POLLIN)
            case "start":
                self._start(request, fds)
            case "signal":
                self._signal(request["ranks"], request["signal"])
            case "hold_lease":
                self._hold_lease(fds[0])
            case "clear":
                self._clear()

    def _signal(self, ranks: list[int], number: int) -> None:
        """Signals the given ranks that are alive. A rank that has already ended did so for a reason of its own, even if
        its end was not read yet."""
        living = [fd for fd in self._pid_by_pidfd if not select.select([fd], [], [], 0)[0]]
        for pid in (self._pid_by_pidfd[fd] for fd in living):
            if self._rank_by_pid[pid] in ranks:
                # An exiting rank has closed its connections. Others may have noticed that and caused this kill, so it
                # does not count as killed.
                if number == signal.SIGKILL and not child.is_exiting(pid):
                    self._killed_pids.add(pid)
                _signal(pid, number)

    def _hold_lease(self, record_fd: int) -> None:
        self._lease = LeaseGuard(record_fd)
        self._poll.register(self._lease.timer_fd, select.POLLIN)

    def _check_lease(self, lease: LeaseGuard) -> None:
        """Kills everything that was started, if the lease is over. The runner may be stopped, so it is not asked."""
        if lease.check():
            self._is_lease_over = True
            self._signal(list(self._rank_by_pid.values()), signal.SIGKILL)
            child.kill_descendants(os.getpid())
            channel.send(self._control, {"event": "lease_over"})

    def _drop_lease(self) -> None:
        if self._lease is not None:
            self._poll.unregister(self._lease.timer_fd)
            self._lease.close()
            self._lease = None

    def _clear(self) -> None:
        """Kills the processes that the ranks left behind. While a rank has not ended, they are left to the end of this
        process."""
        self._drop_lease()
        self._spares.let_go()
        if not self._pid_by_pidfd:
            child.bury_descendants(BURIAL_SECONDS)
            for pidfd in self._ending_spares:
                self._poll.unregister(pidfd)
                os.close(pidfd)
            self._ending_spares.clear()
        channel.send(self._control, {"event": "cleared", "is_empty": not child.descendants(os.getpid())})

    def _on_store_answer(self) -> None:
        word, _, detail = os.read(self._store_fd, 4096).decode(errors="replace").partition(" ")
        self._poll.unregister(self._store_fd)
        os.close(self._store_fd)
        self._store_fd = -1
        if word == "port":
            channel.send(self._control, {"event": "store", "port": int(detail)})
        else:
            channel.send(self._control, {"event": "store", "error": detail or "the store's process died"})

    def _refuse_start(self, request: dict[str, Any], problem: str) -> None:
        channel.send(self._control, {"event": "start_failed", "rank": request["rank"], "error": problem})

    def _start(self, request: dict[str, Any], fds: list[int]) -> None:
        try:
            if self._is_lease_over:
                self._refuse_start(request, "the lease of the attempt is over")
                return
            may_spawn = self._spawns and request.get("program") and not request.get("confinement")
            pid = _spawn(request, fds) if may_spawn else None
            if pid is None:
                pid = self._fork(request, fds)
        except OSError as error:
            self._refuse_start(request, f"fork: {error}")
            return
        finally:
            for fd in fds:
                os.close(fd)
        # A pidfd becomes readable when the rank ends, so one poll covers ranks and runner.
        pidfd = os.pidfd_open(pid)
        self._rank_by_pid[pid] = request["rank"]
        self._pid_by_pidfd[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        channel.send(self._control, {"event": "started", "rank": request["rank"], "pid": pid})

    def _fork(self, request: dict[str, Any], fds: list[int]) -> int:
        order = {**request, "parent_pid": os.getpid()}
        # A program takes little time to start, so it leaves the spares to ranks.
        waiting = self._spares.ranks.pop() if self._spares.ranks and not request.get("program") else None
        return spare.start(waiting, _become_rank, self._release, order, fds)

    def _release(self) -> None:
        """Closes in a fork what belongs to this process."""
        self._control.close()
        for fd in (*self._pid_by_pidfd, *self._ending_spares):
            os.close(fd)
        if self._store_fd >= 0:
            os.close(self._store_fd)
        if self._lease is not None:
            self._lease.close()
        self._spares.let_go()

    def _on_exit(self, pidfd: int) -> None:
        pid = self._pid_by_pidfd.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, wait_status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(wait_status)
        ended: dict[str, Any] = {"exit_code": code, "signal": None}
        if code < 0:
            ended = {"exit_code": None, "signal": -code}
        ended |= {"rank": self._rank_by_pid.pop(pid), "pid": pid, "was_killed": pid in self._killed_pids}
        channel.send(self._control, {"event": "exited", "at": time.time(), **ended})


def _become_rank(request: dict[str, Any], fds: list[int]) -> NoReturn:
    try:
        os.setsid()
        child.reset_signals()
        child.close_standard_input()
        child.take_output(*fds)
        if confined := request.get("confinement"):
            confinement.enter(confined, becomes_program=bool(request.get("program")))
        # The kernel forgets this order when a process changes its user.
        child.die_with_parent(request["parent_pid"])
        child.set_name(f"gangline-rank{request['rank']}")
        child.set_environment(request["environment"], request["directory"])
        if program := request.get("program"):
            child.become(program)
        child.put_code_first(request["directory"])
        _settle_libraries(request["num_threads"])
        status = child.call(request.get("target") or DEFAULT_TARGET)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's frames
        traceback.print_exc()
        status = 1
    child.leave_like_a_program(status)


def _spawn(request: dict[str, Any], fds: list[int]) -> int | None:
    """Starts a program in a rank's place without a copy of this process, because a cluster may start hundreds a minute.
    Returns None when the program cannot be run; the fork then prints the reason into the rank's own output."""
    environment, program = request["environment"], request["program"]
    try:
        os.chdir(request["directory"])
        path = shutil.which(program[0], path=environment.get("PATH", os.defpath))
        if path is None:
            return None
        return os.posix_spawn(
            path,
            program,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, fds[0], 1),
                (os.POSIX_SPAWN_DUP2, fds[1], 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=child.DEFAULT_SIGNALS,
        )
    except OSError:
        return None


def _signal(pid: int, number: int) -> None:
    """Signals a rank. A SIGKILL reaches the rank's descendants as well; a request to end is for the rank alone to pass
    on."""
    below = child.descendants(pid) if number == signal.SIGKILL else []
    for victim in (pid, *below):
        with suppress(ProcessLookupError):
            os.kill(victim, number)


def _settle_libraries(num_threads: int) -> None:
    """Gives libraries that were loaded before the fork the values that they would have read from the environment or the
    clock."""
    faulthandler.enable()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(num_threads)
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()


def prepare(num_ranks: int) -> None:
    """Makes the forks of a nursery, while its process waits to become one."""
    _spares.fork(num_ranks)


def main(arguments: dict[str, Any], fds: list[int]) -> int:
    """Serves a trial runner; the target for the fork server. fds: the one socket to the runner. arguments: `spawns`,
    whether the nursery may spawn programs."""
    child.adopt_orphans()
    child.set_name("gangline-nursery")
    Nursery(socket.socket(fileno=fds[0]), bool(arguments.get("spawns"))).serve()
    return 0
