"""Failures outside of a trial at a real scheduler: the trial waits; a command that has not begun begins elsewhere."""

from __future__ import annotations

import pytest

from gangline.domain.experiment import Trial
from gangline.domain.state import Availability, ExitKind, Outcome, State
from gangline.v1 import types_pb2
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import config_json
from tests.support.scripted_agent import ScriptedAgent
from tests.support.wait import until

NOT_MET = "the rendezvous was not complete after 60 s: a2 missing"


async def _started(agent: ScriptedAgent, allocation_id: str) -> None:
    await until(lambda: allocation_id in agent.specs, f"{allocation_id} on {agent.id}")


async def _lost(bench: Bench, trial_id: str, agent: ScriptedAgent) -> Trial:
    """The trial, once its attempt on the agent was given up."""

    def is_over(trial: Trial) -> bool:
        return trial.last_failure is not None and trial.last_failure.agent_id == agent.id

    return await bench.eventually(lambda: bench.trial(trial_id), is_over)


def _command() -> str:
    return config_json(name="command", max_restarts=0, task={"kind": "COMMAND"}, entrypoint="echo once")


async def test_failures_in_a_row_outside_of_a_trial_make_it_wait(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json(max_restarts=0))
    for attempt in range(1, 6):
        await _started(agent, f"1.1.{attempt}")
        agent.finish(f"1.1.{attempt}", ExitKind.RENDEZVOUS, NOT_MET)
    failed = await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.infrastructure_failures == 5)
    assert (failed.state, failed.outcome, failed.restarts) == (State.QUEUED, None, 0)
    assert failed.reason == f"agent a1: {NOT_MET}"
    [standing] = await bench.eventually(
        bench.caller.list_pending,
        lambda pending: [each.reason.code for each in pending] == [types_pb2.REASON_CODE_BACKOFF_AFTER_FAILURE],
    )
    assert standing.request.not_before_at > failed.timeline.queued_at + 7


async def test_hours_after_which_a_trial_is_given_up_are_a_setting(bench: Bench) -> None:
    await bench.scheduler("s1", "--give-up-hours", "0")
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json(max_restarts=0))
    for attempt in range(1, 6):
        await _started(agent, f"1.1.{attempt}")
        agent.finish(f"1.1.{attempt}", ExitKind.RENDEZVOUS, NOT_MET)
    ended = await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.TERMINAL)
    assert ended.outcome is Outcome.FAILED
    assert ended.reason.startswith("5 attempts in a row failed within 0.0 h for reasons outside of the trial")


async def test_a_command_that_its_agent_denies_begins_elsewhere(bench: Bench) -> None:
    await bench.scheduler()
    first = await bench.agent("a1")
    await bench.caller.submit(_command())
    await _started(first, "1.1.1")
    second = await bench.agent("a2")
    broken = "the process that forks the ranks (pid 7) takes no requests any more: Broken pipe"
    first.finish("1.1.1", ExitKind.START_FAILED, broken, is_agent_at_fault=True, has_not_begun=True)
    await _started(second, "1.1.2")
    second.finish("1.1.2", ExitKind.START_FAILED, broken, is_agent_at_fault=True)
    ended = await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.TERMINAL)
    assert ended.reason == f"agent a2: {broken}; a command is not started again"


@pytest.mark.parametrize("asks", [True, False], ids=["no question", "may have begun"])
async def test_a_command_begins_elsewhere_once_the_lease_of_its_agent_is_over(bench: Bench, asks: bool) -> None:
    # On a busy machine the command must be placed before the silent agent is lost.
    await bench.scheduler("s1", "--agent-lease-seconds", "8", "--agent-grace-seconds", "0")
    first = ScriptedAgent("a1", bench.addresses)
    bench.agents.append(first)
    first.asks_before_commands, first.accepts = asks, False
    await first.connect()
    second = await bench.agent("a2")
    await bench.caller.change_agent("a2", Availability.DISABLED)
    # Nothing comes from its host any more, from before the start on: a stopped process, or a cut network.
    first.is_silent, first.greets_again = True, False
    # A heartbeat that arrives after the command says that it may begin.
    await until(lambda: not first.num_unanswered, "answers to the heartbeats of a1")
    await bench.caller.submit(_command())
    await bench.eventually(lambda: bench.allocation("1.1.1"), lambda allocation: bool(allocation.members))
    await first.disconnect()
    await bench.caller.change_agent("a2", Availability.ENABLED)
    if not asks:
        trial = await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.TERMINAL)
        assert trial.reason.endswith("a command is not started again")
        assert not second.specs
        return
    trial = await _lost(bench, "1.1", first)
    await _started(second, "1.1.2")
    assert trial.last_failure is not None
    assert trial.last_failure.kind is ExitKind.AGENT_LOST
    second.finish("1.1.2", ExitKind.COMPLETED)
    await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.outcome is Outcome.COMPLETED)
