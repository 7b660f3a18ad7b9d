"""PURE: text about an experiment while it waits, while it trains and at its end, and about each trial of a search.

The live view, the plain lines without a terminal, and `describe` all use it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gangline.cli.output.table_layout import Column, lay_out, line_of
from gangline.cli.output.text import count, cut_text, format_duration, format_metrics
from gangline.config.strategy_choice import choice_lines
from gangline.domain import explanation
from gangline.domain.allocation import ExitReport, shrunk_reason
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.explanation import clock_time, describe_exclusion
from gangline.domain.settled.reading import settle
from gangline.domain.state import Outcome, ReasonCode, State
from gangline.domain.view import ExperimentView, TrialView

# Trials in a table that is not asked for as a whole.
MOST_SHOWN = 20
_STATES = (State.RUNNING, State.STARTING, State.STOPPING, State.QUEUED, State.PAUSED)
_WAITING = (State.QUEUED, State.PAUSED)


def is_search(view: ExperimentView) -> bool:
    """Returns whether there are, or will be, several trials."""
    return len(view.trials) > 1 or (view.search is not None and view.search.num_planned > 1)


def searched_metric(experiment: Experiment) -> tuple[str, bool]:
    """Returns the metric that decides which trial is best, and whether smaller is better."""
    searcher = settle(experiment.config_json).searcher
    return searcher.metric, searcher.smaller_is_better


def best_trial(view: ExperimentView) -> TrialView | None:
    """Returns the trial with the best validation; None before the first validation."""
    validated = [trial for trial in view.trials if trial.trial.best_validation is not None]
    _, smaller_is_better = searched_metric(view.experiment)
    best = min if smaller_is_better else max
    return best(validated, key=lambda trial: trial.trial.best_validation or 0.0, default=None)


def metric_warning(view: ExperimentView) -> str:
    """Returns a warning where validations do not report the metric that decides which one is best; else empty text."""
    metric, _ = searched_metric(view.experiment)
    documents = [trial.trial.validation_json for trial in view.trials if trial.trial.validation_json]
    reported = {name for document in documents for name in json.loads(document)}
    if not metric or not reported or metric in reported or best_trial(view) is not None:
        return ""
    names = ", ".join(sorted(reported)[:_MOST_METRICS])
    return f"warning: validations report no searcher.metric {metric!r}, so none is the best; they report: {names}"


def missing_history(view: ExperimentView) -> list[str]:
    """Returns a line that names the trials of which logs and metrics wait for a gateway; empty if there are none."""
    missing = [trial.trial.id for trial in view.trials if trial.warning]
    if not missing:
        return []
    named = ", ".join(missing[:_MOST_METRICS]) + (" ..." if len(missing) > _MOST_METRICS else "")
    what = f"logs and metrics of {len(missing)} of {len(view.trials)} trials are missing until a gateway takes them"
    return [f"warning: {what}: {named}"]


# Characters of a trial's metadata in a summary; --json shows all of them.
_MOST_METADATA = 200
# Names of metrics in a warning.
_MOST_METRICS = 8


def trial_columns(view: ExperimentView) -> tuple[Column, ...]:
    metric, _ = searched_metric(view.experiment)
    return (
        Column("TRIAL"),
        Column("STATE", 9, is_state=True),
        Column("HYPERPARAMETERS", 6, least=16),
        Column("BATCHES", 7),
        Column(f"BEST {metric}".rstrip(), 8, least=10),
    )


def trial_rows(view: ExperimentView) -> list[tuple[str, ...]]:
    """Returns one row for each trial: id, state, the hyperparameters that differ, batches, best validation."""
    hyperparameters = [flatten(json.loads(trial.trial.hyperparameters_json or "{}")) for trial in view.trials]
    names = differing(hyperparameters)
    best = best_trial(view)
    return [
        (
            trial.trial.id,
            str(trial.trial.outcome or trial.trial.state),
            format_values({name: values[name] for name in names if name in values}),
            _batches(trial),
            _best_validation(trial) + (" *" if best is not None and trial.trial.id == best.trial.id else ""),
        )
        for trial, values in zip(view.trials, hyperparameters, strict=True)
    ]


def shown_rows(view: ExperimentView) -> tuple[list[tuple[str, ...]], list[str]]:
    """Returns the rows of at most MOST_SHOWN trials, and the line about the others, if there are any."""
    rows = trial_rows(view)
    shown = [rows[index] for index in shown_indexes(view, MOST_SHOWN)]
    num_more = len(rows) - len(shown)
    return shown, [f"and {num_more} more; all: gangline experiment trials {view.experiment.id}"] if num_more else []


def shown_indexes(view: ExperimentView, most: int) -> list[int]:
    """Returns the indexes of the trials to show: the best one, those that go on, those that wait and the newest that
    have ended."""
    best = best_trial(view)
    states = [trial.trial.state for trial in view.trials]
    first = [index for index, trial in enumerate(view.trials) if trial is best]
    # The trials of a paused experiment that wait are PAUSED; those that still stop are shown before them.
    going_on = [index for index, state in enumerate(states) if state not in (State.TERMINAL, *_WAITING)]
    waiting = [index for index, state in enumerate(states) if state in _WAITING]
    ended = [index for index, state in enumerate(states) if state is State.TERMINAL]
    shown = list(dict.fromkeys([*first, *going_on, *waiting, *reversed(ended)]))[: max(most, 0)]
    return sorted(shown, key=lambda index: view.trials[index].trial.number)


def search_line(view: ExperimentView) -> str:
    """Returns a line such as: 2 of 6 trials ended (1 FAILED), 2 RUNNING, best accuracy 0.972 (trial 1.3)."""
    planned = max(len(view.trials), view.search.num_planned if view.search else 0)
    outcomes = Counter(str(trial.trial.outcome) for trial in view.trials if trial.trial.outcome)
    bad = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()) if outcome != "COMPLETED")
    words = [f"{outcomes.total()} of {count(planned, 'trial')} ended" + (f" ({bad})" if bad else "")]
    states = Counter(trial.trial.state for trial in view.trials)
    words += [f"{states[state]} {state}" for state in _STATES if states[state]]
    best = best_trial(view)
    if best is not None:
        words.append(f"best {searched_metric(view.experiment)[0]} {_best_validation(best)} (trial {best.trial.id})")
    return ", ".join(words)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {"net": {"depth": 3}} as {"net.depth": 3}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def differing(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names whose values differ between points; all of them when there are fewer than two points."""
    names = list(dict.fromkeys(name for point in points for name in point))
    if len(points) < 2:
        return names
    return [name for name in names if len({json.dumps(point.get(name)) for point in points}) > 1]


