"""A search stays within max_concurrent_trials and resources.max_slots in every revision of etcd.

Two real schedulers, of which the leader is killed again and again, and agents that end attempts in every way, come
back late and obey slowly. An undisturbed watch delivers every revision, so no moment is missed.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import ExitKind, ExperimentAction, State
from gangline.errors import GanglineError
from services.common import keys
from services.common.etcd import EtcdClient, KeyValue
from services.scheduler.state.codec import record_of
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import SchedulerProcess, config_json
from tests.support.scripted_agent import ScriptedAgent
from tests.support.wait import until, until_async

RATE = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
FLAGS = (
    *("--leader-lease-seconds", "1", "--agent-grace-seconds", "1", "--agent-lease-seconds", "2"),
    *("--shrink-seconds", "0.3", "--resize-seconds", "0.3", "--force-seconds", "1"),
)
ENDS = [ExitKind.COMPLETED, ExitKind.COMPLETED, ExitKind.PREEMPTED, ExitKind.RUNNER_LOST, ExitKind.USER_ERROR]


@dataclass
class LimitWatch:
    """Follows the state revision by revision."""

    records: dict[str, Any] = field(default_factory=dict)
    # by experiment, the slots that it may hold because its cap was lowered below what it held
    most: dict[int, float] = field(default_factory=dict)
    # by experiment, the most slots and trials at a time that were seen
    widest: dict[int, tuple[int, int]] = field(default_factory=dict)
    sizes: set[int] = field(default_factory=set)
    num_revisions: int = 0
    revision: int = 0

    async def follow(self, etcd: EtcdClient, first: int) -> None:
        """Until it is cancelled; the first violation ends it."""
        async with aclosing(etcd.watch(keys.ROOT, first)) as batches:
            async for batch in batches:
                for event in batch.events:
                    record = event.value and record_of(KeyValue(event.key, event.value, 0, 0))
                    self.records[event.key] = record or None
                self.check(batch.revision)
                self.num_revisions, self.revision = self.num_revisions + 1, batch.revision

    def all_of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records.values() if isinstance(record, kind)]

    def check(self, revision: int) -> None:
        held: Counter[int] = Counter()
        allocations = self.all_of(Allocation)
        for allocation in allocations:
            held[allocation.experiment_id] += allocation.num_slots
            self.sizes.add(allocation.num_slots)
        slot_ids = [slot for allocation in allocations for member in allocation.members for slot in member.slot_ids]
        assert len(slot_ids) == len(set(slot_ids)), f"a slot has two owners at revision {revision}: {allocations}"
        trial_ids = [allocation.trial_id for allocation in allocations]
        assert len(trial_ids) == len(set(trial_ids)), f"a trial has two attempts at revision {revision}: {allocations}"
        going_on = Counter(trial.experiment_id for trial in self.all_of(Trial) if trial.state is not State.TERMINAL)
        for experiment in self.all_of(Experiment):
            number, config = experiment.id, json.loads(experiment.config_json)
            cap = config["resources"].get("max_slots") or float("inf")
            most = max(cap, self.most.get(number, cap))
            assert held[number] <= most, f"{held[number]} slots of {most} at revision {revision}: {allocations}"
            self.most[number] = max(cap, held[number])
            at_once = config["searcher"].get("max_concurrent_trials") or float("inf")
            assert going_on[number] <= at_once, f"{going_on[number]} trials of {at_once} at revision {revision}"
            slots, trials = self.widest.get(number, (0, 0))
            self.widest[number] = max(slots, held[number]), max(trials, going_on[number])


@asynccontextmanager
async def _watched(bench: Bench) -> AsyncIterator[LimitWatch]:
    """Fails at the first revision beyond a limit. The watch has seen everything when the block has ended."""
    watch = LimitWatch()
    first = await bench.etcd.find_revision() + 1
    following = asyncio.create_task(watch.follow(bench.etcd, first))
    try:
        yield watch
        last = await bench.etcd.find_revision()
        await until(lambda: following.done() or watch.revision >= last, "the watch to catch up")
    finally:
        if not following.done():
            following.cancel()
        with suppress(asyncio.CancelledError):
            await following


def _search(num_trials: int, at_once: int, max_slots: int | None, slots: int = 1, **fields: object) -> str:
    searcher = {"name": "random", "metric": "loss", "max_trials": num_trials, "max_concurrent_trials": at_once}
    resources = {"slots_per_trial": slots, "max_slots": max_slots, **fields}
    return config_json(hyperparameters=RATE, searcher=searcher, resources=resources, max_restarts=1)


async def _call(bench: Bench, call: Any) -> None:
    """Makes a user's change. A refusal of an ended experiment, or of a leader that has just died, does not matter."""
    with suppress(GanglineError, TimeoutError):
        async with asyncio.timeout(5):
            await call


