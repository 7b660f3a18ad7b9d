"""A fork that is made before it is needed, and waits for what it shall become.

A fork of a process with torch takes ten milliseconds of a core, which a start need not wait for. Standard library only,
because warm processes load this module.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from gangline.launch import channel, child

Become = Callable[[dict[str, Any], list[int]], NoReturn]


class Spare:
    """Represents one such process. It ends when this one lets it go, or ends itself.

    become: runs in it with the order and its descriptors. settle: runs in it at once, and releases what belongs to this
    process alone. Raises OSError.
    """

    def __init__(self, become: Become, settle: Callable[[], None]) -> None:
        self._ours, theirs = socket.socketpair()
        # The fork would print again what is buffered now.
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            self.pid = os.fork()
            if self.pid == 0:
                self._ours.close()
                _wait(theirs, become, settle)
        except OSError:
            self._ours.close()
            raise
        finally:
            theirs.close()

    def fileno(self) -> int:
        """The end of this stream tells that the process has gone."""
        return self._ours.fileno()

    def hand_over(self, order: dict[str, Any], fds: Sequence[int]) -> bool:
        """Lets the process begin. Returns False if it has gone. Called once."""
        try:
            channel.send(self._ours, order, fds)
        except OSError:
            return False
        finally:
            self.let_go()
        return True

    def let_go(self) -> None:
        """Closes this end. A process that has no order ends."""
        self._ours.close()


# Where this process waits for its order, which its own spares must not keep open.
_orders: socket.socket | None = None


def _wait(orders: socket.socket, become: Become, settle: Callable[[], None]) -> NoReturn:
    global _orders  # noqa: PLW0603  a process waits once
    try:
        if _orders is not None:
            _orders.close()
        _orders = orders
        settle()
        received = channel.receive(orders)
        if received is None:
            child.leave(0)
        orders.close()
        become(*received)
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's frames
        traceback.print_exc()
    child.leave(1)
