"""PURE: the screen of `gangline top`, and what each key changes in it.

The command fetches tasks and agents; this module turns them into lines of at most the terminal's width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gangline.cli.output.job_summary import in_queue_order
from gangline.cli.output.table_layout import Column, lay_out, line_of, shorten
from gangline.cli.output.text import format_duration
from gangline.domain.explanation import clock_time
from gangline.domain.state import State
from gangline.domain.task import Task
from gangline.domain.view import AgentView
from gangline.printable import to_line

# The orders that the key s goes through. Each takes a task and its place in the queue's order.
SORTS: dict[str, Callable[[int, Task], Any]] = {
    "queue": lambda place, task: place,
    "owner": lambda place, task: (task.owner, place),
    "experiment": lambda place, task: (task.experiment_name, place),
    "slots": lambda place, task: (-task.num_slots, place),
    "progress": lambda place, task: (-(_ratio(task) or 0.0), place),
    "state": lambda place, task: (str(task.trial.state), place),
}
COLUMNS = (
    Column("TRIAL"),
    Column("EXPERIMENT", 6, least=8),
    Column("OWNER", 3, least=4),
    Column("STATE", 9, is_state=True),
    Column("SLOTS", 4),
    Column("PROGRESS", 5),
    Column("STARTS", 7),
    Column("WHERE OR WHY NOT", 8, least=12),
)
HELP = "q quit  s sort  r reverse  / filter  arrows scroll"


@dataclass(frozen=True, slots=True)
class Glance:
    """The newest answers of the gateway."""

    tasks: Sequence[Task] = ()
    agents: Sequence[AgentView] = ()
    at: float = 0.0  # Unix seconds
    problem: str = ""  # why there is no newer answer; empty if there is no problem


@dataclass(frozen=True, slots=True)
class Screen:
    """What the user has chosen."""

    sort: str = "queue"  # a key of SORTS
    is_reversed: bool = False
    pattern: str = ""  # only tasks with this text are shown; empty for all
    is_typing: bool = False  # whether keys change the pattern
    offset: int = 0  # number of tasks that are scrolled out at the top


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the screen."""

    text: str
    state: State | None = field(default=None)  # state of the task in the line, for its colour
    is_strong: bool = False  # whether the line is a heading


def press(screen: Screen, key: str, glance: Glance, height: int) -> Screen | None:
    """Returns the screen after a key; None when the user leaves. height: of the terminal, in lines."""
    if screen.is_typing:
        return _type(screen, key)
    if key == "q":
        return None
    room = _room(glance, height)
    steps = {"down": 1, "j": 1, "up": -1, "k": -1, "page down": room, "page up": -room}
    if key in steps:
        last = max(0, len(selected(glance.tasks, screen)) - room)
        return replace(screen, offset=min(max(0, screen.offset + steps[key]), last))
    orders = list(SORTS)
    changes: dict[str, dict[str, Any]] = {
        "s": {"sort": orders[(orders.index(screen.sort) + 1) % len(orders)]},
        "r": {"is_reversed": not screen.is_reversed},
        "/": {"is_typing": True, "pattern": ""},
        "escape": {"pattern": ""},
    }
    return replace(screen, offset=0, **changes[key]) if key in changes else screen


def _type(screen: Screen, key: str) -> Screen:
    match key:
        case "enter":
            return replace(screen, is_typing=False)
        case "escape":
            return replace(screen, is_typing=False, pattern="")
        case "backspace":
            return replace(screen, pattern=screen.pattern[:-1])
    return replace(screen, pattern=screen.pattern + key) if len(key) == 1 and key.isprintable() else screen


def selected(tasks: Sequence[Task], screen: Screen) -> list[Task]:
    """Returns the tasks that match the pattern, in the chosen order."""
    ordered = list(enumerate(in_queue_order(tasks)))
    ordered.sort(key=lambda item: SORTS[screen.sort](*item), reverse=screen.is_reversed)
    pattern = screen.pattern.lower()
    return [task for _, task in ordered if pattern in _searched_text(task)]


def rows_of(tasks: Sequence[Task], now: float) -> list[tuple[str, ...]]:
    """Returns a row for each task, with whole texts."""
    return [_row(task, now) for task in tasks]


