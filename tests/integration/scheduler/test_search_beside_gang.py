"""The trials of a search and a gang in one queue, through a real scheduler.

Neither starves the other: the gang starts as soon as the work ahead of it has ended, and the trials behind it use the
slots that it cannot use yet.
"""

from __future__ import annotations

from pathlib import Path

from gangline.domain.state import Availability, ExitKind
from gangline.v1 import types_pb2
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import config_json
from tests.support.scripted_agent import ScriptedAgent
from tests.support.wait import until

NO_PREEMPTION = """
[[resource_pools]]
pool_name = "default"
scheduler = { type = "priority", preemption = false }
"""
SEARCH = {"name": "random", "metric": "loss", "max_trials": 100, "max_concurrent_trials": 8}
RATE = {"lr": {"type": "log", "minval": -4, "maxval": -1}}


async def _finish(agent: ScriptedAgent, experiment_id: int, num_live: int, count: int) -> None:
    """Completes attempts of the search one after another, while as many are live as there are slots for them."""
    for _ in range(count):
        await until(lambda: len(_live(agent, experiment_id)) == num_live, f"{num_live} trials at a time")
        agent.finish(_live(agent, experiment_id)[0], ExitKind.COMPLETED)


def _live(agent: ScriptedAgent, experiment_id: int) -> list[str]:
    return [allocation_id for allocation_id in agent._alive() if allocation_id.startswith(f"{experiment_id}.")]


async def _reason(bench: Bench, trial_id: str) -> types_pb2.Reason:
    standings = {standing.request.trial_id: standing.reason for standing in await bench.caller.list_pending()}
    return standings[trial_id]


async def test_a_search_uses_the_slots_that_a_gang_waits_for_and_does_not_starve_it(bench: Bench) -> None:
    """The default settings: trials pass the gang on call."""
    await bench.scheduler()
    agent = await bench.agent("a1", slots=4)
    await bench.caller.submit(config_json(resources={"slots_per_trial": 2, "preemptible": False}))
    await agent.started(1)
    await bench.caller.submit(config_json(slots=4))
    await bench.caller.submit(config_json(hyperparameters=RATE, searcher=SEARCH))
    await _finish(agent, 3, 2, 20)
    await until(lambda: len(_live(agent, 3)) == 2, "the trials to go on")
    assert list((await _reason(bench, "2.1")).blocking_ids)[:1] == ["1.1.1"]
    assert "2.1.1" not in agent.specs
    agent.finish("1.1.1", ExitKind.COMPLETED)
    await until(lambda: "2.1.1" in agent.specs, "the gang's start, before any other trial has ended")
    assert [stop.reason for stop in agent.stops.values()] == ["makes room for trial 2.1"] * 2
    assert not _live(agent, 3)
    agent.finish("2.1.1", ExitKind.COMPLETED)
    await until(lambda: len(_live(agent, 3)) == 4, "the search to go on")
    again = [allocation_id for allocation_id in _live(agent, 3) if allocation_id.endswith(".2")]
    assert len(again) == 2, "the trials that made room go on first"


async def test_a_gang_that_cannot_start_at_all_reserves_nothing(bench: Bench, tmp_path: Path) -> None:
    """Its second agent is drained, and trials never start on call in this pool. When the agent is back, the gang is
    next: no other trial starts before it."""
    settings = tmp_path / "scheduler.toml"
    settings.write_text(NO_PREEMPTION)
    await bench.scheduler("s1", "--settings", str(settings))
    agents = [await bench.agent(name, slots=2) for name in ("a1", "a2")]
    await bench.caller.change_agent("a2", Availability.DRAINING)
    await bench.caller.submit(config_json(slots=4))
    await bench.caller.submit(config_json(hyperparameters=RATE, searcher=SEARCH))
    await _finish(agents[0], 2, 2, 20)
    assert (await _reason(bench, "1.1")).exact_code == types_pb2.REASON_CODE_AGENTS_DISABLED
    await until(lambda: len(_live(agents[0], 2)) == 2, "the trials to go on")
    await bench.caller.change_agent("a2", Availability.ENABLED)
    await bench.eventually(lambda: _pending_code(bench), lambda code: code == types_pb2.REASON_CODE_NO_CAPACITY)
    before = set(agents[0].specs)
    for allocation_id in _live(agents[0], 2):
        agents[0].finish(allocation_id, ExitKind.COMPLETED)
    await until(lambda: all("1.1.1" in agent.specs for agent in agents), "the gang's start")
    assert set(agents[0].specs) - before == {"1.1.1"}
    assert not agents[0].stops


async def _pending_code(bench: Bench) -> int:
    return (await _reason(bench, "1.1")).code
