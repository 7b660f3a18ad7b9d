"""A warm process that forks others: it has imported what they need, so they start in milliseconds, not seconds.

`python -m gangline.launch.forkserver --socket PATH --preload mod,mod` binds PATH at once, imports the preloads and then
answers fork requests one by one. It keeps one fork ready, which takes the next request. It never has a second thread.
It ends when its parent closes its standard input; its children live on, except for the one that waits. It knows nothing
of their work, and loads only the standard library beside the preloads. Agents start and own it; agents and trial
runners call `fork`.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from gangline import unix_socket
from gangline.errors import GanglineError, unavailable
from gangline.launch import channel, child
from gangline.launch.spare import Spare, start

# A client that connects and sends nothing must not delay the others.
REQUEST_SECONDS = 5.0
# Connections that wait while the server imports or answers others.
BACKLOG = 512
# After a fork, which needs the processors for its start, until the next spare is made. The end of any other fork ends
# this time. It doubles with each spare that ends without a request, up to the second number.
SPARE_SECONDS = 1.0
LONGEST_SPARE_SECONDS = 300.0
_TASKS = Path("/proc/self/task")


def fork(
    socket_path: str,
    target: str,
    arguments: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    directory: str,
    fds: Sequence[int] = (),
    deadline_seconds: float = 10.0,
    num_prepared: int | None = None,
) -> int:
    """Has the fork server at socket_path start a process, and returns its pid.

    target: "pkg.mod:function", called in the new process as function(arguments, fds). Its result becomes the exit
    status.
    environment: all of the new process's environment. directory: its working directory. fds: they arrive under new
    numbers. num_prepared: how much the next process shall prepare, at most as much as the server's command line says.
    The process leads its own session, and has /dev/null as standard input and the server's standard output and error.
    The call waits up to deadline_seconds, also for a server that still imports. Raises GanglineError `forkserver.*`.
    Any process of the same user may call it, any number of times.
    """
    request = {
        "target": target,
        "arguments": dict(arguments),
        "environment": dict(environment),
        "directory": directory,
        "num_prepared": num_prepared,
    }
    return int(_ask(socket_path, request, fds, deadline_seconds)["pid"])


def describe(socket_path: str, deadline_seconds: float = 60.0) -> dict[str, Any]:
    """Returns the server's description of itself once it is warm: pid, threads (1 is right), failed (preload ->
    reason)."""
    return _ask(socket_path, {}, (), deadline_seconds)


def _ask(socket_path: str, request: dict[str, Any], fds: Sequence[int], deadline_seconds: float) -> dict[str, Any]:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(deadline_seconds)
            unix_socket.connect(sock, socket_path)
            channel.send(sock, request, fds)
            answer = channel.receive(sock)
    except TimeoutError as error:
        raise _unusable(socket_path, f"did not answer within {deadline_seconds:g} s") from error
    except OSError as error:
        raise _unusable(socket_path, f"cannot be reached ({error})") from error
    if answer is None:
        raise _unusable(socket_path, "closed the connection without an answer")
    message, _ = answer
    if "error" in message:
        raise unavailable("forkserver.failed", f"the fork server at {socket_path} failed: {message['error']}")
    return message


def _unusable(socket_path: str, what: str) -> GanglineError:
    return unavailable("forkserver.unreachable", f"the fork server at {socket_path} {what}; is its agent running?")


class ForkServer:
    """Serves fork requests on a bound socket until `parent_fd` reaches its end. prepare: runs in a spare while it
    waits, with a number: most_prepared, or what the newest request says."""

    def __init__(
        self,
        listener: socket.socket,
        parent_fd: int,
        failed: dict[str, str],
        prepare: Callable[[int], object] = lambda _: None,
        most_prepared: int = 0,
    ) -> None:
        self._listener = listener
        self._parent_fd = parent_fd
        self._failed = failed
        self._prepare = prepare
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._spare: Spare | None = None
        self._most_prepared = self._num_prepared = most_prepared
        self._spare_due_at = 0.0
        self._spare_seconds = SPARE_SECONDS

    def serve(self) -> None:
        """Serves until the parent is gone."""
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        for fd in (self._listener.fileno(), self._parent_fd, self._wake_read):
            poll.register(fd, select.POLLIN)
        while True:
            self._keep_spare(poll)
            ready = {fd for fd, _ in poll.poll(self._milliseconds_to_spare())}
            if self._wake_read in ready:
                self._reap()
            if self._parent_fd in ready and not self._has_parent():
                return
            if self._spare is not None and self._spare.fileno() in ready:
                self._drop_spare(poll)
            if self._listener.fileno() in ready:
                self._accept(poll)

    def _milliseconds_to_spare(self) -> float | None:
        return None if self._spare is not None else max(0.0, self._spare_due_at - time.monotonic()) * 1000

    def _keep_spare(self, poll: select.poll) -> None:
        if self._spare is not None or time.monotonic() < self._spare_due_at:
            return
        try:
            self._spare = Spare(self._run, self._settle)
        except OSError as error:
            self._note_lost_spare(f"fork: {error}")
        else:
            poll.register(self._spare.fileno(), select.POLLIN)

    def _drop_spare(self, poll: select.poll) -> None:
        if self._spare is not None:
            poll.unregister(self._spare.fileno())
            self._spare.let_go()
            self._spare = None
            self._note_lost_spare("it has ended before a request came")

    def _note_lost_spare(self, why: str) -> None:
        """Writes one line for a row of them."""
        if self._spare_seconds == SPARE_SECONDS:
            log(f"no fork is kept ready for the moment: {why}")
        self._spare_due_at = time.monotonic() + self._spare_seconds
        self._spare_seconds = min(2 * self._spare_seconds, LONGEST_SPARE_SECONDS)

    def _has_parent(self) -> bool:
        return bool(os.read(self._parent_fd, 4096))

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                # Not after a spare that has ended by itself.
                if self._spare is None and self._spare_seconds == SPARE_SECONDS:
                    self._spare_due_at = 0.0

    def _accept(self, poll: select.poll) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(REQUEST_SECONDS)
            try:
                request = channel.receive(connection)
                if request is not None:
                    self._answer(poll, connection, *request)
            except (OSError, ValueError) as error:
                log(f"a request was dropped: {error}")

    def _answer(self, poll: select.poll, connection: socket.socket, request: dict[str, Any], fds: list[int]) -> None:
        if "target" not in request:
            channel.send(connection, {"pid": os.getpid(), "threads": num_threads(), "failed": self._failed})
            return
        wanted = request.get("num_prepared")
        self._num_prepared = self._most_prepared if wanted is None else min(int(wanted), self._most_prepared)
        self._spare_due_at = time.monotonic() + self._spare_seconds
        try:
            channel.send(connection, {"pid": self._start(poll, connection, request, fds)})
        except OSError as error:
            channel.send(connection, {"error": f"fork: {error}"})
        finally:
            for fd in fds:
                os.close(fd)

    def _start(self, poll: select.poll, connection: socket.socket, request: dict[str, Any], fds: list[int]) -> int:
        """Returns the pid of the spare that takes the request, or of a fork where there is none."""
        spare, self._spare = self._spare, None
        if spare is not None:
            poll.unregister(spare.fileno())

        def settle() -> None:
            connection.close()
            self._settle(prepares=False)

        pid = start(spare, self._run, settle, request, fds)
        if spare is not None and pid == spare.pid:
            self._spare_seconds = SPARE_SECONDS
        return pid

    def _settle(self, *, prepares: bool = True) -> None:
        """Runs in the child: releases the server's resources."""
        # In a session of its own a trial runner outlives its agent.
        os.setsid()
        child.reset_signals()
        child.take_normal_priority()
        self._listener.close()
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)
        child.close_standard_input()
        if prepares:
            self._prepare(self._num_prepared)

    def _run(self, request: dict[str, Any], fds: list[int]) -> NoReturn:
        """Runs in the child: calls the target."""
        try:
            child.set_environment(request["environment"], request["directory"])
            status = child.call(request["target"], request["arguments"], fds)
        except BaseException:  # noqa: BLE001 - the child must never return into the server's loop
            traceback.print_exc()
            status = 1
        child.leave(status)


