"""One machine fetches a code archive once, whatever happens to its runners and to the cached copy."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from gangline.domain.allocation import ExitReport
from gangline.domain.state import ExitKind
from gangline.v1 import runner_pb2
from services.common.code_cache import CodeCache, CodeLimits, FetchCount
from services.common.state_folder import StateFolder
from tests.integration.trial_runner.conftest import World
from tests.support.runner_process import Runner
from tests.support.wait import until

# Larger than the chunks of a download, so that a download has a middle.
PADDING = random.Random(1).randbytes(100_000).hex()
READ = "cat train.py"


def _cache(world: World) -> CodeCache:
    return CodeCache(world.folder / "a1" / "code")


def _spec(world: World, number: int) -> runner_pb2.RunnerSpec:
    """Another trial of the same experiment."""
    spec = runner_pb2.RunnerSpec()
    spec.CopyFrom(world.specs[0])
    spec.trial.id, spec.trial.number = f"7.{number}", number
    spec.allocation.id, spec.allocation.trial_id = f"7.{number}.1", f"7.{number}"
    return spec


def _launch(world: World, number: int) -> Runner:
    runner = world.host("a1").start(_spec(world, number))
    world.runners.append(runner)
    return runner


async def _run(world: World, number: int) -> ExitReport:
    return await _launch(world, number).wait()


async def _prepare(world: World, entrypoint: str = READ) -> Path:
    """The path of the entry."""
    await world.prepare("original", (1,), files={"padding": PADDING}, config={"entrypoint": entrypoint})
    return _cache(world).archive_path(world.specs[0].code_sha256)


def _kinds(reports: list[ExitReport]) -> list[ExitKind]:
    return [report.kind for report in reports]


async def test_many_runners_at_once_fetch_once(world: World) -> None:
    archive = await _prepare(world)
    world.gateway.held_code = asyncio.Event()
    runners = [_launch(world, number) for number in range(1, 9)]
    await until(lambda: world.gateway.num_fetches == 1, "the download")
    await until(lambda: all((runner.directory / "lock").exists() for runner in runners), "all runners")
    world.gateway.held_code.set()
    reports = await asyncio.gather(*(runner.wait() for runner in runners))
    assert _kinds(reports) == [ExitKind.COMPLETED] * 8
    assert world.gateway.num_fetches == 1
    assert _cache(world).load_count() == FetchCount(1, archive.stat().st_size)
    assert [line for line in world.gateway.lines("stdout") if line == "original"] == ["original"] * 8
    assert await _run(world, 9)
    assert world.gateway.num_fetches == 1


async def test_a_killed_fetcher_leaves_nothing_that_a_later_one_believes(world: World) -> None:
    archive = await _prepare(world)
    world.gateway.held_code = asyncio.Event()
    fetcher = _launch(world, 1)
    draft = _cache(world).draft_path(world.specs[0].code_sha256)
    await until(lambda: world.gateway.num_fetches == 1 and draft.exists(), "the middle of the download")
    follower = _launch(world, 2)
    await until((follower.directory / "lock").exists, "the second runner")
    fetcher.kill(signal.SIGKILL)
    await fetcher.gone()
    assert draft.exists()
    assert not archive.exists()
    world.gateway.held_code.set()
    assert (await follower.wait()).kind is ExitKind.COMPLETED
    assert world.gateway.num_fetches == 2
    assert not draft.exists()
    assert world.gateway.lines("stdout") == ["original"]


@pytest.mark.parametrize("place", [4, 1000, -1])
async def test_a_flipped_byte_is_found_and_the_archive_fetched_again(world: World, place: int) -> None:
    archive = await _prepare(world)
    assert (await _run(world, 1)).kind is ExitKind.COMPLETED
    content = bytearray(archive.read_bytes())
    content[place] ^= 1
    archive.chmod(0o600)
    archive.write_bytes(content)
    reports = await asyncio.gather(*(_run(world, number) for number in range(2, 5)))
    assert _kinds(list(reports)) == [ExitKind.COMPLETED] * 3
    assert world.gateway.num_fetches == 2
    assert world.gateway.lines("stdout") == ["original"] * 4


async def test_a_trial_cannot_change_the_code_of_the_next_one(world: World) -> None:
    """Neither in its own folder nor by force in the cache."""
    spoil = "cat train.py; echo spoiled > train.py; for f in ../../../code/*.gz; do chmod u+w $f; cp train.py $f; done"
    archive = await _prepare(world, spoil)
    assert (await _run(world, 1)).kind is ExitKind.COMPLETED
    assert archive.read_bytes() == b"spoiled\n"
    assert (await _run(world, 2)).kind is ExitKind.COMPLETED
    assert world.gateway.lines("stdout") == ["original"] * 2
    for number in (1, 2):
        assert (world.host("a1").directory(f"7.{number}.1") / "code" / "train.py").read_text() == "spoiled\n"


async def test_a_cached_archive_is_read_only(world: World) -> None:
    archive = await _prepare(world)
    await _run(world, 1)
    assert archive.stat().st_mode & 0o777 == 0o400


async def test_an_attempt_goes_on_without_a_cache(world: World) -> None:
    """A file is in the place of the folder."""
    await _prepare(world)
    (world.folder / "a1").mkdir()
    (world.folder / "a1" / "code").touch()
    for number in (1, 2):
        assert (await _run(world, number)).kind is ExitKind.COMPLETED
    assert world.gateway.num_fetches == 2
    left = list(world.host("a1").directory("7.1.1").glob(".code*"))
    assert left == []


async def test_a_runner_prunes_by_the_agents_limits(world: World) -> None:
    """The archive that it uses itself stays, although it is beyond the limit."""
    archive = await _prepare(world)
    (world.folder / "a1" / "code").mkdir(parents=True)
    _cache(world).write_limits(CodeLimits(max_bytes=1))
    other = _cache(world).archive_path("1" * 64)
    other.write_bytes(b"old")
    os.utime(other, (1.0, 1.0))
    assert (await _run(world, 1)).kind is ExitKind.COMPLETED
    assert archive.exists()
    assert not other.exists()


async def test_a_start_without_any_gateway_waits_for_one_and_says_so(world: World) -> None:
    await _prepare(world)
    del world.specs[0].gateway_addresses[:]
    runner = world.launch(0)
    state = StateFolder(world.folder / "a1")
    # Runners that wait for one another's download wait for the same gateway. The one that is first says so.
    second = _launch(world, 2)
    told = b"waits for a gateway, to fetch the code: none is registered"
    await until(lambda: any(told in path.read_bytes() for path in state.spools.glob("*/*.seg")), "the wait in a log")
    state.write_gateways(["127.0.0.1:1", world.gateway.address])
    assert _kinds([await runner.wait(), await second.wait()]) == [ExitKind.COMPLETED] * 2
    await world.gateway.wait_for(lambda: "original" in world.gateway.lines("stdout"), 20, "the output")
    assert told.decode() in world.gateway.lines("runner")
