"""A nursery whose store and ranks were forked before anybody needed them, as real processes."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.agent.allocations.warm import spare_options
from services.trial_runner.ranks.nursery_client import NurseryClient, start_nursery
from tests.support.runner_process import WarmProcess, living
from tests.support.wait import until

RANKS = """
import json, os, sys, time

def list_open():
    for fd in os.listdir("/proc/self/fd"):
        try:
            yield fd, os.readlink("/proc/self/fd/" + fd).partition(":")[0]
        except FileNotFoundError:
            pass

def tell():
    told = {
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "is_leader": os.getsid(0) == os.getpid(),
        "open": sorted(fd + link for fd, link in list_open() if not link.startswith("/proc/")),
    }
    print(json.dumps(told), flush=True)

def late():
    time.sleep(1.5)
    print("late", flush=True)

def wait():
    print("up", flush=True)
    time.sleep(600)
"""


@contextmanager
def warm_template() -> Iterator[WarmProcess]:
    with tempfile.TemporaryDirectory(prefix="gl-") as folder, pytest.MonkeyPatch.context() as patch:
        Path(folder, "rank_targets.py").write_text(RANKS)
        patch.setenv("PYTHONPATH", folder)
        preload = "torch,gangline.launch.nursery,rank_targets"
        made = WarmProcess(Path(folder) / "warm.sock", preload, options=spare_options(2))
        yield made
        made.close()


@pytest.fixture
def template() -> Iterator[WarmProcess]:
    """For a test that ends the template or changes how much it prepares."""
    with warm_template() as made:
        yield made


@pytest.fixture(scope="module")
def shared_template() -> Iterator[WarmProcess]:
    """One for all other tests, because it loads torch."""
    with warm_template() as made:
        yield made


@pytest.fixture
async def nursery(shared_template: WarmProcess, tmp_path: Path) -> AsyncIterator[NurseryClient]:
    """One that has a store and two ranks ready."""
    await until(lambda: len(shared_template.spares()) == 4, "the forks that wait")
    made = await start_nursery(shared_template.socket_path, tmp_path)
    yield made
    if not made.is_gone:
        await made.close()


def below(nursery: NurseryClient) -> set[int]:
    return {child.pid for child in psutil.Process(nursery.pid).children(recursive=True)}


async def start(nursery: NurseryClient, rank: int, target: str) -> tuple[int, int]:
    """Returns the rank's pid, and the descriptor from which what it prints can be read."""
    read_fd, write_fd = os.pipe()
    request: dict[str, Any] = {"do": "start", "rank": rank, "environment": {"ONLY": "this"}, "directory": "/"}
    request |= {"num_threads": 1, "program": [], "target": f"rank_targets:{target}"}
    nursery._send(request, [write_fd, os.dup(write_fd)])
    os.close(write_fd)
    while (event := await nursery.events.get()) is not None:
        if event["event"] == "started":
            assert event["rank"] == rank
            return event["pid"], read_fd
    raise AssertionError("the nursery has gone")


def said(read_fd: int) -> str:
    with os.fdopen(read_fd) as file:
        return file.readline().strip()


async def test_ranks_and_store_are_those_that_wait_and_a_further_rank_is_forked(nursery: NurseryClient) -> None:
    waiting = below(nursery)
    assert len(waiting) == 3
    nursery.ask_store("127.0.0.1")
    assert await nursery.wait_store() > 0
    started = [await start(nursery, rank, "tell") for rank in range(3)]
    told = [said(read_fd) for _, read_fd in started]
    assert [pid in waiting for pid, _ in started] == [True, True, False]
    # Each is as a rank that was forked for its order.
    assert told[0] == told[1] == told[2]
    assert '"environment": {"ONLY": "this"}' in told[0]
    assert '"open": ["0/dev/null", "1pipe", "2pipe"]' in told[0]
    assert '"is_leader": true' in told[0]


async def test_those_that_nobody_needs_end_soon_and_leave_no_zombie(nursery: NurseryClient) -> None:
    waiting = below(nursery)
    pid, read_fd = await start(nursery, 0, "wait")
    assert said(read_fd) == "up"
    await until(lambda: below(nursery) == {pid}, "the end of the others")
    assert pid in waiting


async def test_a_rank_is_forked_where_those_that_wait_were_killed(nursery: NurseryClient) -> None:
    waiting = below(nursery)
    for pid in waiting:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: not living(list(waiting)), "their end")
    nursery.ask_store("127.0.0.1")
    assert await nursery.wait_store() > 0
    pid, read_fd = await start(nursery, 0, "tell")
    assert pid not in waiting
    assert '"directory": "/"' in said(read_fd)


@pytest.mark.parametrize("victim", ["nursery", "runner"])
async def test_all_end_with_the_nursery_and_with_its_runner(nursery: NurseryClient, victim: str) -> None:
    _, read_fd = await start(nursery, 0, "wait")
    assert said(read_fd) == "up"
    everyone = [nursery.pid, *below(nursery)]
    if victim == "nursery":
        os.kill(nursery.pid, signal.SIGKILL)
    else:
        await nursery.close()
    await until(lambda: not living(everyone), "the end of all")


async def test_forks_that_wait_end_with_a_template_that_is_killed(template: WarmProcess) -> None:
    await until(lambda: len(template.spares()) == 4, "the forks that wait")
    waiting = template.spares()
    os.kill(template.pid, signal.SIGKILL)
    await until(lambda: not living(waiting), "their end")


async def test_forks_that_wait_end_though_the_store_was_forked_anew(nursery: NurseryClient) -> None:
    """It is then a fork of the process that holds their orders."""
    waiting = below(nursery)
    # It was forked first.
    store = min(waiting)
    os.kill(store, signal.SIGKILL)
    await until(lambda: not living([store]), "the end of the store's fork")
    nursery.ask_store("127.0.0.1")
    assert await nursery.wait_store() > 0
    pid, read_fd = await start(nursery, 0, "wait")
    assert said(read_fd) == "up"
    (unused,) = waiting - {store, pid}
    await until(lambda: unused not in below(nursery), "the end of the fork that nobody needs")


async def test_a_nursery_that_was_cleared_starts_ranks_of_the_next_allocation(nursery: NurseryClient) -> None:
    process = await nursery.release()
    assert process is not None
    following = NurseryClient(process)
    assert below(following) == set()
    # It outlives the moment at which a nursery lets unneeded forks go.
    _, read_fd = await start(following, 0, "late")
    assert said(read_fd) == "late"
    await following.close()


async def test_the_next_nursery_has_as_many_ranks_ready_as_the_newest_request_says(
    template: WarmProcess, tmp_path: Path
) -> None:
    await until(lambda: len(template.spares()) == 4, "the forks that wait")
    made = await start_nursery(template.socket_path, tmp_path, 1)

    def is_ready() -> bool:
        following = [child for child in psutil.Process(template.pid).children() if child.pid != made.pid]
        return [(each.status(), len(each.children())) for each in following] == [(psutil.STATUS_SLEEPING, 2)]

    await until(is_ready, "a store and one rank that wait for the next request")
    await made.close()
