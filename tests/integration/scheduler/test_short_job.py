"""Jobs that end before their agent has said that it accepted them, at a real scheduler."""

from __future__ import annotations

import asyncio
import signal
import time
import urllib.request
from functools import partial

from gangline.domain.state import ExitKind, Outcome, State
from gangline.v1 import runner_pb2, types_pb2
from services.common import keys
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import config_json
from tests.support.scripted_agent import ScriptedAgent
from tests.support.wait import until


def _end(agent: ScriptedAgent, allocation_id: str) -> None:
    """As a runner does that had nothing to say while its command ran: all is told with the end."""
    now = time.time()
    timeline = types_pb2.Timeline(runner_up_at=now, rendezvous_at=now, ranks_up_at=now)
    report = runner_pb2.TrialReport(sequence=1, running=runner_pb2.RunningReport(timeline=timeline))
    agent.journal[allocation_id].undelivered.append(report)
    agent.finish(allocation_id, ExitKind.COMPLETED)


async def _revision(bench: Bench) -> int:
    return (await bench.etcd.list(keys.AGENTS)).revision


async def test_jobs_that_end_together_are_written_together(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1", slots=16)
    agent.tells_accepts = False
    for number in range(16):
        await bench.caller.submit(config_json(name=f"job-{number}"))
    specs = await agent.started(16)
    before = await _revision(bench)
    # The scheduler reads all ends at once, however slowly they are sent.
    scheduler.signal(signal.SIGSTOP)
    for spec in specs:
        _end(agent, spec.allocation.id)
    await until(agent.has_sent_all, "all ends being sent", 20)
    scheduler.signal(signal.SIGCONT)
    for spec in specs:
        find = partial(bench.experiment, spec.trial.experiment_id)
        ended = await bench.eventually(find, lambda experiment: experiment.state is State.TERMINAL)
        assert ended.outcome is Outcome.COMPLETED
    assert await _revision(bench) - before <= 8, "each of 16 ends had a transaction of its own"
    await bench.eventually(lambda: _nothing(agent), bool)


async def test_a_job_whose_end_is_the_first_word_of_it_has_its_whole_timeline(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1")
    agent.tells_accepts = False
    await bench.caller.submit(config_json())
    (spec,) = await agent.started()
    _end(agent, spec.allocation.id)
    await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    trial = await bench.trial("1.1")
    assert trial is not None
    assert trial.timeline.accepted_at > 0
    assert trial.timeline.ranks_up_at >= trial.timeline.placed_at
    lines = await asyncio.to_thread(_metrics, scheduler.metrics_address)
    for phase in ("accepted", "runner_up", "rendezvous", "ranks_up"):
        assert f'gangline_scheduler_start_seconds_count{{phase="{phase}"}} 1.0' in lines


def _metrics(address: str) -> list[str]:
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        return [str(line, "utf-8").strip() for line in answer]


async def _nothing(agent: ScriptedAgent) -> bool:
    return not agent.journal
