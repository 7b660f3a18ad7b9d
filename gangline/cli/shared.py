"""The parts that commands share: the connection, common options, and printing records as text or JSON."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gangline.cli.output.terminal import complain, mention, say, say_json, say_table
from gangline.domain.state import State
from gangline.errors import GanglineError, invalid

if TYPE_CHECKING:
    from gangline.cli.output.table_layout import Column
    from gangline.client import Client, Created

R = TypeVar("R")
# The largest id that the wire carries.
MOST_ID = 2**63 - 1
# How the parser begins an error about a whole configuration.
_WHOLE = "the configuration"
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show every column whole on a terminal, even where lines wrap.")]
ExperimentId = Annotated[int, typer.Argument(metavar="ID", help="The number of the experiment.", min=1, max=MOST_ID)]
Seed = Annotated[
    int | None,
    typer.Option(help="The seed where the file leaves it open, as preview-search shows it.", min=0, max=2**31 - 1),
]
InWorkspace = Annotated[str, typer.Option("--workspace", metavar="NAME", help="Only those in this workspace.")]
InProject = Annotated[str, typer.Option("--project", metavar="NAME", help="Only those in projects of this name.")]
Template = Annotated[
    str, typer.Option(metavar="NAME", help="A template, whose settings the YAML overrides; see gangline template list.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="Another value for a dotted key; may be repeated."),
]
Paused = Annotated[bool, typer.Option("--paused", help="Start nothing before it is activated.")]
TrialId = Annotated[str, typer.Option("--trial", metavar="ID", help="Only this trial, as 7.1.")]


def new_group(help_text: str) -> typer.Typer:
    return typer.Typer(help=help_text, no_args_is_help=True, rich_markup_mode=None)


@contextmanager
def connect(
    retry_seconds: float | None = None,
    *,
    address: str | None = None,
    token: str | None = None,
    ca_file: str | None = None,
) -> Iterator[Client]:
    """Opens a client, by default for the cluster that the environment or the login file names. The arguments are those
    of the client."""
    # Without it a connection that breaks with the gateway's death prints grpc's own lines between those of a command.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from gangline.cli.output.progress import Bars  # noqa: PLC0415
    from gangline.client import Client  # noqa: PLC0415 - grpc takes a quarter of a second to load

    with (
        Bars() as bars,
        Client(address, token, retry_seconds=retry_seconds, on_progress=bars, ca_file=ca_file) as client,
    ):
        yield client


def show(records: Any, is_json: bool, lines: Callable[[], Iterable[str]], *, flush: bool = False) -> None:
    if is_json:
        say_json(records, flush=flush)
    else:
        say(lines(), flush=flush)


def show_table(
    records: Any,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    empty: str,
    *,
    is_json: bool,
    is_wide: bool,
) -> None:
    """Prints a table. empty: the text for no rows, in place of headings alone."""
    if is_json or not rows:
        show(records, is_json, lambda: [empty])
    else:
        say_table(columns, rows, is_wide=is_wide)


def add_list(
    group: typer.Typer,
    help_text: str,
    fetch: Callable[[Client], Sequence[R]],
    columns: Sequence[Column],
    row: Callable[[R, float], Sequence[Any]],
    *,
    empty: str,
) -> None:
    """Adds `list`, also called `ls`, to a group of commands. row: returns the cells of a record at the present time, in
    Unix seconds. empty: as in `show_table`."""

    @group.command("list", help=help_text)
    @group.command("ls", help=help_text, hidden=True)
    def list_records(is_json: Json = False, is_wide: Wide = False) -> None:
        with connect() as client:
            records = fetch(client)
        now = time.time()
        show_table(records, columns, [row(record, now) for record in records], empty, is_json=is_json, is_wide=is_wide)


def format_instant(at: float) -> str:
    """Returns the local time of day of Unix seconds, with the date when it is another day."""
    try:
        local, today = time.localtime(at), time.localtime()
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"
    return time.strftime("%H:%M:%S" if local[:3] == today[:3] else "%Y-%m-%d %H:%M", local)


@contextmanager
def say_on_interrupt(text: str) -> Iterator[None]:
    """Turns Ctrl-C into a line that says what exists or goes on, and into exit status 130."""
    try:
        yield
    except KeyboardInterrupt:
        # The terminal shows ^C at the start of the line, so the message begins on the next one.
        mention("")
        mention(text)
        raise typer.Exit(130) from None


@contextmanager
def naming_file(config: Path) -> Iterator[None]:
    """Names the file in an error about the whole of it. Other errors have a line or a key of it."""
    try:
        yield
    except GanglineError as error:
        if error.code != "config.wrong_type" or not error.message.startswith(_WHOLE):
            raise
        raise error.reworded(f"{config}{error.message.removeprefix(_WHOLE)}") from error


def warn(text: str) -> None:
    complain("warning", text)


def show_created(created: Created, text: str, is_json: bool) -> None:
    """Says that an experiment was made or goes on, and how to follow it, or how to activate one that is paused."""
    number = created.experiment.id
    follow, activate = f"gangline experiment logs -f {number}", f"gangline experiment activate {number}"
    how = f"it is paused; activate it: {activate}" if waits_to_be_activated(created) else f"follow it: {follow}"
    show(created, is_json, lambda: [text, how])


def waits_to_be_activated(created: Created) -> bool:
    """Returns whether the experiment starts nothing, so that a command that followed it would wait for somebody."""
    return created.experiment.state is State.PAUSED


def trial_of(experiment_id: int, trial_id: str) -> str:
    """Checks that a --trial belongs to the experiment. Raises GanglineError `id.trial`."""
    from gangline.domain.id import parse_trial_id  # noqa: PLC0415 - one command in ten needs it

    if trial_id and parse_trial_id(trial_id)[0] != experiment_id:
        raise invalid("id.trial", f"trial {trial_id} is not one of experiment {experiment_id}")
    return trial_id
