"""The summary of an experiment while it waits, while it trains and after it has ended."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from gangline.cli.output.live import _follow_lines, _panel
from gangline.cli.output.summary import (
    MOST_SHOWN,
    failure_lines,
    final_lines,
    missing_history,
    status_line,
    training_figures,
    trial_lines,
)
from gangline.cli.output.text import (
    format_age,
    format_bytes,
    format_duration,
    format_metrics,
    format_until,
    to_json,
)
from gangline.client import ExperimentView
from gangline.domain.allocation import ExitReport, Reason, Wait, waiting_reason
from gangline.domain.state import ExitKind, Outcome, ReasonCode, State
from gangline.domain.view import count_at_risk
from gangline.protocol.wire import from_proto
from tests.support.view import make_lifecycle

WAITING, RUNNING, COMPLETED = (from_proto(ExperimentView, message) for message in make_lifecycle())


def failed() -> ExperimentView:
    report = ExitReport(
        "a2", ExitKind.USER_ERROR, "ValueError: bad batch", rank=3, last_lines=("Traceback", "ValueError")
    )
    trial = replace(COMPLETED.trials[0], validation=None)
    trial = replace(trial, trial=replace(trial.trial, outcome=Outcome.FAILED, last_failure=report))
    experiment = replace(COMPLETED.experiment, outcome=Outcome.FAILED, reason="trial 1.1 failed")
    return ExperimentView(experiment, (trial,))


def test_waiting_says_why_and_what_would_start_it() -> None:
    assert status_line(WAITING) == (
        "experiment 1 digits: QUEUED, needs 4 slots; 2 are free; starts if 2 more slots became free"
    )


def test_waiting_after_a_failure_says_what_failed() -> None:
    trial = WAITING.trials[0]
    waiting = replace(
        trial,
        trial=replace(trial.trial, restarts=1, last_failure=failed().trials[0].trial.last_failure),
        reason=Reason(ReasonCode.BACKOFF_AFTER_FAILURE, "waits 1.0 s more after a failure", "that time is over"),
    )
    assert status_line(replace(WAITING, trials=(waiting,))) == (
        "experiment 1 digits: QUEUED, restart 1, waits 1.0 s more after a failure; starts if that time is over; "
        "failed first: rank 3 on a2: ValueError: bad batch"
    )


def test_a_trial_that_runs_again_names_the_failure_before() -> None:
    """Placing the next attempt clears the trial's reason, so only the failure is left to read."""
    trial = RUNNING.trials[0]
    again = replace(
        trial, trial=replace(trial.trial, restarts=1, reason="", last_failure=failed().trials[0].trial.last_failure)
    )
    assert "  restart 1: rank 3 on a2: ValueError: bad batch" in trial_lines(again)
    assert not any("restart" in line for line in trial_lines(trial))
    lost = replace(again, trial=replace(again.trial, restarts=0))
    assert "  last failure, no restart used up: rank 3 on a2: ValueError: bad batch" in trial_lines(lost)


def failed_again(restarts: int = 0) -> ExperimentView:
    """Runs its second attempt, after a failure of the first one."""
    trial = RUNNING.trials[0]
    again = replace(trial.trial, restarts=restarts, last_failure=failed().trials[0].trial.last_failure)
    return replace(RUNNING, trials=(replace(trial, trial=again),))


def test_a_view_of_the_experiment_names_the_failure_of_a_trial_that_runs_again() -> None:
    assert failure_lines(failed_again()) == ["  last failure, no restart used up: rank 3 on a2: ValueError: bad batch"]
    assert failure_lines(failed_again(1)) == ["  restart 1: rank 3 on a2: ValueError: bad batch"]
    assert failure_lines(failed()) == failure_lines(RUNNING) == []
    trial = failed_again().trials[0]
    backoff = replace(trial, reason=Reason(ReasonCode.BACKOFF_AFTER_FAILURE, "waits", "that time is over"))
    assert failure_lines(replace(RUNNING, trials=(backoff,))) == [], "the line about the back-off names it"
    many = [replace(trial, trial=replace(trial.trial, id=f"1.{number}")) for number in range(1, MOST_SHOWN + 3)]
    lines = failure_lines(replace(RUNNING, trials=tuple(many)))
    assert lines[0] == "  trial 1.1: last failure, no restart used up: rank 3 on a2: ValueError: bad batch"
    assert lines[MOST_SHOWN:] == ["  and 2 more failed before"]


