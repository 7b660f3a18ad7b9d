"""`gangline cmd ...`: runs a command on slots, and what it shares with `gangline shell` and `gangline notebook`.

Such a task is an experiment of one trial, so `job`, `task`, `experiment` and `trial` know it by the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gangline.cli import logs
from gangline.cli.experiment import do_each, stage_of
from gangline.cli.option_record import spread
from gangline.cli.output.table_layout import Column
from gangline.cli.output.terminal import complain, mention, say
from gangline.cli.output.text import format_age
from gangline.cli.shared import (
    ExperimentId,
    Json,
    Template,
    Wide,
    connect,
    new_group,
    say_on_interrupt,
    show_table,
    warn,
)
from gangline.errors import GanglineError, invalid, not_found
from gangline.text_file import read_text

if TYPE_CHECKING:
    from gangline.client import Client, Experiment, ExperimentView

app = new_group("Run commands on slots.")

_COLUMNS = (
    Column("ID"),
    Column("NAME", 9, least=12),
    Column("STATE", 8, is_state=True),
    Column("OWNER", 4, least=8),
    Column("AGE", 6),
    Column("WHY", 3, least=10),
)
# The exit status of a shell for a command that a signal ended is this number and the signal's.
_SIGNAL_BASE = 128


@dataclass(frozen=True)
class NewTask:
    """The options with which every kind of task is started."""

    context: Annotated[
        Path | None, typer.Option("--context", "-c", metavar="FOLDER", help="A folder whose files the task gets.")
    ] = None
    slots: Annotated[int | None, typer.Option(help="Slots of one machine; default: 1.", min=0)] = None
    pool: Annotated[str, typer.Option(help="The resource pool; default: the cluster's.")] = ""
    priority: Annotated[
        int | None, typer.Option(help="From 1, most urgent, to 99; default: the pool's.", min=1, max=99)
    ] = None
    name: Annotated[str, typer.Option(help="How lists show it; default: its command.")] = ""
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="A variable of its environment; may be repeated."),
    ] = None
    config_file: Annotated[
        Path | None,
        typer.Option(help="A YAML file with Determined's settings of a command."),
    ] = None
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="KEY=VALUE", help="A setting by its dotted key, as resources.slots=2."),
    ] = None
    template: Template = ""
    is_detached: Annotated[bool, typer.Option("--detach", "-d", help="Print its number and leave.")] = False

    def read_settings(self) -> dict[str, Any]:
        """Returns the configuration of a command with Determined's names. Raises GanglineError `config.*`."""
        from gangline.config import parse_overrides  # noqa: PLC0415 - loads pydantic
        from gangline.config.merge import with_overrides  # noqa: PLC0415
        from gangline.config.yaml_document import parse_document  # noqa: PLC0415

        given = (parse_document(read_text(self.config_file)).values or {}) if self.config_file is not None else {}
        if not isinstance(given, Mapping):
            raise invalid("config.wrong_type", f"{self.config_file} holds no mapping such as resources: {{slots: 1}}")
        options: dict[str, Any] = {
            "resources.slots": self.slots,
            "resources.resource_pool": self.pool or None,
            "resources.priority": self.priority,
            "description": self.name or None,
            "environment.environment_variables": list(self.env) if self.env else None,
        }
        overrides = parse_overrides(self.config or ())
        overrides |= {key: value for key, value in options.items() if value is not None}
        return dict(with_overrides(given, overrides)) if overrides else dict(given)

    def start(self, client: Client, kind_name: str, values: Mapping[str, Any]) -> int:
        """Starts a task of this configuration, and shows the warnings. Returns its number, which it prints first if the
        user does not wait for the task."""
        from gangline.domain.state import TaskKind  # noqa: PLC0415 - after grpc's settings

        advice = f"look: gangline {_group(kind_name)} list"
        with say_on_interrupt(f"it is not known whether the {kind_name.lower()} was created; {advice}"):
            task: Experiment = client.start_task(TaskKind(kind_name), values, self.context, template=self.template)
        for warning in task.warnings:
            warn(warning)
        if self.is_detached:
            say([str(task.id)])
        return task.id


TaskIds = Annotated[list[int], typer.Argument(metavar="ID...", help="The numbers that the list shows.", min=1)]
IsAll = Annotated[bool, typer.Option("--all", "-a", help="Ended ones as well.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until it has ended.")]


