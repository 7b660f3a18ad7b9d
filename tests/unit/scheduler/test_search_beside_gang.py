"""A search and a gang in virtual time: the gang is not starved, and the search does not stand still behind it."""

from __future__ import annotations

import pytest

from services.scheduler.simulator.engine import EngineContext, play
from services.scheduler.simulator.played import Played, Run
from services.scheduler.simulator.strategy import choose_strategies
from services.scheduler.simulator.submission import TraceSubmission

TRIAL_SECONDS = 125.0
CONTEXT = EngineContext(estimates="none", stop_seconds=1.0, restart_seconds=0.0)


def _submission(name: str, at: float, slots: int, seconds: float, group: str) -> TraceSubmission:
    is_search = group == "search"
    return TraceSubmission(name, at, slots, seconds, seconds, group=group, is_preemptible=is_search)


def _play(strategy: str, training_slots: int, gang_slots: int, sizes: tuple[int, ...]) -> tuple[Played, Run, list[Run]]:
    """A training of an hour, a gang that waits for it, and 100 trials behind the gang."""
    submissions = [
        _submission("training", 0.0, training_slots, 3600.0, "training"),
        _submission("gang", 1.0, gang_slots, 600.0, "gang"),
        *(_submission(f"t{number}", 2.0, 1, TRIAL_SECONDS, "search") for number in range(1, 101)),
    ]
    [chosen] = choose_strategies([strategy])
    played = play(submissions, sizes, chosen, CONTEXT)
    runs = {run.submission.id: run for run in played.runs}
    return played, runs["gang"], [run for name, run in runs.items() if name.startswith("t") and name != "training"]


@pytest.mark.parametrize("strategy", ["priority, preemption", "priority"])
def test_a_waiting_gang_starts_when_the_work_ahead_of_it_ends(strategy: str) -> None:
    """With and without preemption; a hundred trials of one slot always find a slot before four are free at once."""
    _, gang, _ = _play(strategy, 2, 4, (4,))
    assert gang.started_at <= 3600.0 + CONTEXT.stop_seconds


def test_trials_use_the_slots_that_the_gang_cannot_use_yet() -> None:
    played, gang, trials = _play("priority, preemption", 2, 4, (4,))
    before = [trial for trial in trials if trial.ended_at <= gang.started_at]
    assert len(before) == 2 * (3600 // TRIAL_SECONDS), "two slots run trials without a pause for the hour"
    assert {moment.slots_busy for moment in played.moments if 2.0 <= moment.at < 3600.0} == {4}


def test_each_preempted_trial_makes_room_for_the_gang_once() -> None:
    """Trials that are on call when the training ends give way, and then run to their end."""
    _, gang, trials = _play("priority, preemption", 6, 8, (8,))
    assert gang.started_at <= 3600.0 + CONTEXT.stop_seconds
    assert sum(trial.num_preemptions for trial in trials) == 2
    assert len([trial for trial in trials if trial.ended_at > gang.ended_at]) > 2