def format_values(values: Mapping[str, Any]) -> str:
    """Returns text such as: lr 0.001, net.depth 3."""
    return ", ".join(_pairs(values.items())) or "-"


def _pairs(items: Iterable[tuple[str, Any]]) -> list[str]:
    return [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in items]


def _batches(trial: TrialView) -> str:
    if trial.progress is None or trial.progress.batches_total <= 0:
        return str(trial.trial.batches_completed)
    return f"{trial.progress.batches_completed} of {trial.progress.batches_total}"


def _best_validation(trial: TrialView) -> str:
    best = trial.trial.best_validation
    return "-" if best is None else f"{best:.4g}"


_MOST_LAST_LINES = 20


def status_word(item: Experiment | Trial) -> str:
    """Returns the outcome once there is one, else the state."""
    return str(item.outcome or item.state)


def current_trial(view: ExperimentView) -> TrialView | None:
    """Returns the trial to show: the first that has not ended, else the last one."""
    live = [trial for trial in view.trials if trial.trial.state is not State.TERMINAL]
    return live[0] if live else view.trials[-1] if view.trials else None


def progress_ratio(trial: TrialView | None) -> float | None:
    """Returns the progress from 0 to 1; None before the trial knows its length."""
    if trial is None or trial.progress is None or trial.progress.batches_total <= 0:
        return None
    return max(0.0, min(1.0, trial.progress.batches_completed / trial.progress.batches_total))


def place_of(trial: TrialView) -> str:
    """Returns where it runs: agent-1 (2 slots), agent-2 (2 slots)."""
    return "" if trial.allocation is None else explanation.place_of(trial.allocation)


def waiting_for(trial: TrialView, *, names_failure: bool = True) -> str:
    """Returns why it waits, and what would start it. names_failure: whether a back-off names the failure before it;
    False where another line does."""
    if trial.reason is None:
        return ""
    words = trial.reason.message
    if trial.reason.would_start_if:
        verb = "goes on" if trial.reason.code is ReasonCode.STORAGE_AWAY else "starts"
        words += f"; {verb} if {trial.reason.would_start_if}"
    if names_failure and trial.reason.code is ReasonCode.BACKOFF_AFTER_FAILURE and trial.trial.last_failure is not None:
        words += f"; failed first: {_blame(trial.trial.last_failure)}"
    return words


def training_figures(trial: TrialView) -> str:
    """Returns text such as: loss 0.512, 1234 samples/s. An attempt that starts has none yet: they are those of the
    attempt before."""
    if trial.trial.state is State.STARTING:
        return ""
    figures = []
    loss = _loss(trial.training.metrics if trial.training else {})
    if loss is not None:
        figures.append(f"{loss[0]} {loss[1]:.4g}")
    if trial.progress is not None and trial.progress.samples_per_second > 0:
        figures.append(f"{trial.progress.samples_per_second:.0f} samples/s")
    return ", ".join(figures)


