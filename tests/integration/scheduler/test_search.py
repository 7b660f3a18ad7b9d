"""Searches through a real scheduler on a real etcd: trials side by side, over a change of the leader, paused,
ended."""

from __future__ import annotations

import json
import math
import signal
from functools import partial
from typing import Any

import pytest

from gangline.domain.experiment import Trial
from gangline.domain.state import ExitKind, ExperimentAction, Outcome, State
from gangline.errors import GanglineError
from gangline.protocol import wire
from gangline.v1 import runner_pb2, types_pb2
from services.common import keys
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import config_json
from tests.support.scripted_agent import ScriptedAgent, ScriptedRunner, validation_of
from tests.support.wait import until

SECONDS = 60.0
RANDOM = {"name": "random", "metric": "loss", "max_trials": 5, "max_concurrent_trials": 2}
RATE = {"lr": {"type": "log", "minval": -4, "maxval": -1}}
GRID = {"name": "grid", "metric": "loss"}


async def _trials(bench: Bench) -> list[Trial]:
    listing = await bench.etcd.list(keys.TRIALS)
    return sorted((wire.decode(Trial, item.value) for item in listing.items), key=lambda trial: trial.number)


async def _finish_all(agent: ScriptedAgent, bench: Bench, num_trials: int) -> list[int]:
    """Completes one trial after another; how many were live before each end."""
    widths = []
    for ended in range(num_trials):
        specs = await agent.started(min(2, num_trials - ended))
        widths.append(len(specs))
        agent.finish(specs[0].allocation.id, ExitKind.COMPLETED)
    await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    return widths


