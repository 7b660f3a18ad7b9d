"""Successive halving through a real scheduler on a real etcd: killed, paused and restarted in the middle."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

import pytest

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.search import Search, SearchEvent, SearchLog
from gangline.domain.state import ExitKind, ExperimentAction, Outcome, SearchEventKind, State
from gangline.errors import GanglineError
from gangline.protocol import wire
from gangline.v1 import runner_pb2, types_pb2
from services.common import keys
from services.common.etcd import Put
from services.scheduler.searcher.replay import PAGE_EVENTS, make_searcher, replay
from services.scheduler.state.codec import operations_of
from services.scheduler.state.records import Record, StateChange, get
from services.scheduler.state.settled import settled_of
from services.scheduler.state.state_store import load
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import config_json
from tests.support.scripted_agent import ScriptedAgent, ScriptedRunner, validation_of
from tests.support.wait import until_async
from tests.support.work import calls_of

SECONDS = 60.0
NUM_TRIALS = 8
# Calls that a trial costs a new leader that rebuilds the searcher.
CALLS = 100
SEARCHER = {
    "name": "adaptive_asha",
    "metric": "loss",
    "mode": "aggressive",
    "max_trials": NUM_TRIALS,
    "max_concurrent_trials": 2,
    "divisor": 2,
    "max_rungs": 3,
    "max_length": {"batches": 16},
}
LENGTHS = (4, 8, 16)
# The loss of each trial, the same after any number of batches.
LOSSES = (0.5, 0.7, 0.3, 0.6, 0.4, 0.2, 0.9, 0.1)
RATE = {"lr": {"type": "log", "minval": -4, "maxval": -1}}


@dataclass
class Story:
    """What a search did, without the numbers of its experiment and attempts."""

    trials: list[tuple[Any, ...]]
    told: list[tuple[int, int, float | None]]


@dataclass
class Disturbance:
    """Disturbances of a search, by the number of validations after which they happen."""

    kills: set[int] = field(default_factory=set)  # kills of the leader
    pauses: set[int] = field(default_factory=set)  # pauses of the experiment


async def _play(bench: Bench, agent: ScriptedAgent, experiment_id: int, disturbance: Disturbance) -> Story:
    """Plays a whole search: always the trial with the smallest number reports its next rung."""
    fields: dict[str, Any] = {"hyperparameters": RATE, "reproducibility": {"experiment_seed": 11}}
    await bench.caller.submit(config_json(searcher=SEARCHER, **fields))
    num_validations = 0
    while True:
        trial: Trial | bool = await until_async(
            lambda: _first_running(bench, agent, experiment_id), "a trial that runs", SECONDS
        )
        if not isinstance(trial, Trial):
            return await _story(bench, experiment_id)
        spec = agent.specs[f"{trial.id}.{trial.attempts}"]
        length = next(length for length in LENGTHS if length > (trial.validated_batches or 0))
        num_validations += 1
        validation = validation_of(length, {"loss": LOSSES[trial.number - 1]})
        report = runner_pb2.TrialReport(sequence=num_validations, metrics=validation)
        await ScriptedRunner(spec, bench.schedulers[0].address).send(report)
        if num_validations in disturbance.kills:
            bench.schedulers[0].end(signal.SIGKILL)
            await bench.schedulers[0].start()
            # The runner has not heard of the commit, and repeats its report to the next leader.
            await ScriptedRunner(spec, bench.schedulers[0].address).send(report)
        if num_validations in disturbance.pauses:
            await _pause_and_activate(bench, experiment_id)


async def _pause_and_activate(bench: Bench, experiment_id: int) -> None:
    try:
        await bench.caller.change(experiment_id, ExperimentAction.PAUSE)
    except GanglineError as error:
        # The last validation has ended the search.
        assert error.code == "experiment.ended"  # noqa: PT017 - any other error fails the test
        return

    async def is_still() -> bool | None:
        trials = await _trials(bench, experiment_id)
        return all(trial.state in (State.QUEUED, State.TERMINAL) for trial in trials) or None

    await until_async(is_still, "all trials to give their slots back", SECONDS)
    experiment = await bench.experiment(experiment_id)
    if experiment is not None and experiment.state is not State.TERMINAL:
        await bench.caller.change(experiment_id, ExperimentAction.ACTIVATE)


async def _first_running(bench: Bench, agent: ScriptedAgent, experiment_id: int) -> Trial | bool | None:
    """Returns the first trial that trains, once no other one is about to end or to start. True when all have ended."""
    experiment = await bench.experiment(experiment_id)
    if experiment is not None and experiment.state is State.TERMINAL:
        return True
    trials = await _trials(bench, experiment_id)
    going_on = [trial for trial in trials if trial.state is not State.TERMINAL]
    num_wanted = min(2, NUM_TRIALS - (len(trials) - len(going_on)))
    is_settled = len(going_on) == num_wanted and all(
        trial.state is State.STARTING and f"{trial.id}.{trial.attempts}" in agent.specs for trial in going_on
    )
    return going_on[0] if going_on and is_settled else None


async def _trials(bench: Bench, experiment_id: int) -> list[Trial]:
    listing = await bench.etcd.list(f"{keys.TRIALS}{experiment_id}.")
    return sorted((wire.decode(Trial, item.value) for item in listing.items), key=lambda trial: trial.number)


async def _story(bench: Bench, experiment_id: int) -> Story:
    trials = await _trials(bench, experiment_id)
    listing = await bench.etcd.list(f"{keys.SEARCH_LOGS}{experiment_id}/")
    pages = [wire.decode(SearchLog, item.value) for item in listing.items]
    return Story(
        [
            (
                *(trial.number, trial.hyperparameters_json, trial.seed, trial.outcome, trial.reason),
                *(trial.restarts, trial.validated_batches, trial.best_validation),
            )
            for trial in trials
        ],
        [
            (event.trial_number, event.batches_completed, event.metric)
            for page in pages
            for event in page.events
            if event.kind is SearchEventKind.VALIDATED
        ],
    )


async def test_a_search_is_the_same_when_its_leader_is_killed_and_its_experiment_paused(bench: Bench) -> None:
    await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    steady = await _play(bench, agent, 1, Disturbance())
    # By hand. At rung 4 the ranks are 1/1, 2/2, 1/3, 3/4, 2/5, 1/6, 7/7 and 1/8, of which the best half passes. At rung
    # 8 trials 1, 3, 6 and 8 are the best so far; trial 5 is the second of three.
    assert [trial[6] for trial in steady.trials] == [16, 4, 16, 4, 8, 16, 4, 16]
    assert {trial[3] for trial in steady.trials} == {Outcome.COMPLETED}
    killed = await _play(bench, agent, 2, Disturbance(kills={1, 5, 9}))
    assert killed == steady
    # After each of the first validations, so in every rung.
    paused = await _play(bench, agent, 3, Disturbance(pauses=set(range(1, 30))))
    assert paused == steady


async def test_a_validation_of_either_form_brings_the_length_that_its_rank_reports(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1")
    searcher = {**SEARCHER, "max_length": {"records": 16}, "max_concurrent_trials": 1}
    await bench.caller.submit(config_json(hyperparameters=RATE, searcher=searcher))
    [spec] = await agent.started()
    runner = ScriptedRunner(spec, scheduler.address)
    await runner.report(metrics=validation_of(100, {"loss": 0.5}), units=4.0)
    earlier = runner_pb2.ValidationReport(batches_completed=200, metrics={"loss": 0.25}, units=8.0)
    await runner.report(validation=earlier)
    listing = await bench.etcd.list(keys.SEARCH_LOGS)
    events = [event for item in listing.items for event in wire.decode(SearchLog, item.value).events]
    validations = [event for event in events if event.kind is SearchEventKind.VALIDATED]
    assert [(event.batches_completed, event.metric, event.units) for event in validations] == [
        (100, 0.5, 4.0),
        (200, 0.25, 8.0),
    ]


async def test_a_stopped_trial_says_why_and_keeps_its_checkpoint(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1", obeys_stop=False)
    await bench.caller.submit(config_json(hyperparameters=RATE, searcher=SEARCHER))
    for number, loss in ((1, 0.2), (2, 0.5)):
        [*_, spec] = await agent.started(2)
        spec = agent.specs[f"1.{number}.1"]
        runner = ScriptedRunner(spec, scheduler.address)
        await runner.run()
        await runner.report(metrics=validation_of(4, {"loss": loss}))
    stopping = await bench.eventually(lambda: bench.trial("1.2"), lambda trial: trial.state is State.STOPPING)
    assert stopping.closing is Outcome.COMPLETED
    await runner.report(checkpoint=types_pb2.Checkpoint(id="c1", batches_completed=6, url="/x/checkpoints/c1"))
    agent.finish("1.2.1", ExitKind.PREEMPTED)
    ended = await bench.eventually(lambda: bench.trial("1.2"), lambda trial: trial.state is State.TERMINAL)
    assert (ended.outcome, ended.latest_checkpoint_id, ended.restarts) == (Outcome.COMPLETED, "c1", 0)
    assert ended.reason == (
        "its searcher stopped it at rung 1 of 3 (4 batches): its loss 0.5 has rank 2 of 2 there, and only the best "
        "trains on"
    )


async def test_a_search_of_ten_thousand_trials_continues_at_a_new_leader(bench: Bench) -> None:
    num_ended = 9_999
    searcher = {**SEARCHER, "max_trials": 10_000, "max_concurrent_trials": 1, "mode": "aggressive"}
    config = config_json(hyperparameters=RATE, searcher=searcher)
    await _write(bench, _records(config, num_ended))
    state = await load(bench.etcd)
    # Linear in the trials: `python -m benchmarks.search` measures the seconds.
    assert calls_of(lambda: replay(state, get(state, Search, 1), settled_of(config))) < CALLS * num_ended
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1")
    [spec] = await agent.started()
    assert spec.trial.number == num_ended + 1
    runner = ScriptedRunner(spec, scheduler.address)
    for batches in (1, 2, 3):
        await runner.report(metrics=validation_of(batches, {"loss": 0.5}))
    await runner.report(metrics=validation_of(4, {"loss": 2.0}))
    ended = await bench.eventually(lambda: bench.experiment(1), lambda experiment: experiment.state is State.TERMINAL)
    assert ended.outcome is Outcome.COMPLETED
    [last] = [trial for trial in await _trials(bench, 1) if trial.number == num_ended + 1]
    assert "has rank 10000 of 10000 there, and the best 5000 train on" in last.reason


def _records(config: str, num_ended: int) -> list[Record]:
    """A search of which all trials but the last one were stopped at their first rung, better ones first."""
    events = [SearchEvent(SearchEventKind.EXPERIMENT_CREATED)]
    searcher = make_searcher(settled_of(config), 7)
    searcher.on_event(events[0])
    for number in range(1, num_ended + 1):
        validation = SearchEvent(SearchEventKind.VALIDATED, number, 4, number / 10_000, units=4.0)
        events += [validation, SearchEvent(SearchEventKind.TRIAL_CLOSED, number, 4, None, Outcome.COMPLETED)]
    pages = [
        SearchLog(1, page, tuple(events[page * PAGE_EVENTS : (page + 1) * PAGE_EVENTS]))
        for page in range(-(-len(events) // PAGE_EVENTS))
    ]
    trials = [
        Trial(
            id=f"1.{number}",
            experiment_id=1,
            number=number,
            hyperparameters_json='{"lr": 0.01}',
            state=State.TERMINAL,
            outcome=Outcome.COMPLETED,
            reason="its searcher stopped it",
            validated_batches=4,
            best_validation=number / 10_000,
        )
        for number in range(1, num_ended + 1)
    ]
    search = Search(1, 7, num_events=len(events), num_wanted=num_ended + 1, num_planned=num_ended + 1)
    return [Experiment(1, "test", "ann", config, "0" * 64, State.RUNNING), search, *pages, *trials]


async def _write(bench: Bench, records: list[Record]) -> None:
    puts = [put for put in operations_of(StateChange(puts=tuple(records))) if isinstance(put, Put)]
    for start in range(0, len(puts), 100):
        await bench.etcd.commit(puts[start : start + 100])


@pytest.mark.parametrize("name", ["async_halving", "adaptive_asha"])
async def test_the_preview_of_a_search_is_that_of_its_records(bench: Bench, name: str) -> None:
    await bench.scheduler()
    searcher = {"name": name, "metric": "loss", "max_trials": 8, "max_length": {"batches": 64}}
    if name == "async_halving":
        searcher["num_rungs"] = 2
    config = config_json(hyperparameters=RATE, searcher=searcher)
    preview = (await bench.caller.preview(config, 0)).preview
    assert sum(bracket.num_trials for bracket in preview.brackets) == preview.num_trials == 8
    assert [rung.length for rung in preview.brackets[0].rungs] == [16, 64]
    assert preview.min_total < preview.expected_total < preview.max_total == 8 * 64
