"""The record of a lease: its runner moves the end, and nobody else can."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from gangline.launch.lease_record import LeaseGuard, LeaseRecord, boot_seconds
from tests.support.account import NOBODY, can_change_account, find_python

# Tries every way to write to the record, which is its standard input. Prints what has worked.
TAMPER = """
import mmap, os, struct

def attempt(name, act):
    try:
        act()
    except (OSError, ValueError):
        return
    print(name)

def write(fd):
    os.pwrite(fd, struct.pack("=d", 9e9), 0)

def map_it(fd):
    mmap.mmap(fd, 8)[:] = struct.pack("=d", 9e9)

def renewed(act):
    act(os.open("/proc/self/fd/0", os.O_RDWR))

ways = (write, map_it, lambda fd: os.ftruncate(fd, 0), lambda fd: os.ftruncate(fd, 1 << 20))
for act in ways:
    attempt("through the descriptor", lambda: act(0))
    attempt("opened anew", lambda: renewed(act))
# The owner may change the mode.
try:
    os.chmod("/proc/self/fd/0", 0o777)
except PermissionError:
    pass
for act in ways:
    attempt("opened anew with another mode", lambda: renewed(act))
print("done")
"""


@pytest.fixture
def record() -> Iterator[LeaseRecord]:
    made = LeaseRecord(boot_seconds() - 10)
    yield made
    made.close()


@pytest.mark.parametrize("is_other", [False, True], ids=["as the runner's user", "as another one"])
def test_nobody_but_the_runner_can_move_the_end(record: LeaseRecord, is_other: bool) -> None:
    if is_other and not can_change_account():
        pytest.skip("only root runs programs as another user")
    identity: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if is_other else {}
    reader = record.open_reader()
    guard = LeaseGuard(os.dup(reader))
    try:
        ran = subprocess.run(
            [find_python(), "-I", "-c", TAMPER],
            stdin=reader, capture_output=True, text=True, timeout=60, check=True, cwd="/", **identity,
        )  # fmt: skip
        assert ran.stdout == "done\n", ran
        # The grace begins, and the runner's own renewal ends it.
        assert not guard.check()
        record.write(boot_seconds() + 600)
        assert not guard.check()
        assert not guard.check()
        record.write(boot_seconds() - 1)
        assert not guard.check()
        assert guard.check()
    finally:
        guard.close()
        os.close(reader)
