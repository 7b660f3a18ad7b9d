"""Checkpoints through a real scheduler: which of them it marks, what it refuses, and what a new leader goes on with."""

from __future__ import annotations

import json
import signal
import time

import pytest

from gangline.domain.experiment import Checkpoint
from gangline.domain.state import CheckpointState, ExitKind, State
from gangline.errors import GanglineError
from gangline.protocol import wire
from gangline.v1 import runner_pb2, types_pb2
from services.common import keys
from services.common.etcd import Put
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import Caller, config_json
from tests.support.scripted_agent import ScriptedAgent, ScriptedRunner
from tests.support.wait import until, until_async


async def _states(bench: Bench) -> dict[str, str]:
    listing = await bench.etcd.list(keys.CHECKPOINTS)
    checkpoints = (wire.decode(Checkpoint, item.value) for item in listing.items)
    return {checkpoint.id: checkpoint.state.value for checkpoint in checkpoints}


async def _eventually(bench: Bench, wanted: dict[str, str]) -> None:
    async def is_so() -> bool:
        return await _states(bench) == wanted

    await until_async(is_so, f"checkpoints as {wanted}")


async def _started(bench: Bench, agent: ScriptedAgent) -> tuple[runner_pb2.RunnerSpec, ScriptedRunner]:
    [spec] = await agent.started()
    runner = ScriptedRunner(spec, bench.schedulers[0].address)
    await runner.run()
    return spec, runner


async def _save(runner: ScriptedRunner, name: str, batches: int, loss: float | None = None, **more: object) -> None:
    metadata = {} if loss is None else {"validation_metrics": {"loss": loss}}
    checkpoint = types_pb2.Checkpoint(
        id=name,
        batches_completed=batches,
        url=f"/x/checkpoints/{name}",
        metadata_json=json.dumps(metadata),
        created_at=batches,
    )
    checkpoint.MergeFrom(types_pb2.Checkpoint(**more))  # type: ignore[arg-type]  # a test names what it gives
    await runner.report(checkpoint=checkpoint)


async def test_best_and_latest_stay_while_it_trains_and_when_it_has_ended(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1")
    keeps_best = {"save_trial_latest": 0, "save_trial_best": 1}
    await bench.caller.submit(config_json(checkpoint_storage=keeps_best))
    spec, runner = await _started(bench, agent)
    for batches, loss in [(1, 0.5), (2, 0.2), (3, 0.4), (4, 0.3)]:
        await _save(runner, f"c{batches}", batches, loss)
    # The policy keeps no latest one, but the trial goes on from it.
    gone = {"c1": "DELETING", "c3": "DELETING"}
    await _eventually(bench, {**gone, "c2": "COMPLETED", "c4": "COMPLETED"})
    answer = await bench.caller.confirm_checkpoints_deleted(["c1", "c2"])
    assert answer.revision > 0
    await _eventually(bench, {"c2": "COMPLETED", "c3": "DELETING", "c4": "COMPLETED"})
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    await _eventually(bench, {"c2": "COMPLETED", "c3": "DELETING", "c4": "DELETING"})


async def test_script_deletes_what_its_trial_does_not_need(bench: Bench) -> None:
    """A checkpoint that it may not delete stays, and the scheduler accepts its next report."""
    await bench.scheduler()
    agent = await bench.agent("a1")
    for _ in range(2):
        await bench.caller.submit(config_json(checkpoint_storage={"save_trial_latest": 9}))
    specs = await agent.started(2)
    first, second = [ScriptedRunner(spec, bench.schedulers[0].address) for spec in specs]
    await _save(first, "c1", 1)
    await _save(first, "c2", 2, delete_request_id="x")
    for runner, name in [(first, "c2"), (first, "nope"), (second, "c1")]:
        await _save(runner, name, 0, state=types_pb2.CHECKPOINT_STATE_DELETING)
    assert await _states(bench) == {"c1": "COMPLETED", "c2": "COMPLETED"}
    await _save(first, "c1", 0, state=types_pb2.CHECKPOINT_STATE_DELETING)
    assert await _states(bench) == {"c1": "DELETING", "c2": "COMPLETED"}


async def test_refused_report_does_not_keep_its_agent_away(bench: Bench) -> None:
    """A script names nonsense, and its runner ends before it could say so itself: its agent tells it until it is
    taken."""
    await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json())
    [spec] = await agent.started()
    nonsense = types_pb2.Checkpoint(id="../c1", state=types_pb2.CHECKPOINT_STATE_DELETING)
    saved = types_pb2.Checkpoint(id="c1", batches_completed=1, url="/x/checkpoints/c1", created_at=1)
    agent.journal[spec.allocation.id].undelivered.extend(
        runner_pb2.TrialReport(sequence=number, checkpoint=checkpoint)
        for number, checkpoint in enumerate((saved, nonsense), start=1)
    )
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    assert await _states(bench) == {"c1": "COMPLETED"}
    await until(lambda: not agent.journal, "the agent being told to forget")
    await bench.caller.submit(config_json())
    assert [spec.allocation.id for spec in await agent.started()] == ["2.1.1"]


