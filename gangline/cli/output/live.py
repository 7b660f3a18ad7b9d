"""Follows an experiment on the terminal: a panel that redraws itself, or plain lines where there is no terminal.

gangline.cli.output.summary and search_summary make the texts; this module owns only how and how often they are drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gangline.cli.output.search_summary import best_line, counts, ended_line, search_ratio
from gangline.cli.output.summary import (
    batches_of,
    current_trial,
    is_search,
    metric_warning,
    missing_history,
    pause_of,
    place_of,
    progress_ratio,
    restart_line,
    shown_indexes,
    status_line,
    status_word,
    training_figures,
    trial_columns,
    trial_rows,
    waiting_for,
)
from gangline.cli.output.table_layout import GAP, Cell, color_of, lay_out, shorten
from gangline.cli.output.terminal import can_draw, mention, raw_output, say
from gangline.cli.output.text import format_duration, format_metrics
from gangline.cli.output.top_screen import Line
from gangline.domain.allocation import ExitReport
from gangline.domain.state import State
from gangline.domain.view import ExperimentView, TrialView
from gangline.printable import to_line, to_printable

# Least interval between two plain lines that show only progress. A change of state is always written.
_LINE_SECONDS = 2.0
# A table of more rows than this is no overview, on however large a terminal.
_MOST_ROWS = 16
_MOST_REASONS = 3
_LEAST_NAME_WIDTH = 12
_BAR_WIDTH = 30


class CleanConsole(Console):
    """Draws with escape sequences of its own, and shows those in a text as escapes. It reads no markup in texts."""

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__(file=file or raw_output(), markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(to_printable(segment.text), segment.style)


def follow(views: Iterable[ExperimentView], *, on_stderr: bool = False) -> ExperimentView | None:
    """Shows each view as it arrives. Returns the last one, None when there was none. on_stderr: plain lines go to
    standard error, because standard output is for the result."""
    if can_draw():
        return _follow_panel(views)

    def write(line: str) -> None:
        if on_stderr:
            mention(line)
        else:
            say([line], flush=True)

    return _follow_lines(views, write, time.monotonic)


class Canvas:
    """The whole terminal, redrawn at each `show`. Made by `full_screen`."""

    def __init__(self, live: Live) -> None:
        self._live = live

    @property
    def width(self) -> int:
        return self._live.console.width

    @property
    def height(self) -> int:
        return self._live.console.height

    def show(self, lines: Sequence[Line]) -> None:
        self._live.update(Group(*map(_styled, lines)), refresh=True)


@contextmanager
def full_screen() -> Iterator[Canvas]:
    """Takes the whole terminal, and gives it back as it was."""
    with Live(console=CleanConsole(), screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        yield Canvas(live)


def _styled(line: Line) -> Text:
    style = "bold" if line.is_strong else color_of(line.state) if line.state is not None else ""
    return Text(line.text, style=style, no_wrap=True, overflow="crop")


def _follow_panel(views: Iterable[ExperimentView]) -> ExperimentView | None:
    last: ExperimentView | None = None
    with Live(console=(console := CleanConsole()), refresh_per_second=8, transient=True) as live:
        for last in views:
            live.update(_panel(last, time.time(), console.width, console.height))
    return last


def _follow_lines(
    views: Iterable[ExperimentView], write: Callable[[str], None], clock: Callable[[], float]
) -> ExperimentView | None:
    last: ExperimentView | None = None
    written, at = "", 0.0
    key: tuple[str, ...] = ()
    failures: dict[str, ExitReport | None] | None = None
    for last in views:
        for trial in _failed_since(failures, last):
            write(f"trial {trial.trial.id} starts again; {restart_line(trial)}")
        failures = {trial.trial.id: trial.trial.last_failure for trial in last.trials}
        line, now = status_line(last), clock()
        new_key = _states(last)
        is_due = new_key != key or now - at >= _LINE_SECONDS
        if is_due and line != written and last.experiment.state is not State.TERMINAL:
            write(line)
            written, key, at = line, new_key, now
    return last


def _failed_since(failures: Mapping[str, ExitReport | None] | None, view: ExperimentView) -> list[TrialView]:
    """Returns the trials that go on after an attempt that has failed since. failures: the last failure of each trial in
    the view before; None for the first view."""
    if failures is None:
        return []
    # A trial of a paused experiment does not start again.
    going_on = [trial for trial in view.trials if trial.trial.state not in (State.TERMINAL, State.PAUSED)]
    return [trial for trial in going_on if trial.trial.last_failure not in (None, failures.get(trial.trial.id))]


def _states(view: ExperimentView) -> tuple[str, ...]:
    trial = current_trial(view)
    shown = view.trials if is_search(view) else [trial] if trial else []
    return (str(view.experiment.state), *(str(trial.trial.state) for trial in shown))


def _text(line: str, style: str = "", *, is_cut: bool = False) -> Text:
    """Returns one line; a newline in it is shown as an escape, so it draws no further line. is_cut: a line that is
    wider than the terminal is cut, and does not wrap."""
    if is_cut:
        return Text(to_line(line), style=style, no_wrap=True, overflow="ellipsis")
    return Text(to_line(line), style=style)


def _panel(view: ExperimentView, now: float, width: int = 80, height: int = 24) -> Group:
    """Returns at most as many lines as the terminal has. width, height: of the terminal, in cells."""
    title, trial = _title(view, now, width), current_trial(view)
    texts = (metric_warning(view), *missing_history(view), pause_of(view))
    notes = [_text(f"  {text}", "yellow", is_cut=True) for text in texts if text]
    if is_search(view):
        return Group(title, *notes, *_search_details(view, width, height - len(notes)))
    if trial is None:
        return Group(title, *notes)
    return Group(title, *notes, *_details(trial, is_paused=bool(pause_of(view))))


def _title(view: ExperimentView, now: float, width: int) -> Text:
    """Returns a line with number, name, state and age. A long name is cut, so that the state stays in the line."""
    experiment = view.experiment
    number, word = f"experiment {experiment.id} ", status_word(experiment)
    age = format_duration(now - experiment.created_at)
    room = width - len(number) - len(GAP) * 2 - len(word) - len(age)
    name = shorten(to_line(experiment.name), max(room, _LEAST_NAME_WIDTH))
    title = _text(f"{number}{name}{GAP}", "bold", is_cut=True)
    title.append(word, style=color_of(word))
    title.append(f"{GAP}{age}", style="dim")
    return title


def _search_details(view: ExperimentView, width: int, height: int) -> list[Text | Table]:
    """Returns the bar, the counts by state, the best trial, a table of trials, and why trials wait."""
    waits = dict.fromkeys(reason for trial in view.trials if (reason := waiting_for(trial)))
    if view.reason is not None:
        waits = {f"{view.reason.message}; goes on if {view.reason.would_start_if}": None, **waits}
    reasons = [_text(f"  waits: {reason}", "yellow", is_cut=True) for reason in [*waits][:_MOST_REASONS]]
    best = [_text(f"  {line}", "bold", is_cut=True) for line in [best_line(view)] if line]
    # The other lines are the title, the bar, the counts and the headings. The cursor is in the line below the last one.
    num_rows = min(_MOST_ROWS, height - 5 - len(best) - len(reasons))
    return [_search_bar(view, width), _counts(view), *best, *_trial_lines(view, width, num_rows), *reasons]


def _search_bar(view: ExperimentView, width: int) -> Table:
    row, line = Table.grid(padding=(0, 1)), ended_line(view)
    bar_width = max(5, min(_BAR_WIDTH, width - len(line) - 6))
    row.add_row(" ", ProgressBar(total=1.0, completed=search_ratio(view), width=bar_width), _text(line, is_cut=True))
    return row


def _counts(view: ExperimentView) -> Text:
    line = _text(" ", is_cut=True)
    for number, (num_trials, word) in enumerate(counts(view)):
        line.append(", " if number else " ")
        line.append(f"{num_trials} {word}", style=color_of(word))
    return line


def _trial_lines(view: ExperimentView, width: int, num_rows: int) -> list[Text]:
    rows = trial_rows(view)
    headings, *lines = lay_out(trial_columns(view), [rows[index] for index in shown_indexes(view, num_rows)], width)
    return [_row(headings, "dim"), *(_row(cells) for cells in lines)]


def _row(cells: list[Cell], style: str = "") -> Text:
    line = _text("", style, is_cut=True)
    for number, cell in enumerate(cells):
        line.append(GAP * bool(number) + cell.text, style=color_of(cell.state) if cell.state else None)
    line.rstrip()
    return line


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
