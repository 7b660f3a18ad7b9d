"""Hosts the store of one attempt, through which its ranks find one another.

The store is a torch.distributed.TCPStore on a port that the kernel picks. It has a process of its own, fresh for each
attempt. So no key of an earlier attempt can be read again, and no rank's end takes the store away from the others. It
listens at one address, because it does not authenticate its clients; torch's own listener would take every interface.
Forked by the nursery of node rank 0.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from gangline.launch import child
from gangline.launch.spare import Spare, start

# The same backlog as torch's own listener; the kernel may allow fewer.
_BACKLOG = 2048


def fork_store_host(address: str, spare: Spare | None, release: Callable[[], None]) -> tuple[int, int]:
    """Forks the store's process, or lets a spare become it. Returns its pid and a descriptor. The store's port, or the
    reason why there is none, can be read from that descriptor until its end.

    address: an address of this machine in the network of the gang. release: closes in a fork what belongs to this
    process.
    """
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    order = {"address": address, "parent_pid": os.getpid()}

    def settle() -> None:
        os.close(read_fd)
        release()

    try:
        return start(spare, become_store_host, settle, order, [write_fd]), read_fd
    finally:
        os.close(write_fd)


def become_store_host(order: dict[str, Any], fds: list[int]) -> NoReturn:
    """Hosts the store in this process. fds: where its port is told."""
    (answer_fd,) = fds
    try:
        child.die_with_parent(order["parent_pid"])
        child.reset_signals()
        child.set_name("gangline-store")
        store = open_store(order["address"])
        os.write(answer_fd, f"port {store.port}".encode())
        os.close(answer_fd)
        while True:
            signal.pause()
    except BaseException as error:  # noqa: BLE001 - a fork must never return into its parent's frames
        os.write(answer_fd, f"error {type(error).__name__}: {error}".encode()[:4096])
        print(f"store host: {error}", file=sys.stderr)
        child.leave(1)


def open_store(address: str, port: int = 0) -> Any:
    """Opens a store in this process that listens at this address alone. Raises OSError."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415 - heavy, and re-exported with *

    family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.create_server(place[:2], family=family, backlog=_BACKLOG)
    real_port = listener.getsockname()[1]
    # The store closes the descriptor.
    return TCPStore(address, real_port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