async def test_a_checkpoint_is_as_old_as_the_leaders_clock_says(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1")
    await agent.disconnect()
    agent.clock_error_seconds = 3600.0
    await agent.connect()
    await bench.caller.submit(config_json())
    _, runner = await _started(bench, agent)
    await _save(runner, "c1", 1, created_at=time.time() + 3600.0)
    item = await bench.etcd.get(keys.checkpoint("c1"))
    assert item is not None
    assert abs(wire.decode(Checkpoint, item.value).created_at - time.time()) < 60


async def test_user_deletes_all_that_are_named_or_none(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json(checkpoint_storage={"save_trial_latest": 9}))
    spec, runner = await _started(bench, agent)
    for batches in (1, 2):
        await _save(runner, f"c{batches}", batches)
    with pytest.raises(GanglineError, match=r"trial 1\.1 \(RUNNING\) goes on from checkpoint c2, so nothing was"):
        await bench.caller.delete_checkpoints(["c1", "c2"])
    assert await _states(bench) == {"c1": "COMPLETED", "c2": "COMPLETED"}
    for _ in range(2):
        answer = await bench.caller.delete_checkpoints(["c1"])
        assert [(checkpoint.id, checkpoint.state) for checkpoint in answer.checkpoints] == [
            ("c1", types_pb2.CHECKPOINT_STATE_DELETING)
        ]
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    await bench.caller.delete_checkpoints(["c2"], request_id="another")
    assert await _states(bench) == {"c1": "DELETING", "c2": "DELETING"}


async def test_an_allocation_cannot_delete(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json())
    spec, runner = await _started(bench, agent)
    await _save(runner, "c1", 1)
    with pytest.raises(GanglineError) as caught:
        await Caller(scheduler, token=spec.token).confirm_checkpoints_deleted(["c1"])
    assert caught.value.code == "security.forbidden"


async def test_a_new_leader_marks_what_is_left_and_remembers_what_is_marked(bench: Bench) -> None:
    """As after an upgrade from a version that kept everything, with more than one transaction takes."""
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json())
    spec, runner = await _started(bench, agent)
    await _save(runner, "c900", 900, 0.5)
    scheduler.end()
    old = [Checkpoint(f"c{number:03d}", "1.1", 1, number, "/x", created_at=1.0) for number in range(100)]
    marked = Checkpoint("c500", "1.1", 1, 500, "/x", state=CheckpointState.DELETING)
    await bench.etcd.commit(
        [Put(keys.checkpoint(checkpoint.id), wire.encode(checkpoint)) for checkpoint in (*old, marked)]
    )
    await scheduler.start()
    await _eventually(bench, {**{checkpoint.id: "DELETING" for checkpoint in (*old, marked)}, "c900": "COMPLETED"})
    # What goes on from it starts from it, on every member.
    agent.finish(spec.allocation.id, ExitKind.PREEMPTED)
    await bench.eventually(lambda: bench.allocation("1.1.2"), lambda allocation: allocation.checkpoint_id == "c900")
    [spec] = await agent.started()
    assert (spec.allocation.attempt, spec.latest_checkpoint.id) == (2, "c900")


SEARCH = {"name": "random", "metric": "loss", "max_trials": 2, "max_concurrent_trials": 1}


@pytest.mark.parametrize("source", [{"source_trial_id": "1.1"}, {"source_checkpoint_uuid": "c1"}])
async def test_trials_begin_from_the_checkpoint_of_another_trial_which_stays(
    bench: Bench, source: dict[str, str]
) -> None:
    """Over a change of the leader, and although the source's policy keeps only the newest."""
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    await bench.caller.submit(config_json())
    first, runner = await _started(bench, agent)
    await _save(runner, "c1", 7)
    await bench.caller.submit(config_json(searcher={**SEARCH, **source}))
    for number in (1, 2):
        await until(lambda: f"2.{number}.1" in agent.specs, "the trial", 30.0)  # noqa: B023 - awaited at once
        spec = agent.specs[f"2.{number}.1"]
        assert (spec.latest_checkpoint.id, spec.latest_checkpoint.trial_id) == ("c1", "1.1")
        await _save(runner, f"c{number + 1}", 7 + number)
        with pytest.raises(GanglineError) as refused:
            await bench.caller.delete_checkpoints(["c1"], f"r{number}")
        assert refused.value.code == "checkpoint.needed"
        own = ScriptedRunner(spec, scheduler.address)
        await own.run()
        await _save(own, f"d{number}", 3)
        scheduler.end(signal.SIGKILL)
        await scheduler.start()
        runner.address = scheduler.address
        trial = await bench.trial(f"2.{number}")
        assert trial is not None
        assert trial.latest_checkpoint_id == f"d{number}"
        agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    await bench.eventually(lambda: bench.experiment(2), lambda experiment: experiment.state is State.TERMINAL)
    await _save(runner, "c9", 10)
    agent.finish(first.allocation.id, ExitKind.COMPLETED)
    gone = {"c1": "DELETING", "c2": "DELETING", "c3": "DELETING"}
    await _eventually(bench, {**gone, "c9": "COMPLETED", "d1": "COMPLETED", "d2": "COMPLETED"})


async def test_a_source_that_is_not_there_is_refused_and_nothing_is_created(bench: Bench) -> None:
    await bench.scheduler()
    await bench.caller.submit(config_json())
    for source, words in [
        ({"source_trial_id": "9.1"}, "searcher.source_trial_id: there is no trial 9.1"),
        ({"source_trial_id": "1.1"}, "searcher.source_trial_id: trial 1.1 has no checkpoint"),
        ({"source_checkpoint_uuid": "c1"}, "searcher.source_checkpoint_uuid: there is no checkpoint c1"),
    ]:
        with pytest.raises(GanglineError) as refused:
            await bench.caller.submit(config_json(searcher={**SEARCH, **source}))
        assert refused.value.message == f"{words}; list them with: gangline checkpoint list"
    assert await bench.experiment(2) is None
