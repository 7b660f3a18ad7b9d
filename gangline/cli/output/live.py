"""Follows an experiment on the terminal: a panel that redraws itself, or plain lines where there is no terminal.

gangline.cli.output.summary makes the text of each view; this module owns only how and how often it is drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gangline.cli.output.summary import (
    batches_of,
    best_trial,
    current_trial,
    headings,
    is_search,
    pause_of,
    place_of,
    progress_ratio,
    restart_line,
    search_line,
    status_line,
    status_word,
    training_figures,
    trial_rows,
    waiting_for,
)
from gangline.cli.output.terminal import is_terminal, raw_output, say
from gangline.cli.output.text import format_duration, format_metrics
from gangline.domain.state import State
from gangline.domain.view import ExperimentView, TrialView
from gangline.printable import to_line, to_printable

# Least interval between two plain lines that show only progress. A change of state is always written.
_LINE_SECONDS = 2.0
# Rows that fit on a usual terminal for one experiment.
_MOST_ROWS = 16
_MOST_REASONS = 3
_COLOR_BY_STATE = {State.QUEUED: "yellow", State.STARTING: "cyan", State.RUNNING: "green", State.STOPPING: "magenta"}


class CleanConsole(Console):
    """Draws with escape sequences of its own, and shows those in a text as escapes. It reads no markup in texts."""

    def __init__(self) -> None:
        super().__init__(file=raw_output(), markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(to_printable(segment.text), segment.style)


def follow(views: Iterable[ExperimentView]) -> ExperimentView | None:
    """Shows each view as it arrives. Returns the last one, None when there was none."""
    if is_terminal():
        return _follow_panel(views)
    return _follow_lines(views, lambda line: say([line], flush=True), time.monotonic)


def _follow_panel(views: Iterable[ExperimentView]) -> ExperimentView | None:
    last: ExperimentView | None = None
    with Live(console=CleanConsole(), refresh_per_second=8, transient=True) as live:
        for last in views:
            live.update(_panel(last, time.time()))
    return last


def _follow_lines(
    views: Iterable[ExperimentView], write: Callable[[str], None], clock: Callable[[], float]
) -> ExperimentView | None:
    last: ExperimentView | None = None
    written, at = "", 0.0
    key: tuple[str, ...] = ()
    for last in views:
        line, now = status_line(last), clock()
        new_key = _states(last)
        is_due = new_key != key or now - at >= _LINE_SECONDS
        if is_due and line != written and last.experiment.state is not State.TERMINAL:
            write(line)
            written, key, at = line, new_key, now
    return last


def _states(view: ExperimentView) -> tuple[str, ...]:
    trial = current_trial(view)
    shown = view.trials if is_search(view) else [trial] if trial else []
    return (str(view.experiment.state), *(str(trial.trial.state) for trial in shown))


def _text(line: str, style: str = "") -> Text:
    """Returns one line; a newline in it is shown as an escape, so it draws no further line."""
    return Text(to_line(line), style=style)


def _panel(view: ExperimentView, now: float) -> Group:
    experiment, trial = view.experiment, current_trial(view)
    title = _text(f"experiment {experiment.id} {experiment.name}  ", style="bold")
    title.append(status_word(experiment), style=_COLOR_BY_STATE.get(experiment.state, "default"))
    title.append(f"  {format_duration(now - experiment.created_at)}", style="dim")
    pause = [_text(f"  {pause_of(view)}", style="yellow")] if pause_of(view) else []
    if is_search(view):
        return Group(title, *pause, *_search_details(view))
    if trial is None:
        return Group(title, *pause)
    return Group(title, *pause, *_details(trial, is_paused=bool(pause)))


def _search_details(view: ExperimentView) -> list[Text | Table]:
    """Returns a line for all, then the trials that go on, the best one and the newest of those that have ended."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings(view):
        table.add_column(_text(heading))
    for row, trial in _shown(view):
        table.add_row(*map(_text, row), style=_COLOR_BY_STATE.get(trial.trial.state, "dim"))
    details: list[Text | Table] = [_text(f"  {search_line(view)}"), table]
    if view.experiment.state is State.PAUSED:
        return details
    reasons = dict.fromkeys(reason for trial in view.trials if (reason := waiting_for(trial)))
    if view.reason is not None:
        reasons = {f"{view.reason.message}; goes on if {view.reason.would_start_if}": None, **reasons}
    return [*details, *(_text(f"  waits: {reason}", style="yellow") for reason in [*reasons][:_MOST_REASONS])]


def _shown(view: ExperimentView) -> list[tuple[tuple[str, ...], TrialView]]:
    rows = list(zip(trial_rows(view), view.trials, strict=True))
    best = best_trial(view)
    going_on = [row for row in rows if row[1].trial.state is not State.TERMINAL]
    ended = [row for row in rows if row[1].trial.state is State.TERMINAL and row[1] is not best]
    first = [row for row in rows if row[1] is best and row[1].trial.state is State.TERMINAL]
    shown = [*first, *going_on, *reversed(ended)][:_MOST_ROWS]
    return sorted(shown, key=lambda row: row[1].trial.number)


def _details(trial: TrialView, *, is_paused: bool) -> list[Text | Table]:
    """Returns the lines of the only trial. is_paused: a line of the experiment says why it waits."""
    details: list[Text | Table] = []
    reason = "" if is_paused else waiting_for(trial, names_failure=False)
    if reason:
        details.append(_text(f"  waits: {reason}", style="yellow"))
    if place := place_of(trial):
        details.append(_text(f"  on {place}", style="dim"))
    if trial.trial.last_failure is not None or trial.trial.restarts:
        details.append(_text(f"  {restart_line(trial)}", style="yellow"))
    if trial.progress is not None:
        details.append(_bar(trial))
    if trial.validation is not None:
        details.append(_text(f"  validation: {format_metrics(trial.validation.metrics)}"))
    return details


def _bar(trial: TrialView) -> Table:
    row = Table.grid(padding=(0, 1))
    ratio = progress_ratio(trial)
    bar = ProgressBar(total=1.0, completed=ratio or 0.0, width=30, pulse=ratio is None)
    row.add_row(" ", bar, _text(batches_of(trial)), _text(training_figures(trial), style="bold"))
    return row