def status_line(view: ExperimentView) -> str:
    """Returns one line for the present state. Two views with the same line look the same to the user."""
    trial = current_trial(view)
    words = f"experiment {view.experiment.id} {view.experiment.name}: {status_word(view.experiment)}"
    if ending := view.num_slots_ending:
        words += f", stopping: {count(ending, 'slot')} until its ranks end"
    pause = pause_of(view)
    if is_search(view) and view.experiment.state is not State.TERMINAL:
        return ", ".join(filter(None, (words, search_line(view), pause)))
    if trial is None or view.experiment.state is State.TERMINAL:
        return ", ".join(filter(None, (words, pause)))
    if trial.trial.restarts:
        words += f", restart {trial.trial.restarts}"
    if place := place_of(trial):
        words += f" on {place}"
    if trial.progress is not None:
        words += f", {batches_of(trial)}"
    # The reason of a paused experiment is the reason of its trials too. Its command ends the line, to be copied.
    details = pause or waiting_for(trial) or training_figures(trial)
    return f"{words}, {details}" if details else words


def pause_of(view: ExperimentView) -> str:
    """Returns who paused the experiment and what activates it; empty for an experiment that is not paused."""
    if view.experiment.state is not State.PAUSED:
        return ""
    activated = f"goes on if {view.reason.would_start_if}" if view.reason is not None else ""
    return "; ".join(part for part in (view.experiment.reason, activated) if part)


def batches_of(trial: TrialView) -> str:
    """Returns text such as: 200 of 1000 batches (20 %)."""
    if trial.progress is None:
        return f"{trial.trial.batches_completed} batches"
    ratio = progress_ratio(trial)
    if ratio is None:
        return f"{trial.progress.batches_completed} batches"
    return f"{trial.progress.batches_completed} of {trial.progress.batches_total} batches ({ratio:.0%})"


def final_lines(view: ExperimentView, width: int | None = None) -> list[str]:
    """Returns how it ended, its results, and the next commands to type. width: of the terminal, in cells; None where
    there is none."""
    experiment = view.experiment
    seconds = format_duration(experiment.ended_at - experiment.created_at)
    lines = [f"experiment {experiment.id} {experiment.name}: {status_word(experiment)} after {seconds}"]
    if experiment.outcome is Outcome.COMPLETED and metric_warning(view):
        lines.append(f"  {metric_warning(view)}")
    if experiment.reason and experiment.outcome is not Outcome.COMPLETED:
        lines.append(f"  reason: {experiment.reason}")
    if is_search(view):
        lines += [f"  {line}" for line in missing_history(view)]
        rows, more = shown_rows(view)
        table = [line_of(cells) for cells in lay_out(trial_columns(view), rows, None if width is None else width - 2)]
        lines += [f"  {line}" for line in [search_line(view), *table, *more]]
    else:
        for trial in view.trials:
            lines += trial_lines(trial, experiment.reason)
    return lines + [f"  next: {command}" for command in _next_commands(view)]


def trial_lines(view: TrialView, reason: str = "") -> list[str]:
    """Returns the results of one trial, and its first failure. reason: a line that is shown above; a failure that it
    names is not named again."""

    trial, lines = view.trial, [f"  warning: {view.warning}"] if view.warning else []
    metrics = json.loads(trial.validation_json) if trial.validation_json else {}
    if view.validation is not None:
        metrics = dict(view.validation.metrics)
    if metrics:
        lines.append(f"  validation: {format_metrics(_numbers(metrics))}")
    if trial.metadata_json:
        lines.append(f"  metadata: {cut_text(trial.metadata_json, _MOST_METADATA)}")
    lines += [f"  {line}" for line in choice_lines(trial.strategy_choice_json)]
    if trial.latest_checkpoint_id:
        lines.append(f"  checkpoint: {trial.latest_checkpoint_id}{_saved(view)}")
    elif view.batches_at_risk:
        lines.append(f"  no checkpoint yet: a failure now would cost {_count_batches(view.batches_at_risk)}")
    lines += size_lines(view)
    lines += [f"  warning: {trial.warning}"] if trial.warning else []
    lines += [f"  not again on {agent_id}: {why}" for agent_id, why in sorted(trial.excluded_agents.items())]
    if trial.state is not State.TERMINAL:
        lines += [f"  not on {exclusion.agent_id}: {describe_exclusion(exclusion)}" for exclusion in trial.exclusions]
    if trial.state is not State.TERMINAL and trial.last_failure is not None:
        lines.append(f"  {restart_line(view)}")
    if trial.outcome in (Outcome.COMPLETED, Outcome.CANCELED) and trial.last_failure is not None:
        lines.append(f"  {restart_line(view)}")
    if trial.outcome is Outcome.FAILED and trial.last_failure is not None:
        if trial.last_failure.message not in reason:
            lines.append(f"  failed first: {_blame(trial.last_failure)}")
        lines += [f"    {line}" for line in (*output_lines(trial.last_failure), *_exit_lines(trial.last_failure))]
    return lines