def summary_lines(glance: Glance) -> list[str]:
    """Returns the lines above the tasks: slots by pool, and how many trials run and wait."""
    running = sum(task.allocation is not None for task in glance.tasks)
    paused = sum(task.trial.state is State.PAUSED for task in glance.tasks)
    words = [f"{running} running", f"{len(glance.tasks) - running - paused} waiting"]
    words += [f"{paused} paused"] if paused else []
    lines = [f"gangline top  {clock_time(glance.at)}  {', '.join(words)}"]
    for pool in sorted({view.agent.pool for view in glance.agents}):
        lines.append(f"pool {pool}: {_pool_text([view for view in glance.agents if view.agent.pool == pool])}")
    return lines


def draw(glance: Glance, screen: Screen, width: int, height: int) -> list[Line]:
    """Returns the lines of the whole screen. No line is wider than the terminal, and there are at most `height`."""
    tasks = selected(glance.tasks, screen)
    head = [Line(text) for text in summary_lines(glance)]
    order = f"sorted by {screen.sort}{', reversed' if screen.is_reversed else ''}"
    shown = f"filter: {screen.pattern}{'_' if screen.is_typing else ''}" if screen.pattern or screen.is_typing else ""
    status = "  ".join(part for part in (order, shown, HELP) if part)
    head.append(Line(glance.problem or status))
    room = _room(glance, height)
    offset = min(screen.offset, max(0, len(tasks) - room))
    shown_tasks = tasks[offset : offset + room]
    headings, *rows = lay_out(COLUMNS, rows_of(shown_tasks, glance.at), width)
    head.append(Line(line_of(headings), is_strong=True))
    body = [Line(line_of(cells), task.trial.state) for task, cells in zip(shown_tasks, rows, strict=True)]
    if not tasks:
        body = [Line("no task matches the filter" if screen.pattern else "nothing runs and nothing waits")]
    return [replace(line, text=shorten(to_line(line.text), width)) for line in [*head, *body]][:height]


def _room(glance: Glance, height: int) -> int:
    """Returns how many tasks fit below the summary, the status and the headings."""
    return max(1, height - len(summary_lines(glance)) - 2)


def _row(task: Task, now: float) -> tuple[str, ...]:
    return (
        task.trial.id,
        task.experiment_name,
        task.owner or "-",
        str(task.trial.state),
        task.size_text,
        _progress(task),
        _starts(task, now),
        _where_or_why(task),
    )


def _progress(task: Task) -> str:
    ratio = _ratio(task)
    if ratio is not None:
        return f"{ratio:.0%}"
    batches = task.progress.batches_completed if task.progress is not None else task.trial.batches_completed
    return str(batches) if batches else "-"


def _ratio(task: Task) -> float | None:
    """Returns the progress from 0 to 1; None while the length is not known."""
    if task.progress is None or task.progress.batches_total <= 0:
        return None
    return max(0.0, min(1.0, task.progress.batches_completed / task.progress.batches_total))


def _starts(task: Task, now: float) -> str:
    """Returns in how long a waiting trial is expected to start; a dash where no estimate exists, or it runs."""
    if task.reason is None or task.reason.eta_at is None:
        return "-"
    return format_duration(task.reason.eta_at - now) if task.reason.eta_at > now else "soon"


def _where_or_why(task: Task) -> str:
    if task.allocation is not None:
        return ", ".join(f"{member.agent_id} ({len(member.slot_ids)})" for member in task.allocation.members)
    return str(task.reason.code) if task.reason is not None else "-"


def _searched_text(task: Task) -> str:
    return " ".join((*_row(task, 0.0), task.pool)).lower()


def _pool_text(views: Sequence[AgentView]) -> str:
    num_slots = sum(len(view.agent.slots) for view in views)
    num_used = sum(len(view.allocation_id_by_slot_id) for view in views)
    num_lost = sum(str(view.agent.state) != "ALIVE" for view in views)
    agents = f"{len(views)} agents" if len(views) != 1 else "1 agent"
    return f"{num_used} of {num_slots} slots used, {agents}" + (f", {num_lost} lost" if num_lost else "")