def test_plain_lines_name_each_failure_once_when_the_trial_goes_on() -> None:
    lines: list[str] = []
    views = [RUNNING, failed_again(1), failed_again(1), failed()]
    _follow_lines(views, lines.append, lambda: 0.0)
    assert [line for line in lines if line.startswith("trial")] == [
        "trial 1.1 starts again; restart 1: rank 3 on a2: ValueError: bad batch"
    ]
    lines.clear()
    _follow_lines([failed_again(), failed_again()], lines.append, lambda: 0.0)
    assert not any("starts again" in line for line in lines), "it failed before this view"
    trial = failed_again(1).trials[0]
    paused = replace(trial, trial=replace(trial.trial, state=State.PAUSED))
    _follow_lines([RUNNING, replace(RUNNING, trials=(paused,))], lines.append, lambda: 0.0)
    assert not any("starts again" in line for line in lines), "its experiment is paused"


def test_an_attempt_that_starts_shows_no_figures_of_the_attempt_before() -> None:
    trial = RUNNING.trials[0]
    assert training_figures(trial)
    assert training_figures(replace(trial, trial=replace(trial.trial, state=State.STARTING))) == ""


def test_a_checkpoint_says_what_it_holds_and_what_a_failure_would_cost() -> None:
    trial = RUNNING.trials[0]
    running = replace(trial, batches_at_risk=846)
    assert "  no checkpoint yet: a failure now would cost 846 batches" in trial_lines(running)
    saved = replace(trial, trial=replace(trial.trial, latest_checkpoint_id="c0ffee", batches_completed=846))
    counted = replace(saved, checkpoint_batches=611, batches_at_risk=235)
    assert "  checkpoint: c0ffee (after 611 batches; a failure now would cost the 235 batches since)" in trial_lines(
        counted
    )
    assert "  checkpoint: c0ffee (after 611 batches)" in trial_lines(replace(counted, batches_at_risk=0))
    assert "  checkpoint: c0ffee" in trial_lines(saved), "of an earlier gateway"


def test_only_a_trial_that_trains_has_something_to_lose() -> None:
    trial = RUNNING.trials[0]
    assert trial.allocation is not None
    assert trial.progress is not None
    progress = replace(trial.progress, batches_completed=846)
    stepped = replace(trial.allocation, timeline=replace(trial.allocation.timeline, first_step_at=1.0))
    assert count_at_risk(trial.trial, stepped, progress, 611) == 235
    assert count_at_risk(trial.trial, stepped, progress, None) == 846
    # The newest progress of an attempt that has not stepped is that of the attempt before.
    unstepped = replace(stepped, timeline=replace(stepped.timeline, first_step_at=0.0))
    assert count_at_risk(trial.trial, unstepped, progress, 611) == 0
    assert count_at_risk(trial.trial, None, progress, 611) == 0


def test_a_trial_that_waits_for_its_storage_says_so() -> None:
    trial = RUNNING.trials[0]
    assert trial.allocation is not None
    wait = Wait(1, "the storage /s takes nothing now", 5.0)
    reason = waiting_reason(replace(trial.allocation, waits=(wait, Wait(0, "later", 9.0))))
    waiting = replace(RUNNING, trials=(replace(trial, reason=reason),))
    assert status_line(waiting).endswith(
        "50 of 200 batches (25%), the storage /s takes nothing now (node rank 1); goes on if the storage takes files "
        "again"
    )
    assert waiting_reason(trial.allocation) is None


def test_running_says_where_how_far_and_how_well() -> None:
    assert status_line(RUNNING) == (
        "experiment 1 digits: RUNNING on a1 (2 slots), a2 (2 slots), 50 of 200 batches (25%), loss 0.5, 1234 samples/s"
    )


def test_end_says_what_it_reached_and_what_to_type() -> None:
    assert final_lines(COMPLETED) == [
        "experiment 1 digits: COMPLETED after 12.5 s",
        "  validation: accuracy 0.972",
        "  checkpoint: c0ffee (after 200 batches)",
        "  next: gangline experiment metrics 1",
        "  next: gangline checkpoint download c0ffee",
    ]


def test_failure_names_the_first_rank_and_its_last_lines() -> None:
    assert final_lines(failed()) == [
        "experiment 1 digits: FAILED after 12.5 s",
        "  reason: trial 1.1 failed",
        "  checkpoint: c0ffee (after 200 batches)",
        "  failed first: rank 3 on a2: ValueError: bad batch",
        "    Traceback",
        "    ValueError",
        "  next: gangline experiment logs 1",
        "  next: gangline checkpoint download c0ffee",
    ]


