"""`gangline top`: the slots, the queue and the running trials, on a screen that refreshes itself."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.terminal import is_terminal
from gangline.cli.shared import InProject, InWorkspace, Json, connect, show
from gangline.errors import GanglineError, invalid

if TYPE_CHECKING:
    from gangline.cli.output.top_screen import Glance, Screen
    from gangline.client import Client

# How long a key may take to show its effect.
_FRAME_SECONDS = 0.2


def top(
    *,
    sort: Annotated[str, typer.Option(help="queue, owner, experiment, slots, progress or state.")] = "queue",
    pattern: Annotated[str, typer.Option("--filter", help="Only tasks with this text in one of their columns.")] = "",
    workspace: InWorkspace = "",
    project: InProject = "",
    interval: Annotated[float, typer.Option(help="Seconds between two refreshes.", min=0.2)] = 2.0,
    is_json: Json = False,
) -> None:
    """Show slots, running trials and the queue, refreshed live; once and as plain text where output is no terminal.

    Keys: q quits, s changes the order, r reverses it, / filters (Enter ends the filter, Esc removes it), arrows scroll.
    """
    from gangline.cli.output.top_screen import SORTS, Screen, selected  # noqa: PLC0415 - loads rich

    if sort not in SORTS:
        raise invalid("top.sort", f"--sort {sort} is no order; choose one of {', '.join(SORTS)}")
    screen = Screen(sort=sort, pattern=pattern)
    with connect() as client:
        if is_terminal() and not is_json:
            _watch(client, screen, interval, (workspace, project))
            return
        glance = _look(client, workspace, project)
    tasks = selected(glance.tasks, screen)
    show({"tasks": tasks, "agents": glance.agents}, is_json, lambda: _plain_lines(glance, screen))


def _look(client: Client, workspace: str = "", project: str = "") -> Glance:
    from gangline.cli.output.top_screen import Glance  # noqa: PLC0415

    tasks, agents = client.list_tasks(workspace=workspace, project=project), client.list_agents()
    return Glance(tuple(tasks), tuple(agents), time.time())


def _plain_lines(glance: Glance, screen: Screen) -> list[str]:
    from gangline.cli.output.table_layout import lay_out, line_of  # noqa: PLC0415 - together with the screen
    from gangline.cli.output.top_screen import COLUMNS, rows_of, selected, summary_lines  # noqa: PLC0415

    tasks = selected(glance.tasks, screen)
    if not tasks:
        return [*summary_lines(glance), "nothing runs and nothing waits"]
    return [*summary_lines(glance), *map(line_of, lay_out(COLUMNS, rows_of(tasks, glance.at), None))]


class _Refresh:
    """Asks the gateway in a thread, so that keys work while an answer is late. glance: the newest one. home: the names
    of the workspace and the project whose tasks are shown; empty for all."""

    def __init__(self, client: Client, seconds: float, home: tuple[str, str]) -> None:
        self.glance = _look(client, *home)
        self._home = home
        self._client = client
        self._seconds = seconds
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refresh", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ends.set()

    def _run(self) -> None:
        while not self._ends.wait(self._seconds):
            try:
                self.glance = _look(self._client, *self._home)
            except GanglineError as error:
                self.glance = replace(self.glance, problem=error.message)


def _watch(client: Client, screen: Screen, seconds: float, home: tuple[str, str]) -> None:
    from gangline.cli.output.keyboard import Keyboard  # noqa: PLC0415 - only a terminal needs it
    from gangline.cli.output.live import full_screen  # noqa: PLC0415 - loads rich
    from gangline.cli.output.top_screen import draw, press  # noqa: PLC0415

    refresh = _Refresh(client, seconds, home)
    try:
        with full_screen() as canvas, Keyboard() as keyboard:
            while True:
                canvas.show(draw(refresh.glance, screen, canvas.width, canvas.height))
                for key in keyboard.read(_FRAME_SECONDS):
                    pressed = press(screen, key, refresh.glance, canvas.height)
                    if pressed is None:
                        return
                    screen = pressed
    finally:
        refresh.end()
