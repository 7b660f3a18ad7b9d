"""A gang of real ranks trains, and one of them stands still: the hang names that rank and its place."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from gangline.domain.allocation import ExitReport
from gangline.domain.state import ExitKind
from tests.integration.trial_runner.conftest import World
from tests.support.hanging_trial import SOURCE, hanging_config
from tests.support.runner_process import living

WORDS = {
    "loader": "in the data loader",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer step",
    "callback": "in a callback",
    "validation": "in the validation",
}
# The rank differs, as one that is always named would pass with a single one.
PLACES = [("loader", 0), ("forward", 1), ("backward", 3), ("optimizer", 3), ("callback", 2), ("validation", 3)]


async def hang(world: World, strategy: str, place: str, rank: int, unit: int, **more: Any) -> list[ExitReport]:
    """The reports of both members. more: of the configuration."""
    config = hanging_config(strategy, place, rank, unit=unit) | more
    hparams = {"global_batch_size": 8, "place": place, "rank": rank, "batch": -1 if place == "init" else 4}
    await world.start(SOURCE, (2, 2), config=config, entrypoint="train:HangingTrial", hparams=hparams)
    if place == "stopped":
        pids = await ranks_of(world)
        await world.gateway.wait_line("at batch 4")
        os.kill(pids[rank], signal.SIGSTOP)
    return await world.wait(50)


async def ranks_of(world: World) -> dict[int, int]:
    """The pids by rank."""

    def lines() -> list[list[str]]:
        return [line.split() for line in world.gateway.lines("stdout") if line.startswith("pid ")]

    await world.gateway.wait_for(lambda: len(lines()) == 4, 40, "the pids of 4 ranks")
    return {int(rank): int(pid) for _, pid, rank in lines()}


def check(reports: list[ExitReport], rank: int, words: str) -> None:
    own, other = reports[rank // 2], reports[1 - rank // 2]
    assert (own.kind, own.rank) == (ExitKind.HANG, rank), (own, other)
    assert words in own.message, own.message
    assert other.kind is ExitKind.PEER_FAILED, other
    assert f"rank {rank} on a{1 + rank // 2} failed first: hung" in other.message


# Every place with exchanges in the backward pass of a divided model, and every second one without and elsewhere.
CASES = [
    (strategy, unit, place, rank)
    for strategy, unit, first, step in [
        ("zero2", 100, 0, 1),
        ("ddp", 1, 0, 2),
        ("zero3", 1, 1, 2),
        ("hsdp", 100, 2, 3),
    ]
    for place, rank in PLACES[first::step]
]


@pytest.mark.parametrize(("strategy", "unit", "place", "rank"), CASES)
async def test_the_rank_that_stands_still_is_named_with_its_place(
    world: World, strategy: str, unit: int, place: str, rank: int
) -> None:
    reports = await hang(world, strategy, place, rank, 1 if place == "callback" else unit)
    check(reports, rank, WORDS[place])
    assert f"standing in {place}" in world.gateway.lines("stdout", rank)
    assert living(list((await ranks_of(world)).values())) == []


@pytest.mark.parametrize(
    ("strategy", "rank", "is_asynchronous"), [("ddp", 1, True), ("ddp", 2, False), ("zero3", 3, True)]
)
async def test_the_rank_whose_write_to_storage_stands_still_is_named(
    world: World, strategy: str, rank: int, is_asynchronous: bool
) -> None:
    """All ranks wait in the same place, for one another's parts of the checkpoint. In the background the write goes on
    beside training until the next checkpoint has to wait for it."""
    saving = {"min_checkpoint_period": {"batches": 2}, "async_checkpoints": is_asynchronous}
    reports = await hang(world, strategy, "storage", rank, 1, **saving)
    check(reports, rank, "in saving a checkpoint")
    assert "(limit 3 s), while others wait in a collective that it has not entered" in reports[rank // 2].message
    assert any("in write_to_storage" in line for line in world.gateway.lines("runner", rank))
    assert "standing in storage" in world.gateway.lines("stdout", rank)
    assert living(list((await ranks_of(world)).values())) == []


@pytest.mark.parametrize(("strategy", "unit"), [("ddp", 1), ("zero2", 100), ("hsdp", 100)])
async def test_a_stopped_rank_is_named_wherever_it_was(world: World, strategy: str, unit: int) -> None:
    reports = await hang(world, strategy, "stopped", 3, unit)
    check(reports, 3, "; its process is stopped (SIGSTOP or a debugger)")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("init", "in building the trial and its data before the first completed batch"),
        ("train_batch", "in the forward pass before the first completed batch"),
    ],
)
async def test_a_hang_before_the_first_completed_batch_ends_in_bounded_time(
    world: World, place: str, words: str
) -> None:
    config = hanging_config("ddp", place, 3, seconds=1, start_seconds=4)
    hparams = {"global_batch_size": 8, "place": place, "rank": 3, "batch": -1 if place == "init" else 0}
    await world.start(SOURCE, (2, 2), config=config, entrypoint="train:HangingTrial", hparams=hparams)
    reports = await world.wait(50)
    check(reports, 3, words)
    assert "(limit 4 s)" in reports[1].message
    for rank, agent in enumerate(("a1", "a1", "a2", "a2")):
        assert f"the stacks of rank {rank} on {agent}:" in world.gateway.lines("runner")
    assert any("in stand_still" in line for line in reports[1].last_lines), reports[1].last_lines