def num_threads() -> int:
    """Counts the threads of this process as the kernel sees them, because libraries start some that Python does not
    know."""
    return len(list(_TASKS.iterdir()))


def log(text: str) -> None:
    """Writes one line to standard error."""
    print(f"forkserver[{os.getpid()}]: {text}", file=sys.stderr, flush=True)


def _ignore(_number: int, _frame: object) -> None:
    """Does nothing. SIGCHLD needs a handler for the wake-up pipe to be written."""


def _preload(modules: Sequence[str]) -> dict[str, str]:
    failed = {}
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - any module may be named; its own process will meet the same error
            failed[module] = f"{type(error).__name__}: {error}"
            log(f"cannot preload {module}: {failed[module]}; processes that need it will import it themselves")
    return failed


@contextmanager
def _own_finalizers() -> Iterator[None]:
    """Keeps the finalizers of the preloaded modules from running at the end of forks.

    They belong to this process: a fork would remove its temporary folders. torch alone has 174, which take a rank 60 ms
    at its end. A fork never returns into this block.
    """
    finalizers = [each for each in weakref.finalize._registry if each.atexit]  # type: ignore[attr-defined]  # no public list
    for finalizer in finalizers:
        finalizer.atexit = False
    try:
        yield
    finally:
        for finalizer in finalizers:
            finalizer.atexit = True