async def test_grid_runs_two_at_a_time_on_two_slots(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    points = {
        "lr": {"type": "double", "minval": 0, "maxval": 1, "count": 2},
        "kind": {"type": "categorical", "vals": ["a", "b"]},
    }
    await bench.caller.submit(config_json(hyperparameters=points, searcher=GRID))
    assert await _finish_all(agent, bench, 4) == [2, 2, 2, 1]
    trials = await _trials(bench)
    assert [json.loads(trial.hyperparameters_json) for trial in trials] == [
        {"lr": lr, "kind": kind} for lr in (0.0, 1.0) for kind in ("a", "b")
    ]
    experiment = await bench.experiment(1)
    assert experiment is not None
    assert (experiment.outcome, experiment.reason) == (Outcome.COMPLETED, "all 4 trials completed")


async def test_a_new_leader_suggests_the_same_next_points(bench: Bench) -> None:
    first = await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    config = config_json(hyperparameters=RATE, searcher=RANDOM, reproducibility={"experiment_seed": 11})
    foreseen = (await bench.caller.preview(config, 5)).preview
    await bench.caller.submit(config)
    [spec, _] = await agent.started(2)
    first.end(signal.SIGKILL)
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    await first.start()
    await _finish_all(agent, bench, 4)
    made = [json.loads(trial.hyperparameters_json) for trial in await _trials(bench)]
    assert made == [json.loads(document) for document in foreseen.hyperparameters_json]
    assert len(made) == 5


async def test_a_new_leader_has_optuna_suggest_the_same_next_points(bench: Bench) -> None:
    """With results that TPE learns from. The undisturbed search is the second experiment."""
    first = await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    searcher = {
        **RANDOM,
        "name": "tpe",
        "sampler": {"n_startup_trials": 2},
        "max_trials": 6,
        "max_concurrent_trials": 1,
    }
    config = config_json(hyperparameters=RATE, searcher=searcher, reproducibility={"experiment_seed": 11})
    made = []
    for experiment_id in (1, 2):
        await bench.caller.submit(config)
        for number in range(1, 7):
            [spec] = await agent.started()
            trial = await bench.trial(spec.allocation.trial_id)
            assert trial is not None
            rate = json.loads(trial.hyperparameters_json)["lr"]
            metrics = {"loss": abs(math.log10(rate) + 2)}
            runner = ScriptedRunner(spec, first.address)
            await runner.report(metrics=validation_of(number, metrics))
            if experiment_id == 1 and number in (1, 4):
                first.end(signal.SIGKILL)
            agent.finish(spec.allocation.id, ExitKind.COMPLETED)
            if experiment_id == 1 and number in (1, 4):
                await first.start()
        await bench.eventually(
            partial(bench.experiment, experiment_id), lambda experiment: experiment.state is State.TERMINAL
        )
        trials = [trial for trial in await _trials(bench) if trial.experiment_id == experiment_id]
        made.append([json.loads(trial.hyperparameters_json) for trial in trials])
    assert made[0] == made[1]
    assert len({trial["lr"] for trial in made[0]}) == 6


async def test_optuna_refuses_what_it_does_not_have_and_nothing_is_created(bench: Bench) -> None:
    await bench.scheduler()
    searcher = {**RANDOM, "name": "optuna", "sampler": {"name": "tpe", "n_startup": 3}}
    with pytest.raises(GanglineError) as caught:
        await bench.caller.submit(config_json(hyperparameters=RATE, searcher=searcher))
    assert caught.value.message == (
        "searcher.sampler: TPESampler has no argument n_startup; did you mean n_startup_trials?"
    )
    assert await bench.experiment(1) is None


async def test_a_sampler_that_fails_ends_the_experiment_with_a_reason(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    sampler = {"n_startup_trials": 1, "n_ei_candidates": -1}
    searcher = {**RANDOM, "name": "tpe", "sampler": sampler, "max_concurrent_trials": 1}
    agent = await bench.agent("a1", slots=2)
    await bench.caller.submit(config_json(hyperparameters=RATE, searcher=searcher))
    [spec] = await agent.started()
    runner = ScriptedRunner(spec, scheduler.address)
    await runner.report(metrics=validation_of(1, {"loss": 1.0}))
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    ended = await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    assert ended.outcome is Outcome.FAILED
    assert ended.reason == (
        "searcher.sampler: TPESampler cannot suggest trial 2 (ValueError); check its arguments, and see the "
        "scheduler's log"
    )


@pytest.mark.parametrize("searcher", [{"name": "single"}, {"name": "grid"}, {"name": "random", "max_trials": 7}])
async def test_preview_shows_the_trials_that_its_seed_makes(bench: Bench, searcher: dict[str, Any]) -> None:
    """The configuration names no seed, so the preview draws one."""
    await bench.scheduler()
    hyperparameters = {
        "rate": {"type": "log", "minval": -4, "maxval": -1, "count": 2},
        "layers": {"type": "int", "minval": 1, "maxval": 9, "count": 2},
        "kind": {"type": "categorical", "vals": ["a", "b"]},
    }
    fields: dict[str, Any] = {"hyperparameters": hyperparameters, "searcher": {"metric": "loss", **searcher}}
    preview = (await bench.caller.preview(config_json(**fields), 20)).preview
    await bench.caller.submit(config_json(**fields, reproducibility={"experiment_seed": preview.seed}))
    made = [json.loads(trial.hyperparameters_json) for trial in await _trials(bench)]
    assert made == [json.loads(document) for document in preview.hyperparameters_json]
    assert len(made) == preview.num_trials


async def test_max_slots_is_kept_and_named(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1", slots=4)
    resources = {"slots_per_trial": 1, "max_slots": 1}
    await bench.caller.submit(config_json(hyperparameters=RATE, searcher=RANDOM, resources=resources))
    [spec] = await agent.started()
    [waiting] = await bench.caller.list_pending()
    assert waiting.reason.code == types_pb2.REASON_CODE_QUOTA_EXCEEDED
    assert list(waiting.reason.blocking_ids) == [spec.allocation.id]
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    [following] = await agent.started()
    assert following.allocation.trial_id == "1.2"


async def test_a_lower_max_slots_has_the_newest_trials_checkpoint_and_wait(bench: Bench) -> None:
    """Through a change of the leader, and said twice."""
    first = await bench.scheduler()
    agent = await bench.agent("a1", slots=4, obeys_stop=False)
    searcher = {**RANDOM, "max_trials": 4, "max_concurrent_trials": 4}
    await bench.caller.submit(config_json(hyperparameters=RATE, searcher=searcher))
    await agent.started(4)
    await bench.caller.set_resources(1, max_slots=3, when_free=True)
    await bench.caller.set_resources(1, max_slots=2)
    await until(lambda: {"1.3.1", "1.4.1"} <= agent.stops.keys(), "the stop of the newest", SECONDS)
    assert agent.stops["1.4.1"].kind == types_pb2.EXIT_KIND_PREEMPTED
    assert agent.stops["1.4.1"].reason == "max_slots of its experiment is 2 now"
    first.end(signal.SIGKILL)
    await first.start()
    await bench.caller.set_resources(1, max_slots=2)
    agent.finish("1.3.1", ExitKind.PREEMPTED)
    agent.finish("1.4.1", ExitKind.PREEMPTED)
    trial = await bench.eventually(lambda: bench.trial("1.4"), lambda trial: trial.state is State.QUEUED)
    assert trial.restarts == 0
    waiting = await bench.caller.list_pending()
    assert [standing.reason.code for standing in waiting] == [types_pb2.REASON_CODE_QUOTA_EXCEEDED] * 2
    assert agent.stops.keys() == {"1.3.1", "1.4.1"}
    agent.finish("1.1.1", ExitKind.COMPLETED)
    await until(lambda: "1.3.2" in agent.specs, "the older of the two to go on", SECONDS)


async def test_pause_survives_a_restart_and_activate_resumes_from_the_checkpoint(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1", obeys_stop=False)
    await bench.caller.submit(config_json())
    [spec] = await agent.started()
    runner = ScriptedRunner(spec, scheduler.address)
    await runner.run()
    paused = await bench.caller.change(1, ExperimentAction.PAUSE)
    assert (paused.experiment.state, paused.experiment.reason) == (types_pb2.STATE_PAUSED, "paused by ann")
    await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.STOPPING)
    await runner.report(checkpoint=types_pb2.Checkpoint(id="c1", batches_completed=5, url="/x/checkpoints/c1"))
    agent.finish(spec.allocation.id, ExitKind.PREEMPTED)
    await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.QUEUED)
    assert agent.stops[spec.allocation.id].kind == types_pb2.EXIT_KIND_PREEMPTED
    scheduler.end(signal.SIGKILL)
    await scheduler.start()
    [waiting] = await bench.caller.list_pending()
    assert waiting.reason.code == types_pb2.REASON_CODE_PAUSED
    assert waiting.reason.would_start_if.startswith("it is activated (gangline experiment activate 1)")
    # Something else finds the slots free, and the paused one does not take them.
    other = await bench.caller.submit(config_json(slots=2))
    [beside] = await agent.started()
    assert beside.allocation.experiment_id == other.experiment.id
    agent.finish(beside.allocation.id, ExitKind.COMPLETED)
    await bench.caller.change(1, ExperimentAction.ACTIVATE)
    [again] = await agent.started()
    assert (again.allocation.id, again.latest_checkpoint.id, again.trial.restarts) == ("1.1.2", "c1", 0)


async def test_cancel_waits_for_the_checkpoint_and_a_killed_trial_leaves_the_others(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json(hyperparameters=RATE, searcher=RANDOM))
    await agent.started(2)
    await bench.caller.end_trial("1.1")
    killed = await bench.eventually(lambda: bench.trial("1.1"), lambda trial: trial.state is State.TERMINAL)
    assert (killed.outcome, killed.reason) == (Outcome.CANCELED, "killed by ann")
    assert [spec.allocation.trial_id for spec in await agent.started(2)] == ["1.2", "1.3"]
    await bench.caller.change(1, ExperimentAction.CANCEL)
    ended = await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    assert (ended.outcome, ended.reason) == (Outcome.CANCELED, "canceled by ann")
    assert agent.stops["1.1.1"].kind == types_pb2.EXIT_KIND_KILLED
    assert {agent.stops[name].kind for name in ("1.2.1", "1.3.1")} == {types_pb2.EXIT_KIND_PREEMPTED}
    assert len(await _trials(bench)) == 3
    with pytest.raises(GanglineError) as caught:
        await bench.caller.change(1, ExperimentAction.PAUSE)
    assert caught.value.code == "experiment.ended"


async def test_a_large_search_is_made_and_ended_in_several_transactions(bench: Bench) -> None:
    await bench.scheduler()
    await bench.agent("a1")
    searcher = {**RANDOM, "max_trials": 200, "max_concurrent_trials": 0}
    await bench.caller.submit(config_json(hyperparameters=RATE, searcher=searcher))

    async def made() -> list[Trial]:
        return await _trials(bench)

    await bench.eventually(made, lambda trials: len(trials) == 200)
    await bench.caller.end(1)
    ended = await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    assert ended.outcome is Outcome.CANCELED
    assert {trial.outcome for trial in await _trials(bench)} == {Outcome.CANCELED}


async def test_a_search_without_its_metric_fails_at_the_first_validation(bench: Bench) -> None:
    first = await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    await bench.caller.submit(config_json(hyperparameters=RATE, searcher={**RANDOM, "metric": "error"}, max_restarts=3))
    [spec, _] = await agent.started(2)
    runner = ScriptedRunner(spec, first.address)
    await runner.report(running=runner_pb2.RunningReport(timeline=types_pb2.Timeline(ranks_up_at=1.0)))
    await runner.report(metrics=validation_of(10, {"loss": 0.5}))
    ended = await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    assert (ended.outcome, ended.reason) == (
        Outcome.FAILED,
        "the validation of trial 1.1 has no metric 'error', by which searcher.metric compares trials; it reports loss; "
        "set searcher.metric to one of them",
    )
    assert [(trial.outcome, trial.restarts) for trial in await _trials(bench)] == [(Outcome.CANCELED, 0)] * 2
