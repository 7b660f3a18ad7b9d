"""The pid on this machine of a process in another pid namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from gangline.launch import child
from tests.support.wait import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")


@pytest.fixture
def outer() -> Iterator[subprocess.Popen[bytes]]:
    """A shell outside, whose child is the first process of a namespace and has a child there."""
    script = "sleep 600 & wait"
    process = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", script])
    yield process
    process.kill()
    process.wait()


async def test_a_process_is_found_by_its_inner_pid_below_one_process_alone(outer: subprocess.Popen[bytes]) -> None:
    await until(lambda: len(child.descendants(outer.pid)) == 2, "both processes of the namespace", 10)
    first, second = child.descendants(outer.pid)
    assert [child.find_inner(first, number) for number in (1, 2, 3)] == [first, second, 0]
    assert child.find_inner(outer.pid, outer.pid) == outer.pid
    assert child.find_inner(2**22 + 1, 1) == 0