@app.command()
@spread(options=NewTask)
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="One word is a line for /bin/sh.")],
    options: NewTask,
) -> None:
    """Run a command on slots, print what it prints, and exit with its exit status.

    It has one attempt. Exit status 1 also where it could not run. Ctrl-C leaves it running.
    """
    values = options.read_settings() | {"entrypoint": command}
    with connect() as client:
        number = options.start(client, "COMMAND", values)
        if options.is_detached:
            return
        mention(f"command {number} is submitted; if it waits, this says why: gangline job explain {number}")
        goes_on = f"command {number} goes on; read on with: gangline cmd logs -f {number}; "
        with say_on_interrupt(f"{goes_on}end it with: gangline cmd kill {number}"):
            _print_output(client, number)
            view = client.wait_experiment(number)
    status = exit_status(view)
    if status:
        complain("error", f"command {number}: {view.experiment.reason}")
        raise typer.Exit(status)


def _print_output(client: Client, number: int) -> None:
    """Prints the lines of the command, each to the output that it was written to, and warnings of the runner. How it
    ended is reported elsewhere."""
    for entry in client.stream_logs(number, follow=True):
        if entry.stream == "stdout":
            say([entry.text], flush=True)
        elif entry.stream == "stderr":
            mention(entry.text)
        elif entry.level == "WARNING":
            warn(entry.text)


def exit_status(view: ExperimentView) -> int:
    """Returns the exit status of the command, as a shell would give it; 1 where it did not run to its end."""
    if view.experiment.outcome == "COMPLETED":
        return 0
    failure = view.trials[0].trial.last_failure if view.trials else None
    if failure is not None and failure.exit_code:
        return failure.exit_code
    if failure is not None and failure.signal:
        return _SIGNAL_BASE + failure.signal
    return 1


def add_commands(group: typer.Typer, kind_name: str) -> None:
    """Adds `list`, `describe`, `logs` and `kill` to the commands of a kind of task."""
    noun = kind_name.lower()

    @group.command("list", help=f"List {noun}s, newest first.")
    @group.command("ls", hidden=True)
    def list_them(is_all: IsAll = False, is_json: Json = False, is_wide: Wide = False) -> None:
        from gangline.domain.experiment import ExperimentFilter  # noqa: PLC0415
        from gangline.domain.state import State, TaskKind  # noqa: PLC0415

        states = () if is_all else tuple(state for state in State if state is not State.TERMINAL)
        wanted = ExperimentFilter(states=states, task_kinds=(TaskKind(kind_name),))
        with connect() as client:
            tasks = client.list_experiments(1000, wanted=wanted)
        now = time.time()
        rows = [
            (task.id, task.name, stage_of(task), task.owner, format_age(task.created_at, now), task.reason)
            for task in tasks
        ]
        show_table(tasks, _COLUMNS, rows, f"no {noun}s", is_json=is_json, is_wide=is_wide)

    @group.command("describe", help=f"Show one {noun} and its configuration.")
    def describe_it(number: ExperimentId, is_json: Json = False) -> None:
        from gangline.cli.experiment import describe  # noqa: PLC0415 - the same view

        with connect() as client:
            check_kind(client, number, kind_name)
        describe(number, is_json)

    @group.command("logs", help=f"Print the output of a {noun}, each line with its time.")
    def print_logs(
        number: ExperimentId,
        *,
        follow: Follow = False,
        tail: logs.Tail = 0,
        since: logs.Since = "",
        until: logs.Until = "",
        level: logs.Level = "",
        grep: logs.Grep = "",
        is_json: Json = False,
    ) -> None:
        with connect() as client:
            check_kind(client, number, kind_name)
        selection = logs.LineSelection(tail, since, until, level=level, grep=grep)
        logs.print_logs(number, "", selection, follow=follow, is_json=is_json)

    @group.command("kill", help=f"End {noun}s at once.")
    def kill(numbers: TaskIds, is_json: Json = False) -> None:
        with connect() as client:
            do_each(numbers, _killing(client, kind_name), is_json, lambda task: f"{noun} {task.id}: {stage_of(task)}")


def _group(kind_name: str) -> str:
    """Returns the group of commands for this kind of task."""
    return "cmd" if kind_name == "COMMAND" else kind_name.lower()


def _killing(client: Client, kind_name: str) -> Callable[[int], Any]:
    def kill(number: int) -> Any:
        check_kind(client, number, kind_name)
        return client.kill_experiment(number)

    return kill


def check_kind(client: Client, number: int, kind_name: str) -> ExperimentView:
    """Returns the view of a task. Raises GanglineError `task.not_found` for another kind of work, and for a number that
    nothing has."""
    noun = kind_name.lower()
    advice = f"list them with: gangline {_group(kind_name)} list --all"
    try:
        view = client.get_experiment(number)
    except GanglineError as error:
        if error.code != "experiment.not_found":
            raise
        raise not_found("task.not_found", f"there is no {noun} {number}; {advice}") from error
    if view.experiment.task_kind != kind_name:
        raise not_found("task.not_found", f"{number} is no {noun}; {advice}")
    return view


add_commands(app, "COMMAND")
