"""Agents that cannot start what they are given: trials avoid them for a while, several trials take them out of use."""

from __future__ import annotations

import re
import time

import pytest

from gangline.domain.experiment import Trial
from gangline.domain.state import Availability, ExitKind, Outcome, State
from gangline.v1 import types_pb2
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import config_json
from tests.support.scripted_agent import ScriptedAgent, ScriptedRunner
from tests.support.wait import until, until_async

FULL = "cannot write the journal: No space left on device"
PROBLEM = "its state directory /x takes no writes"


def _fail_start(agent: ScriptedAgent, allocation_id: str, kind: ExitKind = ExitKind.AGENT_DISK) -> None:
    agent.finish(allocation_id, kind, FULL, is_agent_at_fault=True)


async def _started(agent: ScriptedAgent, allocation_id: str) -> None:
    await until(lambda: allocation_id in agent.specs, f"the start of {allocation_id} on {agent.id}", 20)


async def _reason(bench: Bench, trial_id: str) -> types_pb2.Reason | None:
    pending = {standing.request.trial_id: standing.reason for standing in await bench.caller.list_pending()}
    return pending.get(trial_id)


async def _wait_reason(bench: Bench, trial_id: str, pattern: str) -> types_pb2.Reason:
    async def find() -> types_pb2.Reason | None:
        reason = await _reason(bench, trial_id)
        return reason if reason is not None and re.search(pattern, reason.message) else None

    return await until_async(find, f"a reason like {pattern!r}", 20)


def _is_queued(trial: Trial) -> bool:
    return trial.state is State.QUEUED and bool(trial.exclusions)


@pytest.mark.parametrize("kind", [ExitKind.AGENT_DISK, ExitKind.START_FAILED])
async def test_a_trial_goes_to_another_agent_than_the_one_that_could_not_start_it(bench: Bench, kind: ExitKind) -> None:
    await bench.scheduler()
    agents = {agent.id: agent for agent in [await bench.agent("a1"), await bench.agent("a2")]}
    await bench.caller.submit(config_json(max_restarts=0))
    await until(lambda: any("1.1.1" in agent.specs for agent in agents.values()), "the first start", 20)
    sick = next(agent for agent in agents.values() if "1.1.1" in agent.specs)
    well = next(agent for agent in agents.values() if agent is not sick)
    _fail_start(sick, "1.1.1", kind)
    await _started(well, "1.1.2")
    trial = await bench.trial("1.1")
    assert trial is not None
    assert (trial.restarts, trial.infrastructure_failures) == (0, 1)
    [exclusion] = trial.exclusions
    assert (exclusion.agent_id, exclusion.reason) == (sick.id, FULL)
    assert 590 < exclusion.until_at - time.time() <= 600
    well.finish("1.1.2", ExitKind.COMPLETED)
    await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.outcome is Outcome.COMPLETED)


async def test_a_failure_of_other_machines_excludes_nobody(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json())
    await _started(agent, "1.1.1")
    agent.finish("1.1.1", ExitKind.START_FAILED, "no gateway answers")
    await _started(agent, "1.1.2")


async def test_with_one_agent_a_trial_waits_and_is_tried_there_again(bench: Bench) -> None:
    await bench.scheduler("s1", "--exclusion-seconds", "3")
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json())
    await _started(agent, "1.1.1")
    _fail_start(agent, "1.1.1")
    failed_at = time.time()
    reason = await _wait_reason(bench, "1.1", "excluded for this trial")
    assert reason.code == types_pb2.REASON_CODE_AGENTS_UNHEALTHY
    assert re.fullmatch(
        rf"needs 1 slot; only a1 \(excluded for this trial until \d\d:\d\d:\d\d UTC: {FULL}\) could hold it",
        reason.message,
    )
    assert reason.would_start_if == "the exclusion of a1 for this trial ends"
    await _started(agent, "1.1.2")
    assert time.time() - failed_at > 2
    _fail_start(agent, "1.1.2")
    waiting = await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.infrastructure_failures == 2)
    assert (waiting.state, waiting.reason) == (State.QUEUED, f"agent a1: {FULL}")


async def _quarantine(bench: Bench, agent: ScriptedAgent) -> None:
    """Three trials fail to start, after one that did start."""
    for experiment_id in (1, 2, 3):
        await bench.caller.submit(config_json())
        await _started(agent, f"{experiment_id}.1.1")
        _fail_start(agent, f"{experiment_id}.1.1")
        await bench.eventually(lambda: bench.trial(f"{experiment_id}.1"), _is_queued)  # noqa: B023 - called at once