def _saved(view: TrialView) -> str:
    """Returns how far training was at the checkpoint, and what a failure now would cost. A gateway of an earlier
    version does not say it."""
    if view.checkpoint_batches is None:
        return ""
    words = f"after {_count_batches(view.checkpoint_batches)}"
    if view.batches_at_risk:
        words += f"; a failure now would cost the {_count_batches(view.batches_at_risk)} since"
    return f" ({words})"


def _count_batches(number: int) -> str:
    return f"{number} batch{'' if number == 1 else 'es'}"


def output_lines(failure: ExitReport) -> list[str]:
    """Returns the last lines of a failed rank without the error at their end where the failure's message is the same
    line."""
    lines = list(failure.last_lines[-_MOST_LAST_LINES:])
    if lines and _repeats(lines[-1].strip(), failure.message):
        lines.pop()
    return lines


def _repeats(line: str, message: str) -> bool:
    # Gangline begins some messages with its own words, as in: cannot import model_def: ValueError: x.
    is_exit = line.startswith("SystemExit: ") and message.startswith("the code called sys.exit")
    is_said = message.endswith((f": {line}", f'"{line}"')) or message.startswith(f"{line}; ")
    return is_exit or is_said or line in (message, f"gangline.errors.GanglineError: {message}")


def _exit_lines(failure: ExitReport) -> list[str]:
    """Returns the exit code of a rank whose failure is an exception. Other messages begin with the code or the
    signal."""
    is_said = "exited with code " in failure.message or "sys.exit(" in failure.message
    return [] if failure.exit_code is None or is_said else [f"exit code {failure.exit_code}"]


def restart_line(view: TrialView) -> str:
    """Returns the number of restarts that were used up, and the last failure. The failure of a machine ends an attempt,
    but uses up no restart. The trial's own reason is gone once its next attempt is placed."""
    trial = view.trial
    why = _blame(trial.last_failure) if trial.last_failure is not None else trial.reason
    return f"restart {trial.restarts}: {why}" if trial.restarts else f"last failure, no restart used up: {why}"


def failure_lines(view: ExperimentView) -> list[str]:
    """Returns the last failure of each trial that runs again, or waits to. A search has at most MOST_SHOWN of them."""
    again = [trial for trial in view.trials if trial.trial.state is not State.TERMINAL and trial.trial.last_failure]
    if is_search(view):
        more = [f"  and {len(again) - MOST_SHOWN} more failed before"] if len(again) > MOST_SHOWN else []
        return [f"  trial {trial.trial.id}: {restart_line(trial)}" for trial in again[:MOST_SHOWN]] + more
    # The line about a back-off names the failure.
    is_named = [trial.reason is not None and trial.reason.code is ReasonCode.BACKOFF_AFTER_FAILURE for trial in again]
    return [f"  {restart_line(trial)}" for trial, named in zip(again, is_named, strict=True) if not named]


def size_lines(view: TrialView) -> list[str]:
    """Returns the changes of a trial's size, and why it runs on fewer slots now."""
    shrunk = shrunk_reason(view.allocation) if view.allocation is not None else None
    lines = [f"  {shrunk.code}: {shrunk.message}"] if shrunk is not None else []
    for change in view.trial.size_changes:
        slots = f"{change.slots} of {change.full_slots} slots" if change.slots < change.full_slots else "all its slots"
        why = f": {change.reason}" if change.reason else ""
        lines.append(f"  at {clock_time(change.at)} it went on with {slots}{why}")
    return lines


def _blame(failure: ExitReport) -> str:
    """Returns text such as: rank 3 on agent-2: ValueError: bad batch."""
    who = f"rank {failure.rank} on {failure.agent_id}" if failure.rank is not None else failure.agent_id
    return f"{who}: {failure.message}"


def _next_commands(view: ExperimentView) -> list[str]:
    number = view.experiment.id
    best = best_trial(view) if is_search(view) else None
    wanted = [best] if best is not None else view.trials
    checkpoint = next((trial.trial.latest_checkpoint_id for trial in wanted if trial.trial.latest_checkpoint_id), "")
    commands = [f"gangline experiment logs {number}"]
    if view.experiment.outcome is Outcome.COMPLETED:
        commands = [f"gangline experiment metrics {number}"]
    return [*commands, f"gangline checkpoint download {checkpoint}"] if checkpoint else commands


def _loss(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    """Returns the metric named loss, else the first whose name contains it, else any."""
    names = sorted(metrics, key=lambda name: (name != "loss", "loss" not in name, name))
    return (names[0], metrics[names[0]]) if names else None


def _numbers(metrics: Mapping[str, object]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
