"""The process that hosts the store through which the ranks of one attempt find one another.

A torch.distributed.TCPStore on a port that the kernel picks, in a process of its own and fresh for each attempt: no
key of an earlier attempt can be read again, and no rank's end takes the store away from the others. Forked by the
nursery of node rank 0.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

from gangline.launch import child


def fork_store_host() -> tuple[int, int]:
    """Its pid, and the descriptor from which its port (or the reason why there is none) can be read until the end."""
    parent_pid = os.getpid()
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        _host(parent_pid, write_fd)
    os.close(write_fd)
    return pid, read_fd


def _host(parent_pid: int, answer_fd: int) -> NoReturn:
    try:
        child.die_with_parent(parent_pid)
        child.reset_signals()
        child.set_name("gangline-store")
        store = _open_store()
        os.write(answer_fd, f"port {store.port}".encode())
        os.close(answer_fd)
        while True:
            signal.pause()
    except BaseException as error:  # noqa: BLE001 - a fork must never return into its parent's frames
        os.write(answer_fd, f"error {type(error).__name__}: {error}".encode()[:4096])
        print(f"store host: {error}", file=sys.stderr)
        child.leave(1)


def _open_store() -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415 - heavy, and re-exported with *

    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