async def test_three_trials_take_an_agent_out_of_use_until_an_operator_enables_it(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1", slots=4)
    await _quarantine(bench, agent)
    record = await bench.eventually(
        lambda: bench.record("a1"), lambda agent_record: agent_record.quarantined_until_at > time.time()
    )
    assert record.availability is Availability.ENABLED
    assert record.quarantine_reason == f"3 trials in a row could not start there (1.1, 2.1, 3.1); last: {FULL}"
    await bench.caller.submit(config_json())
    reason = await _wait_reason(bench, "4.1", "out of use until")
    assert record.quarantine_reason in reason.message
    assert not agent.specs.keys() & {"4.1.1", "1.1.2"}
    await bench.caller.change_agent("a1", Availability.ENABLED)
    for allocation_id in ("4.1.1", "1.1.2", "2.1.2", "3.1.2"):
        await _started(agent, allocation_id)
    record = await bench.eventually(lambda: bench.record("a1"), lambda agent_record: not agent_record.quarantine_reason)
    assert not record.failed_starts


async def test_errors_that_ranks_print_take_no_agent_out_of_use(bench: Bench) -> None:
    """A trial can print any error. The agent is avoided by this trial, and stays there for all others."""
    await bench.scheduler()
    agent = await bench.agent("a1", slots=4)
    for experiment_id in (1, 2, 3):
        await bench.caller.submit(config_json())
        await _started(agent, f"{experiment_id}.1.1")
        agent.finish(f"{experiment_id}.1.1", ExitKind.AGENT_DISK, FULL, rank=0, is_agent_at_fault=True)
        await bench.eventually(lambda: bench.trial(f"{experiment_id}.1"), _is_queued)  # noqa: B023 - called at once
    await bench.caller.submit(config_json())
    await _started(agent, "4.1.1")
    record = await bench.record("a1")
    assert record is not None
    assert (record.quarantine_reason, record.failed_starts) == ("", ())


async def test_a_start_that_succeeds_between_them_keeps_an_agent_in_use(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1", slots=4)
    for experiment_id in (1, 2, 3, 4):
        await bench.caller.submit(config_json())
        await _started(agent, f"{experiment_id}.1.1")
        if experiment_id == 3:
            await ScriptedRunner(agent.specs["3.1.1"], scheduler.address).run()
            await bench.eventually(lambda: bench.record("a1"), lambda agent_record: not agent_record.failed_starts)
        else:
            _fail_start(agent, f"{experiment_id}.1.1")
            await bench.eventually(lambda: bench.trial(f"{experiment_id}.1"), _is_queued)  # noqa: B023 - called at once
    record = await bench.record("a1")
    assert record is not None
    assert [start.trial_id for start in record.failed_starts] == ["4.1"]
    assert not record.quarantined_until_at


async def test_a_quarantine_ends_by_itself(bench: Bench) -> None:
    await bench.scheduler("s1", "--exclusion-seconds", "3")
    agent = await bench.agent("a1", slots=4)
    await _quarantine(bench, agent)
    await bench.eventually(lambda: bench.record("a1"), lambda agent_record: bool(agent_record.quarantined_until_at))
    await bench.caller.submit(config_json())
    await _started(agent, "4.1.1")


async def test_an_agent_whose_own_check_is_bad_gets_nothing_and_is_trusted_when_it_is_good(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json())
    await _started(agent, "1.1.1")
    agent.tell_slots(agent.record.slots, PROBLEM)
    await bench.eventually(lambda: bench.record("a1"), lambda agent_record: agent_record.problem == PROBLEM)
    _fail_start(agent, "1.1.1")
    await bench.eventually(lambda: bench.trial("1.1"), _is_queued)
    await bench.caller.submit(config_json())
    await _wait_reason(bench, "2.1", re.escape(f"only a1 ({PROBLEM}) could hold it"))
    # A new leader and a new hello know of it too.
    bench.schedulers[0].end()
    await bench.schedulers[0].start()
    await _wait_reason(bench, "2.1", re.escape(PROBLEM))
    agent.tell_slots(agent.record.slots)
    await _started(agent, "2.1.1")
    await _started(agent, "1.1.2")


async def test_an_attempt_with_a_checkpoint_begins_a_new_row_of_failures(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json(max_restarts=6))
    waits = []
    for attempt in range(1, 6):
        allocation_id = f"1.1.{attempt}"
        await _started(agent, allocation_id)
        runner = ScriptedRunner(agent.specs[allocation_id], scheduler.address)
        await runner.run()
        checkpoint = types_pb2.Checkpoint(
            id=f"c{attempt}",
            batches_completed=10 * attempt,
            url=f"/x/checkpoints/c{attempt}",
            created_at=time.time(),
        )
        await runner.report(checkpoint=checkpoint)
        agent.finish(allocation_id, ExitKind.USER_ERROR, f"error number {'x' * attempt}", rank=0)
        failed_at = time.time()
        await _started(agent, f"1.1.{attempt + 1}")
        waits.append(time.time() - failed_at)
    # Without it: 0, 1, 2, 4, 8 seconds.
    assert max(waits) < 1.0, waits
    trial = await bench.trial("1.1")
    assert trial is not None
    assert (trial.restarts, trial.failures_in_a_row) == (5, 1)
