"""Which address is asked next."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from services.common.concurrency import cancel
from services.common.state_folder import StateFolder
from services.trial_runner.delivery import channel_route
from services.trial_runner.delivery.channel_route import ChannelRoute, route_to_gateways, route_to_leader
from tests.support.wait import until, within

LEADER = "10.0.0.9:8082"


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_route, "FIRST_PAUSE_SECONDS", 0.0)


async def test_addresses_take_turns() -> None:
    made = ChannelRoute("scheduler", ["a:1", "b:2"])
    seen = [made.address]
    for _ in range(3):
        await made.failed()
        seen.append(made.address)
    assert seen == ["a:1", "b:2", "a:1", "b:2"]


async def test_a_named_leader_is_asked_next_and_dropped_when_it_fails_too() -> None:
    made = ChannelRoute("scheduler", ["a:1", "b:2"])
    await made.failed(LEADER)
    assert made.address == LEADER
    await made.failed()
    assert made.address == "b:2"


async def test_two_standbys_that_name_each_other_do_not_keep_it_for_ever() -> None:
    made = ChannelRoute("scheduler", ["a:1"])
    await made.failed(LEADER)
    await made.failed(LEADER)
    assert made.address == "a:1"


async def test_without_any_address_it_says_so() -> None:
    made = ChannelRoute("gateway", [])
    await made.failed()
    assert made.name == "the gateway at no known address"


async def test_learned_addresses_replace_those_of_the_start() -> None:
    made = ChannelRoute("gateway", ["a:1", "b:2"])
    await made.failed()
    made.learn([])
    assert made.address == "b:2"
    made.learn(["c:3"])
    assert made.address == "c:3"


async def test_who_is_in_a_hurry_does_not_wait_for_the_end_of_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_route, "FIRST_PAUSE_SECONDS", 600.0)
    monkeypatch.setattr(channel_route, "LONGEST_PAUSE_SECONDS", 600.0)
    made = ChannelRoute("scheduler", ["a:1"])
    pausing = asyncio.create_task(made.failed())
    await asyncio.sleep(0)
    made.hurry()
    await asyncio.wait_for(pausing, 10)


async def test_a_leader_is_looked_for_again_sooner_than_a_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_PAUSE_SECONDS", "LONGEST_PAUSE_SECONDS"):
        monkeypatch.setattr(channel_route, name, 600.0)
    assert channel_route.LEADER_PAUSE_SECONDS <= 0.5
    await asyncio.wait_for(route_to_leader(["a:1", "b:2"], StateFolder(tmp_path)).failed(), 5)


async def test_a_loop_of_calls_ends_although_a_failing_call_drops_its_cancellation() -> None:
    made = ChannelRoute("gateway", ["a:1"])
    has_called = asyncio.Event()

    async def repeat() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                has_called.set()
                await asyncio.sleep(60)
            await made.failed()

    task = asyncio.create_task(repeat())
    await has_called.wait()
    await within(10, cancel(task))
    assert task.cancelled()


async def test_gateways_of_which_the_agent_hears_are_tried_and_the_given_ones_stay(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    made = route_to_gateways(["a:1"], state)
    await made.failed()
    assert made.address == "a:1"
    state.write_gateways(["b:2"])
    seen = []
    for _ in range(3):
        await made.failed()
        seen.append(made.address)
    assert seen == ["b:2", "a:1", "b:2"]
    made.learn(["c:3"])
    assert made.address == "c:3"


async def test_without_an_address_it_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_route, "FIND_SECONDS", 0.01)
    looks: list[list[str]] = []
    load = StateFolder.load_gateways

    def look(state: StateFolder) -> list[str]:
        looks.append(load(state))
        return looks[-1]

    async def look_again() -> None:
        so_far = len(looks)
        await until(lambda: len(looks) > so_far + 1, "two more looks", 20)

    monkeypatch.setattr(StateFolder, "load_gateways", look)
    state = StateFolder(tmp_path)
    made = route_to_gateways([], state)
    waiting = asyncio.create_task(made.wait_address())
    await look_again()
    assert not waiting.done()
    (tmp_path / "gateways.json").write_text("{")
    await look_again()
    assert not waiting.done()
    state.write_gateways(["b:2"])
    await within(10, waiting)
    assert made.address == "b:2"
