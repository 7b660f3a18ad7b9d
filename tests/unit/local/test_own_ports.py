"""Test processes take no ports from each other, also where they belong to different runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from gangline.local.port import HOST, lasting_ports
from tests.support.port import own_ports, take_block
from tests.support.source import ROOT

# Test processes of another run. They tell what they have, and live until their input ends.
_WORKER = "import sys; from tests.support.port import own_ports; print(*own_ports(100), flush=True); sys.stdin.read()"
_HOLDER = """
import sys
from tests.support.port import NUM_BLOCKS, take_block
for number in reversed(range(NUM_BLOCKS)):
    try:
        held = take_block([number])
        break
    except AssertionError:
        pass
print(number, flush=True)
sys.stdin.read()
"""


@contextmanager
def other_run(script: str) -> Iterator[set[int]]:
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield {int(word) for word in process.stdout.readline().split()}
        process.stdin.close()


def test_runs_have_different_ports() -> None:
    with other_run(_WORKER) as first, other_run(_WORKER) as second:
        assert len(first) == len(second) == 100
        assert not first & second
        assert not (first | second) & set(own_ports(100))


def test_block_is_kept_until_its_process_ends() -> None:
    """A block of the highest number, which no other test process is about to take."""
    with other_run(_HOLDER) as numbers, pytest.raises(AssertionError, match="have all blocks"):
        take_block(numbers)
    _, lock = take_block(numbers)
    lock.close()


def test_fork_takes_other_ports() -> None:
    own_ports(1)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_end, " ".join(map(str, own_ports(50))).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as told:
        ports = {int(port) for port in told.read().split()}
    os.waitpid(pid, 0)
    assert len(ports) == 50
    assert not ports & set(own_ports(50))


def test_ports_are_free_and_lasting_and_differ_for_long() -> None:
    first = own_ports(100)
    with closing(socket.socket()) as listener:
        listener.bind((HOST, first[0]))
        listener.listen()
        given = [port for _ in range(8) for port in own_ports(50)]
        again = [port for _ in range(8) for port in own_ports(50)]
    assert first[0] not in given + again
    assert set(given) <= set(lasting_ports())
    assert len(set(given)) == len(given)
    assert not set(first) & set(given)
