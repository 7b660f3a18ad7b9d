"""A fork that is made before it is needed, and waits for its order.

A fork of a process with torch takes ten milliseconds of a core, which a start need not wait for. Standard library only,
because warm processes load this module.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from gangline.launch import channel, child

# The name that ps and top show of a process that waits.
NAME = "gangline-spare"
# Limit for the answer of a process that is handed an order.
_ANSWER_SECONDS = 5.0
_TAKEN = b"t"
Become = Callable[[dict[str, Any], list[int]], NoReturn]


class Spare:
    """Represents one such process. It ends when this one lets it go, or ends itself.

    become: runs in it with the order and its descriptors. settle: runs in it at once, and releases what belongs to this
    process alone. Raises OSError.
    """

    def __init__(self, become: Become, settle: Callable[[], None]) -> None:
        self._ours, theirs = socket.socketpair()

        def wait() -> NoReturn:
            self._ours.close()
            _wait(theirs, become, settle)

        try:
            self.pid = _fork(wait)
        except OSError:
            self._ours.close()
            raise
        finally:
            theirs.close()

    def fileno(self) -> int:
        """The end of this stream tells that the process has gone."""
        return self._ours.fileno()

    def hand_over(self, order: dict[str, Any], fds: Sequence[int]) -> bool:
        """Lets the process begin, and returns once it has the order and the descriptors. Returns False if it has gone,
        or does not answer; then it is killed. Called once."""
        try:
            channel.send(self._ours, order, fds)
            self._ours.settimeout(_ANSWER_SECONDS)
            has_taken = self._ours.recv(1) == _TAKEN
        except OSError:
            has_taken = False
        if not has_taken:
            # It is a child that was not reaped, so its number is not that of another process.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.let_go()
        return has_taken

    def let_go(self) -> None:
        """Closes this end. A process without an order ends."""
        self._ours.close()


# The socket at which this process waits for its order. Its own spares must not keep it open.
_orders: socket.socket | None = None


def _wait(orders: socket.socket, become: Become, settle: Callable[[], None]) -> NoReturn:
    global _orders  # noqa: PLW0603  a process waits once
    if _orders is not None:
        _orders.close()
    _orders = orders
    own_name = child.name()
    child.set_name(NAME)
    settle()
    received = channel.receive(orders)
    if received is None:
        child.leave(0)
    orders.send(_TAKEN)
    orders.close()
    _orders = None
    child.set_name(own_name)
    become(*received)


def start(
    spare: Spare | None, become: Become, settle: Callable[[], None], order: dict[str, Any], fds: Sequence[int]
) -> int:
    """Hands the order to the spare, if there is one that lives, else to a process that is forked now. Returns the pid.
    become, settle: as in Spare. Raises OSError."""
    if spare is not None and spare.hand_over(order, fds):
        return spare.pid

    def begin() -> NoReturn:
        settle()
        become(order, [*fds])

    return _fork(begin)


def _fork(run: Callable[[], NoReturn]) -> int:
    """Returns the pid of a process that runs this and ends. Raises OSError."""
    # The fork would print again what is buffered now.
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            run()
        except BaseException:  # noqa: BLE001 - a fork must never return into its parent's frames
            traceback.print_exc()
        child.leave(1)
    return pid


def has_order() -> bool:
    """Returns whether an order waits for this process, or its parent has let it go. False where it waits for
    none."""
    return _orders is not None and bool(select.select([_orders], [], [], 0)[0])