class _History:
    """One random history; the seed decides its steps."""

    def __init__(self, bench: Bench, agents: list[ScriptedAgent], seed: int) -> None:
        self._bench = bench
        self._agents = agents
        self._random = random.Random(seed)

    async def step(self) -> None:
        word = self._random.choice(["end"] * 8 + ["pause", "activate", "activate", "cap", "leader", "away", "kill"])
        number = self._random.randint(1, 3)
        caller = self._bench.caller
        match word:
            case "end":
                await self._end()
            case "pause":
                await _call(self._bench, caller.change(number, ExperimentAction.PAUSE))
            case "activate":
                await _call(self._bench, caller.change(number, ExperimentAction.ACTIVATE))
            case "cap":
                slots = self._random.choice([0, 2, 3, 5])
                await _call(self._bench, caller.set_resources(number, max_slots=slots))
            case "kill":
                await _call(self._bench, caller.end_trial(f"{number}.{self._random.randint(1, 12)}"))
            case "leader":
                await self._fail_over()
            case "away":
                agent = self._random.choice(self._agents)
                await agent.disconnect()
                await asyncio.sleep(self._random.choice([0.1, 3.0]))
                await agent.connect()

    async def _end(self) -> None:
        """An attempt ends, of its own accord or because it was told to; the agent may repeat itself."""
        agent = self._random.choice(self._agents)
        with suppress(AssertionError):
            await until(lambda: bool(agent._alive()), "an attempt", 0.3)
        if alive := agent._alive():
            allocation_id = self._random.choice(alive)
            stop = agent.stops.get(allocation_id)
            kind = ExitKind.PREEMPTED if stop is not None else self._random.choice(ENDS)
            for _ in range(self._random.choice([1, 2])):
                agent.finish(allocation_id, kind)

    async def _fail_over(self) -> None:
        victim: SchedulerProcess = self._random.choice(self._bench.schedulers)
        victim.end(signal.SIGKILL)
        await victim.start()

    async def settle(self) -> None:
        """Everything goes on, and completes."""
        for number in (1, 2, 3):
            await _call(self._bench, self._bench.caller.change(number, ExperimentAction.ACTIVATE))

        async def is_over() -> bool | None:
            for agent in self._agents:
                for allocation_id in agent._alive():
                    agent.finish(allocation_id, ExitKind.COMPLETED)
            experiments = [await self._bench.experiment(number) for number in (1, 2, 3)]
            return all(experiment and experiment.state is State.TERMINAL for experiment in experiments) or None

        await until_async(is_over, "the ends of all searches", 90)


async def test_limits_hold_in_every_revision(bench: Bench) -> None:
    async with _watched(bench) as watch:
        for name in ("s1", "s2"):
            await bench.scheduler(name, *FLAGS)
        agents = [await bench.agent("a1", slots=4), await bench.agent("a2", slots=3, obeys_stop=False)]
        await bench.caller.submit(_search(12, 3, 2))
        await bench.caller.submit(_search(10, 0, 3))
        await bench.caller.submit(_search(6, 2, 4, slots=2, min_slots_per_trial=1))
        history = _History(bench, agents, seed=2)
        for _ in range(60):
            await history.step()
        await history.settle()
    # A scheduler under load joins more changes in one revision.
    assert watch.num_revisions > 50
    assert watch.widest[1][0] >= 2, "the cap was reached"
    assert watch.widest[1][1] == 3
    assert watch.widest[3][1] == 2
