"""`gangline notebook ...`: Jupyter on slots, which a browser reaches through a gateway."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.browser import open_privately
from gangline.cli.option_record import spread
from gangline.cli.output.terminal import mention, say
from gangline.cli.shared import ExperimentId, connect, new_group, say_on_interrupt
from gangline.cli.task.command import NewTask, add_commands, check_kind
from gangline.errors import ErrorKind, GanglineError

if TYPE_CHECKING:
    from gangline.client import Client
    from gangline.domain.view import TaskAccess

app = new_group("Run Jupyter on slots.")

# Between two questions whether a task is ready.
_PAUSE_SECONDS = 0.3
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the address only.")]


@app.command("start")
@spread(options=NewTask)
def start_notebook(options: NewTask, is_quiet: NoBrowser = False) -> None:
    """Start Jupyter on slots, wait until it answers, and open it in a browser.

    The agent's environment, or that of environment.python, has to have jupyter. Ctrl-C leaves it running.
    """
    values = options.read_settings()
    with connect() as client:
        number = options.start(client, "NOTEBOOK", values)
        if options.is_detached:
            return
        _open(client, number, is_quiet=is_quiet)


@app.command("open")
def open_notebook(number: ExperimentId, is_quiet: NoBrowser = False) -> None:
    """Open a notebook in a browser, once it answers."""
    with connect() as client:
        check_kind(client, number, "NOTEBOOK")
        _open(client, number, is_quiet=is_quiet)


def _open(client: Client, number: int, *, is_quiet: bool) -> None:
    access = await_task(client, number, "NOTEBOOK")
    addresses = [each.http_address for each in client.get_cluster().services if each.kind == "gateway"]
    host = client.login.http_address or next((address for address in addresses if address), "")
    url = f"{client.login.http_scheme}://{host}{access.path}"
    say([url])
    if not is_quiet:
        open_privately(url)


def await_task(client: Client, number: int, kind_name: str) -> TaskAccess:
    """Returns once the task can be reached. Raises GanglineError `task.over` when it has ended instead."""
    noun, is_told = kind_name.lower(), False
    with say_on_interrupt(f"{noun} {number} goes on; open it with: gangline {noun} open {number}"):
        while not (access := client.get_task_access(number)).is_ready:
            view = check_kind(client, number, kind_name)
            if view.experiment.outcome is not None:
                text = f"{noun} {number} has ended: {view.experiment.reason}"
                raise GanglineError("task.over", text, ErrorKind.UNAVAILABLE)
            if not is_told:
                is_told = True
                mention(f"{noun} {number} starts; if it waits, this says why: gangline job explain {number}")
            time.sleep(_PAUSE_SECONDS)
    return access


add_commands(app, "NOTEBOOK")