def test_a_completed_trial_says_why_it_was_restarted() -> None:
    report = ExitReport("a2", ExitKind.USER_ERROR, "ValueError: bad batch", rank=3)
    trial = replace(COMPLETED.trials[0], trial=replace(COMPLETED.trials[0].trial, restarts=1, last_failure=report))
    lines = final_lines(replace(COMPLETED, trials=(trial,)))
    assert "  restart 1: rank 3 on a2: ValueError: bad batch" in lines


def test_the_trials_of_an_ended_search_fit_the_terminal() -> None:
    values = json.dumps({f"learning_rate_{number}": number / 7 for number in range(20)})
    trials = tuple(
        replace(COMPLETED.trials[0], trial=replace(COMPLETED.trials[0].trial, hyperparameters_json=values, id=trial_id))
        for trial_id in ("1.1", "1.2")
    )
    view = replace(COMPLETED, trials=trials)
    table = [line for line in final_lines(view, 80) if line.lstrip().startswith(("TRIAL", "1."))]
    assert len(table) == 3
    assert all(len(line) <= 80 for line in table)


def test_an_error_is_told_once() -> None:
    view = failed()
    trial = view.trials[0]
    assert trial.trial.last_failure is not None

    def shown(message: str, *last_lines: str) -> list[str]:
        assert trial.trial.last_failure is not None
        report = replace(trial.trial.last_failure, message=message, last_lines=last_lines)
        again = replace(trial, trial=replace(trial.trial, last_failure=report, latest_checkpoint_id=""))
        reason = f"trial 1.1 failed: rank 3 on agent a2: {message}; not tried again"
        experiment = replace(view.experiment, reason=reason)
        return final_lines(ExperimentView(experiment, (again,)))[2:-1]

    frames = ("Traceback (most recent call last):", '  File "model_def.py", line 1, in f', "    g()")
    indented = [f"    {line}" for line in frames]
    assert shown("ValueError: bad batch", *frames, "ValueError: bad batch") == indented
    assert shown("cannot import m: ValueError: x", *frames, "ValueError: x") == indented
    assert shown("the code called sys.exit(3)", *frames, "SystemExit: 3") == indented
    assert shown("no hyperparameter 'a'", *frames, "gangline.errors.GanglineError: no hyperparameter 'a'") == indented
    missing = "/bin/sh: 1: x: not found"
    assert shown(f'exited with code 127; its last line was "{missing}"', missing) == []
    assert shown("ValueError: bad batch; exited with code 1", *frames, "ValueError: bad batch") == indented
    assert shown("ended by signal 9 (SIGKILL)") == []
    # A second line of the error, and output after it, are not the message and stay.
    assert shown("ValueError: two", *frames, "ValueError: two", "lines") == [
        *indented,
        "    ValueError: two",
        "    lines",
    ]


def test_the_exit_code_of_an_exception_is_shown_below_it() -> None:
    view = failed()
    trial = view.trials[0].trial
    assert trial.last_failure is not None

    def last_line(message: str) -> str:
        report = replace(trial.last_failure, message=message, exit_code=7) if trial.last_failure else None
        return trial_lines(replace(view.trials[0], trial=replace(trial, last_failure=report)))[-1]

    assert last_line("ValueError: bad batch") == "    exit code 7"
    assert last_line("exited with code 7 and said nothing") == "    ValueError"
    assert last_line("the code called sys.exit(7)") == "    ValueError"


def test_a_pause_is_told_once() -> None:
    trial = replace(WAITING.trials[0], reason=Reason(ReasonCode.PAUSED, "experiment 1 is paused by alice", "it is on"))
    paused = ExperimentView(
        replace(WAITING.experiment, state=State.PAUSED, reason="paused by alice"),
        (trial,),
        reason=Reason(ReasonCode.PAUSED, "experiment 1 is paused by alice", "it is activated: gangline experiment ..."),
    )
    line = "paused by alice; goes on if it is activated: gangline experiment ..."
    assert status_line(paused) == f"experiment 1 digits: PAUSED, {line}"
    again = replace(paused, trials=(replace(RUNNING.trials[0], reason=trial.reason),))
    text = status_line(again)
    assert text.startswith("experiment 1 digits: PAUSED, stopping: ")
    assert " on a1 (2 slots), a2 (2 slots), " in text
    assert text.endswith(f", {line}"), "the command ends the line, to be copied"
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(_panel(paused, 1010.0))
    drawn = console.export_text()
    assert drawn.count("pause") == 1
    assert drawn.splitlines()[1].strip() == line


