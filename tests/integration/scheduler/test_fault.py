"""Work survives a killed scheduler, a paused leader, and an agent that goes away and comes back."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from gangline.domain.resource import ServiceInstance
from gangline.domain.state import AgentState, ExitKind, Outcome, State
from gangline.errors import ErrorKind, GanglineError
from gangline.v1 import types_pb2
from services.common.election import find_leader
from services.common.etcd import EtcdClient
from services.common.presence import announce
from services.scheduler.transition.exclusion import PAIR_SECONDS
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import Caller, config_json
from tests.support.scripted_agent import ScriptedRunner
from tests.support.wait import until, until_async

# Where the only agent is lost, the leader may be the one that is cut off; these tests do not wait for that long.
LEASES = (
    *("--agent-lease-seconds", "1", "--agent-silence-seconds", "1"),
    *("--agent-grace-seconds", "1"),
)


async def _leader_is(etcd: EtcdClient, name: str) -> bool:
    leader = await find_leader(etcd)
    return leader is not None and leader.id == name


async def test_state_survives_a_killed_scheduler(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json(slots=2), request_id="first")
    [spec] = await agent.started()
    await ScriptedRunner(spec, scheduler.address).run()
    await bench.caller.submit(config_json(slots=2))
    scheduler.end(signal.SIGKILL)
    # What ends while nobody leads is told with the next hello.
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    await scheduler.start()
    ended = await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    assert ended.outcome is Outcome.COMPLETED
    [second] = await agent.started()
    assert second.allocation.id == "2.1.1"
    assert second.allocation.epoch > spec.allocation.epoch
    again = await bench.caller.submit(config_json(slots=2), request_id="first")
    assert again.experiment.id == 1


async def test_standby_takes_over_with_what_runs(bench: Bench) -> None:
    first = await bench.scheduler("s1")
    await bench.scheduler("s2")
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json())
    [spec] = await agent.started()
    await ScriptedRunner(spec, first.address).run()
    first.end(signal.SIGKILL)
    await until(lambda: len(agent.welcomes) == 2, "a welcome by the standby", 20)
    assert agent.welcomes[1].epoch > agent.welcomes[0].epoch
    assert await _leader_is(bench.etcd, "s2")
    allocation = await bench.allocation(spec.allocation.id)
    assert allocation is not None
    assert allocation.state is State.RUNNING
    assert not agent.stops
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.outcome is Outcome.COMPLETED)


async def test_a_standby_names_the_leader(bench: Bench) -> None:
    first, second = await bench.scheduler("s1"), await bench.scheduler("s2")
    with pytest.raises(GanglineError) as caught:
        await Caller(second).submit(config_json())
    assert (caught.value.code, caught.value.kind) == ("scheduler.not_leader", ErrorKind.CONFLICT)
    assert caught.value.message == f"this scheduler does not lead; the leader is at {first.address}"


async def test_an_agent_that_never_ends_what_it_should_gets_nothing_new(bench: Bench) -> None:
    await bench.scheduler("s1", "--kill-grace-seconds", "0", "--force-seconds", "0.5")
    agent = await bench.agent("a1", slots=1, obeys_stop=False)
    await bench.caller.submit(config_json())
    [spec] = await agent.started()
    await bench.caller.end(1)
    await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.outcome is Outcome.CANCELED)
    await bench.caller.submit(config_json())
    [pending] = await bench.caller.list_pending()
    assert pending.reason.code == types_pb2.REASON_CODE_AGENTS_UNHEALTHY
    assert "still ending 1.1.1" in pending.reason.message
    agent.finish(spec.allocation.id, ExitKind.KILLED)
    [other] = await agent.started()
    assert other.allocation.id == "2.1.1"


async def test_an_agent_that_was_lost_with_its_stream_open_says_hello_again_and_keeps_what_it_runs(
    bench: Bench,
) -> None:
    await bench.scheduler("s1", *LEASES, "--agent-grace-seconds", "0")
    agent = await bench.agent("a1", slots=1)
    await bench.caller.submit(config_json())
    await agent.started()
    agent.is_silent = True
    await until(lambda: len(agent.welcomes) == 2, "a second welcome", 20)
    agent.is_silent = False
    await bench.eventually(lambda: bench.record("a1"), lambda agent_record: agent_record.state is AgentState.ALIVE)
    agent.finish("1.1.1", ExitKind.COMPLETED)
    ended = await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    assert ended.outcome is Outcome.COMPLETED
    assert not agent.stops


async def test_a_start_that_a_dead_leader_had_not_sent_is_sent_by_the_next(bench: Bench) -> None:
    first = await bench.scheduler("s1")
    await bench.scheduler("s2")
    agent = await bench.agent("a1")
    agent.accepts = False
    await bench.caller.submit(config_json())
    await bench.eventually(lambda: bench.allocation("1.1.1"), lambda allocation: allocation.state is State.STARTING)
    agent.accepts = True
    first.end(signal.SIGKILL)
    [spec] = await agent.started()
    assert spec.allocation.id == "1.1.1"


async def test_sigterm_hands_over_at_once(bench: Bench) -> None:
    first = await bench.scheduler("s1", "--leader-lease-seconds", "60")
    await bench.scheduler("s2", "--leader-lease-seconds", "60")
    agent = await bench.agent("a1")
    assert first.end(signal.SIGTERM) == 0
    await until(lambda: len(agent.welcomes) == 2, "a welcome by the standby", 10)


async def test_a_paused_leader_changes_nothing_any_more(bench: Bench) -> None:
    first = await bench.scheduler("s1", "--leader-lease-seconds", "4")
    second = await bench.scheduler("s2", "--leader-lease-seconds", "4")
    agent = await bench.agent("a1", slots=1)
    await bench.caller.submit(config_json())
    await agent.started()
    waiting = await bench.caller.submit(config_json())
    first.signal(signal.SIGSTOP)
    await until_async(lambda: _leader_is(bench.etcd, "s2"), "the standby leading", 20)
    # What it is asked while it still believes to lead must not happen.
    late = asyncio.create_task(_end_at(bench, 0, waiting.experiment.id))
    first.signal(signal.SIGCONT)
    assert "scheduler.not_leader" in await late
    experiment = await bench.experiment(waiting.experiment.id)
    assert experiment is not None
    assert experiment.state is State.QUEUED
    # Only the other one can lead from here on, also where a busy machine has cost it its lease.
    first.end()
    bench.schedulers.remove(first)
    await bench.caller.submit(config_json())
    assert second.process is not None
    assert second.process.poll() is None


async def _end_at(bench: Bench, position: int, experiment_id: int) -> str:
    try:
        await Caller(bench.schedulers[position]).end(experiment_id)
    except Exception as error:  # noqa: BLE001 - whatever it answers is the result
        return str(getattr(error, "code", error))
    return "done"


async def test_a_lost_agent_gives_its_trial_back_and_returns(bench: Bench) -> None:
    scheduler = await bench.scheduler("s1", *LEASES)
    first = await bench.agent("a1", slots=1)
    await bench.caller.submit(config_json())
    [spec] = await first.started()
    runner = ScriptedRunner(spec, scheduler.address)
    await runner.run()
    await runner.report(checkpoint=types_pb2.Checkpoint(id="c1", batches_completed=5, url="/x/checkpoints/c1"))
    await first.disconnect()
    record = await bench.eventually(
        lambda: bench.record("a1"), lambda agent_record: agent_record.state is AgentState.LOST
    )
    assert record.lost_at > 0
    second = await bench.agent("a2", slots=1)
    [again] = await second.started()
    assert (again.allocation.id, again.latest_checkpoint.id) == ("1.1.2", "c1")
    trial = await bench.trial("1.1")
    assert trial is not None
    assert trial.last_failure is not None
    assert (trial.restarts, trial.last_failure.kind) == (0, ExitKind.AGENT_LOST)
    # It comes back with the runner that counts as ended: that is told to end, and its slots serve again.
    await first.connect()
    await until(lambda: spec.allocation.id in first.stops, "the old runner being stopped")
    await until(lambda: not first.journal, "the old allocation being forgotten")
    await bench.eventually(lambda: bench.record("a1"), lambda agent_record: agent_record.state is AgentState.ALIVE)
    await bench.caller.submit(config_json())
    assert [spec.allocation.id for spec in await first.started()] == ["2.1.1"]


async def test_a_gang_that_loses_one_agent_is_stopped_whole(bench: Bench) -> None:
    await bench.scheduler("s1", *LEASES)
    first, second = await bench.agent("a1"), await bench.agent("a2")
    await bench.caller.submit(config_json(slots=4))
    [spec] = await first.started()
    await second.started()
    await second.disconnect()
    await until(lambda: spec.allocation.id in first.stops, "the rest of the gang being stopped", 20)
    trial = await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.QUEUED)
    assert trial.last_failure is not None
    assert trial.last_failure.kind is ExitKind.AGENT_LOST
    # etcd has the new state a moment before the leader works with it.
    pending = await bench.eventually(bench.caller.list_pending, bool)
    assert pending[0].reason.code in (
        types_pb2.REASON_CODE_BACKOFF_AFTER_FAILURE,
        types_pb2.REASON_CODE_AGENTS_UNHEALTHY,
    )
    await second.connect()
    await first.started()


async def test_an_agent_that_never_accepts(bench: Bench) -> None:
    await bench.scheduler("s1", "--accept-seconds", "0.5")
    agent = await bench.agent("a1")
    agent.accepts = False
    await bench.caller.submit(config_json())
    await until(lambda: "1.1.1" in agent.stops, "the start being taken back", 20)


async def test_what_ends_before_it_starts_is_not_waited_for(bench: Bench) -> None:
    """The agent is away when the kill comes; its next hello knows nothing of the allocation."""
    await bench.scheduler()
    agent = await bench.agent("a1")
    agent.accepts = False
    await bench.caller.submit(config_json())
    await bench.eventually(lambda: bench.allocation("1.1.1"), lambda allocation: allocation.state is State.STARTING)
    await agent.disconnect()
    await bench.caller.end(1)
    await agent.connect()
    ended = await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    assert ended.outcome is Outcome.CANCELED


@pytest.mark.parametrize("tells_time", [True, False], ids=["clock known", "earlier version"])
async def test_the_first_failure_is_named_though_its_host_is_an_hour_ahead(bench: Bench, tells_time: bool) -> None:
    """An agent of an earlier version tells no time, so its clock is trusted."""
    await bench.scheduler()
    ahead, right = [await bench.agent(name, obeys_stop=False) for name in ("a1", "a2")]
    await ahead.disconnect()
    ahead.clock_error_seconds, ahead.tells_time = 3600.0, tells_time
    await ahead.connect()
    await bench.caller.submit(config_json(slots=4))
    [spec], _ = await ahead.started(), await right.started()
    ahead.finish(spec.allocation.id, ExitKind.USER_ERROR, "first", rank=0, seconds_ago=5.0)
    right.finish(spec.allocation.id, ExitKind.USER_ERROR, "second", rank=2)
    trial = await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.last_failure is not None)
    assert trial.last_failure is not None
    assert trial.last_failure.message == ("first" if tells_time else "second")
    assert abs(trial.last_failure.failed_at - time.time()) < 60


async def test_a_trial_whose_start_lacked_a_gateway_waits_until_one_registers_and_the_agents_hear_of_it(
    bench: Bench,
) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json(max_restarts=0))
    [spec] = await agent.started()
    assert not spec.gateway_addresses
    agent.finish(spec.allocation.id, ExitKind.NO_GATEWAY, "waits for a gateway, to fetch its code: none is registered")
    trial = await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.QUEUED)
    assert trial.reason == "agent a1: waits for a gateway, to fetch its code: none is registered"
    assert (trial.restarts, trial.infrastructure_failures, trial.failures_in_a_row) == (0, 0, 0)
    assert trial.last_failure is None
    [pending] = await bench.caller.list_pending()
    assert pending.reason.exact_code == types_pb2.REASON_CODE_NO_GATEWAY
    assert pending.reason.message == "waits for a gateway, from which it fetches its code: none is registered"
    assert pending.reason.would_start_if == "a gateway registers"
    async with announce(bench.etcd, ServiceInstance("g1", "gateway", "127.0.0.1:1")):
        [again] = await agent.started()
        assert (again.allocation.id, list(again.gateway_addresses)) == ("1.1.2", ["127.0.0.1:1"])
        assert agent.gateways == ["127.0.0.1:1"]
        later = await bench.agent("a2")
        await until(lambda: later.gateways == ["127.0.0.1:1"], "the gateways at a later agent")
        # The host alone may be cut off from the gateway: another one is tried, and the failure counts.
        agent.finish(again.allocation.id, ExitKind.NO_GATEWAY, "waits for a gateway, to fetch its code: no answer")
        [elsewhere] = await later.started()
        assert elsewhere.allocation.id == "1.1.3"
        retried, record = await bench.trial("1.1"), await bench.record("a1")
        assert retried is not None
        assert record is not None
        assert (retried.infrastructure_failures, retried.failures_in_a_row) == (1, 1)
        [exclusion] = retried.exclusions
        assert (exclusion.agent_id, exclusion.reason) == ("a1", "waits for a gateway, to fetch its code: no answer")
        assert 0 < exclusion.until_at - exclusion.at <= PAIR_SECONDS
        assert record.failed_starts == ()
    moved = ServiceInstance("g2", "gateway", "127.0.0.1:2", started_at=time.time())
    async with announce(bench.etcd, moved):
        await until(lambda: agent.gateways == later.gateways == ["127.0.0.1:2"], "the moved gateway")
        # This gateway was not there when the attempt began, so the host is no suspect.
        later.finish(elsewhere.allocation.id, ExitKind.NO_GATEWAY, "waits for a gateway, to fetch its code: no answer")
        trial = await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.QUEUED)
        assert (trial.infrastructure_failures, [each.agent_id for each in trial.exclusions]) == (1, ["a1"])