def _check_threads() -> None:
    names = sorted((task / "comm").read_text().strip() for task in _TASKS.iterdir())
    if len(names) != 1:
        log(
            f"{len(names)} threads after the preloads ({', '.join(names)}): a lock that one holds stays locked in forks"
        )


def _bind(path: str) -> socket.socket:
    """Binds a socket that appears at the path only once it accepts connections. So a client that sees the path may
    connect."""
    fresh = Path(f"{path}~")
    fresh.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Only this user may connect: a client can run any function here.
    old = os.umask(0o177)
    try:
        unix_socket.bind(listener, str(fresh))
    finally:
        os.umask(old)
    listener.listen(BACKLOG)
    fresh.rename(path)
    return listener


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line; by default that of this process."""
    parser = argparse.ArgumentParser(prog="python -m gangline.launch.forkserver", description=__doc__)
    parser.add_argument("--socket", required=True, help="unix socket to answer on")
    parser.add_argument("--preload", default="", help="modules to import first, separated by commas")
    parser.add_argument("--prepare", default="", help="function that a fork calls while it waits, as pkg.mod:function")
    parser.add_argument("--prepare-count", type=int, default=0, help="the largest number that it is called with")
    return parser.parse_args(arguments)


def serve(options: argparse.Namespace, listener: socket.socket, parent_fd: int, failed: dict[str, str]) -> None:
    """Answers requests in this process, which has the preloads, until the parent is gone."""

    def prepare(number: int) -> None:
        if options.prepare:
            child.call(options.prepare, number)

    ForkServer(listener, parent_fd, failed, prepare, options.prepare_count).serve()
    Path(options.socket).unlink(missing_ok=True)


def main() -> int:
    options = parse_options()
    # Numpy's BLAS starts its threads when it is loaded, and threads do not survive a fork.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    child.prepare_output()
    listener = _bind(options.socket)
    # Nearly all that imports make stays, and collections would look at it again and again: a sixth of their time.
    gc.disable()
    failed = _preload([module for module in options.preload.split(",") if module])
    _check_threads()
    # Objects that are loaded now live as long as the server. The garbage collector must not touch their pages in a
    # child, because that would copy them.
    gc.collect()
    gc.freeze()
    gc.enable()
    with _own_finalizers():
        serve(options, listener, sys.stdin.fileno(), failed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