def test_plain_lines_come_on_a_change_of_state_or_every_other_second() -> None:
    def progressed(batches: int) -> ExperimentView:
        trial = RUNNING.trials[0]
        assert trial.progress is not None
        progress = replace(trial.progress, batches_completed=batches)
        return replace(RUNNING, trials=(replace(trial, progress=progress),))

    times = iter([0.0, 0.1, 0.2, 1.0, 2.2, 2.3, 9.0])
    views = [WAITING, WAITING, progressed(1), progressed(2), progressed(3), progressed(4), COMPLETED]
    lines: list[str] = []
    last = _follow_lines(views, lines.append, lambda: next(times))
    assert [line.partition(" batches")[0].rpartition(" ")[0].rpartition(", ")[2] for line in lines[1:]] == [
        "1 of",
        "3 of",
    ]
    assert lines[0].startswith("experiment 1 digits: QUEUED")
    assert last is COMPLETED


def test_panel_of_a_search_is_a_table_with_the_best_marked() -> None:
    config = '{"searcher": {"metric": "accuracy", "smaller_is_better": false}}'
    trials = []
    for number, (story, best) in enumerate(((COMPLETED, 0.9), (COMPLETED, 0.95), (RUNNING, 0.7), (WAITING, None)), 1):
        view = story.trials[0]
        point = f'{{"lr": {number}, "batch": 64}}'
        trial = replace(view.trial, id=f"1.{number}", number=number, hyperparameters_json=point, best_validation=best)
        trials.append(replace(view, trial=trial))
    search = replace(RUNNING, experiment=replace(RUNNING.experiment, config_json=config), trials=tuple(trials))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(_panel(search, 1010.0))
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines == [
        "experiment 1 digits RUNNING 10.0 s",
        "━━━━━━━━━━━━━━━━╸ 2 of 4 trials ended",
        "2 COMPLETED, 1 RUNNING, 1 QUEUED",
        "best accuracy 0.95: trial 1.2, lr 2",
        "TRIAL STATE HYPERPARAMETERS BATCHES BEST accuracy",
        "1.1 COMPLETED lr 1 200 0.9",
        "1.2 COMPLETED lr 2 200 0.95 *",
        "1.3 RUNNING lr 3 50 of 200 0.7",
        "1.4 QUEUED lr 4 0 -",
        "waits: needs 4 slots; 2 are free; starts if 2 more slots became free",
    ]


def test_sizes_times_and_metrics_are_short() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 3 << 30)] == ["0 B", "1023 B", "1.5 KB", "3.0 GB"]
    assert [format_duration(s) for s in (0.04, 90, 600, 7300, 200_000)] == ["0.0 s", "90.0 s", "10 min", "2 h", "2 d"]
    assert format_age(0, 100) == "-"
    assert [format_age(100, 100 + s) for s in (-5, 0.4, 119, 240, 7300)] == ["0 s", "0 s", "119 s", "4 min", "2 h"]
    assert [format_until(at, 100) for at in (90, 130, 700)] == ["any moment", "in 30 s", "in 10 min"]
    assert format_metrics({"b": 0.123456, "a": 1}) == "a 1, b 0.1235"


def test_json_unfolds_documents_kept_as_text() -> None:
    assert '"config": {}' in to_json(COMPLETED.experiment)
    assert '"outcome": "COMPLETED"' in to_json(COMPLETED)


def test_metric_that_no_validation_reports_is_told_once() -> None:
    experiment = replace(COMPLETED.experiment, config_json='{"searcher": {"name": "single", "metric": "error"}}')
    trial = replace(COMPLETED.trials[0].trial, validation_json='{"loss": 0.5, "accuracy": 0.9}', best_validation=None)
    view = replace(COMPLETED, experiment=experiment, trials=(replace(COMPLETED.trials[0], trial=trial),))
    warning = (
        "  warning: validations report no searcher.metric 'error', so none is the best; they report: accuracy, loss"
    )
    assert final_lines(view)[1:2] == [warning]
    assert final_lines(view).count(warning) == 1
    reported = replace(trial, validation_json='{"error": null}')
    assert warning not in final_lines(replace(view, trials=(replace(view.trials[0], trial=reported),)))


def test_history_that_a_gateway_has_not_taken_is_told() -> None:
    missing = replace(COMPLETED.trials[0], warning="logs and metrics are missing until a gateway takes them: x")
    assert trial_lines(missing)[0] == "  warning: logs and metrics are missing until a gateway takes them: x"
    assert missing_history(COMPLETED) == []
    view = replace(COMPLETED, trials=(missing, *COMPLETED.trials))
    assert missing_history(view) == [
        f"warning: logs and metrics of 1 of {len(view.trials)} trials are missing until a gateway takes them: 1.1"
    ]
