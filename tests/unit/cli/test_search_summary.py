"""The live view of a search: what is left, what is counted, and that 40 trials fit a small terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from gangline.cli.output.live import _panel
from gangline.cli.output.search_summary import (
    best_line,
    counts,
    ended_line,
    search_ratio,
    seconds_left,
)
from gangline.cli.output.summary import shown_indexes
from gangline.domain.state import State
from gangline.domain.view import ExperimentView, TrialView
from gangline.protocol.wire import from_proto
from tests.support.view import make_search

NOW = 2000.0
SEARCH = from_proto(ExperimentView, make_search(40, NOW))


def changed(view: ExperimentView, **fields: object) -> ExperimentView:
    """The search, with these fields in the records of all of its trials."""
    trials = [replace(trial, trial=replace(trial.trial, **fields)) for trial in view.trials]  # type: ignore[arg-type]  # names are checked by the record
    return replace(view, trials=tuple(trials))


def test_time_left_counts_running_waiting_and_unmade_trials() -> None:
    # 4 run with 200 s left each, 23 wait and are as long as the others, 300 s; 4 run at a time.
    assert seconds_left(SEARCH) == (4 * 200 + 23 * 300) / 4
    assert SEARCH.search is not None
    more = replace(SEARCH, search=replace(SEARCH.search, num_planned=60))
    assert seconds_left(more) == (4 * 200 + 43 * 300) / 4


def test_a_search_does_not_end_before_its_longest_running_trial() -> None:
    running = [trial for trial in SEARCH.trials if trial.trial.state is State.RUNNING]
    slow = replace(running[0], trial=replace(running[0].trial, seconds_per_batch=50.0))
    assert seconds_left(replace(SEARCH, trials=(slow, *running[1:]), search=None)) == 200 * 50.0


@pytest.mark.parametrize(
    "view",
    [
        changed(SEARCH, seconds_per_batch=0.0),
        changed(SEARCH, state=State.QUEUED, outcome=None),
        replace(SEARCH, trials=()),
        replace(SEARCH, experiment=replace(SEARCH.experiment, state=State.STOPPING)),
    ],
    ids=["no pace", "none runs", "none made", "stopping"],
)
def test_nothing_is_said_before_there_is_data(view: ExperimentView) -> None:
    assert seconds_left(view) is None
    assert "left" not in ended_line(view)


def test_a_pace_of_ended_trials_is_used_for_one_that_has_just_started() -> None:
    def started(trial: TrialView) -> TrialView:
        if trial.trial.state is not State.RUNNING:
            return trial
        return replace(trial, progress=None, trial=replace(trial.trial, seconds_per_batch=0.0))

    view = replace(SEARCH, trials=tuple(map(started, SEARCH.trials)))
    assert seconds_left(view) == 27 * 300 / 4


def test_a_failed_trial_says_nothing_about_the_length_of_others() -> None:
    failed = [trial for trial in SEARCH.trials if trial.trial.outcome == "FAILED"]
    waiting = [trial for trial in SEARCH.trials if trial.trial.state is State.QUEUED]
    just_started = replace(waiting[0], reason=None, trial=replace(waiting[0].trial, state=State.RUNNING))
    assert seconds_left(replace(SEARCH, trials=(*failed, just_started))) is None


def test_the_bar_counts_the_parts_of_running_trials() -> None:
    assert search_ratio(SEARCH) == pytest.approx((13 + 4 / 3) / 40)
    assert search_ratio(replace(SEARCH, trials=(), search=None)) == 0.0


def test_counts_and_best_trial() -> None:
    assert counts(SEARCH) == [(12, "COMPLETED"), (1, "FAILED"), (4, "RUNNING"), (23, "QUEUED")]
    waiting, paused = SEARCH.trials[-1], replace(SEARCH.trials[-1].trial, state=State.PAUSED)
    held = replace(SEARCH, trials=(*SEARCH.trials[:-1], replace(waiting, trial=paused)))
    assert counts(held)[-2:] == [(22, "QUEUED"), (1, "PAUSED")]
    assert ended_line(SEARCH) == "13 of 40 trials ended, about 32 min left"
    assert best_line(SEARCH).startswith("best accuracy 0.62: trial 1.12, learning_rate 0.012, net.depth 12")
    assert best_line(changed(SEARCH, best_validation=None)) == ""


def test_running_trials_and_the_best_one_are_shown_first() -> None:
    shown = [SEARCH.trials[index].trial.number for index in shown_indexes(SEARCH, 7)]
    assert shown == [12, 14, 15, 16, 17, 18, 19]
    assert shown_indexes(SEARCH, -3) == []


def test_trials_that_still_stop_are_shown_before_paused_ones() -> None:
    running = [trial.trial.number for trial in SEARCH.trials if trial.trial.state is State.RUNNING]
    states = {number: State.STOPPING if number == running[-1] else State.PAUSED for number in running}
    trials = [
        replace(trial, trial=replace(trial.trial, state=states.get(trial.trial.number, trial.trial.state)))
        for trial in SEARCH.trials
    ]
    shown = [SEARCH.trials[index].trial.number for index in shown_indexes(replace(SEARCH, trials=tuple(trials)), 2)]
    assert shown == [12, running[-1]]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 24), (80, 12), (200, 60)])
@pytest.mark.parametrize("name", ["digits", "a-very-long-name-" * 10, "実験の名前" * 20])
def test_forty_trials_fit_the_terminal(width: int, height: int, name: str) -> None:
    view = replace(SEARCH, experiment=replace(SEARCH.experiment, name=name))
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(_panel(view, NOW, width, height))
    lines = console.export_text().splitlines()
    assert len(lines) < height
    assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    for word in ("experiment 1", "13 of 40 trials ended", "12 COMPLETED, 1 FAILED, 4 RUNNING", "best accuracy"):
        assert word in text
    assert "RUNNING" in lines[0]
    assert "━" in text
    assert "about 32 min left" in text or width < 80
