"""Ports for services that keep them while they are down. No other process of this test run or of another one on this
machine takes them then.

The ports are divided into blocks. A process that needs ports takes a block for the rest of its life, by an abstract
Unix socket of the block's name. The kernel frees the name when the process ends, however it ends. Such names belong to
a network namespace, as ports do.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterable, Iterator
from functools import cache

from gangline.local.port import is_free, lasting_ports

# A run has at most 8 workers. A block has some 500 ports.
NUM_BLOCKS = 40


def own_ports(count: int) -> list[int]:
    """Returns distinct free ports. None of them is returned again before the others of the block have been."""
    block, ports, _ = _block_of(os.getpid())
    free = list(itertools.islice(filter(is_free, itertools.islice(ports, len(block))), count))
    assert len(free) == count, f"only {len(free)} of {count} ports are free between {block.start} and {block.stop}"
    return free


def take_block(numbers: Iterable[int] = range(NUM_BLOCKS)) -> tuple[range, socket.socket]:
    """Returns the first of these blocks that no process has, and the socket that keeps it until it is closed."""
    ports = lasting_ports()
    size = len(ports) // NUM_BLOCKS
    for number in numbers:
        block = ports[number * size : (number + 1) * size]
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            lock.bind(f"\0gangline-test-ports-{block.start}")
        except OSError:
            lock.close()
        else:
            return block, lock
    raise AssertionError("other test processes have all blocks of ports")


@cache
def _block_of(pid: int) -> tuple[range, Iterator[int], socket.socket]:
    """pid: of this process. A fork of it takes a block of its own."""
    block, lock = take_block()
    return block, itertools.cycle(block), lock
