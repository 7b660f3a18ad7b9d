"""The program `gangline`: assembles the groups of commands, and turns errors into one line and an exit status.

Exit status: 0 for success; 2 for mistakes that the user can correct (arguments, configuration, an id that does not
exist, a wrong token); 1 for a failure (the cluster is away, the experiment did not complete); 3 for a change of which
it is not known whether it was made; 130 for Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import gangline
from gangline.cli import (
    agent,
    checkpoint,
    cluster,
    experiment,
    experiment_removal,
    experiment_set,
    fusion,
    job,
    search,
    simulate,
    task,
    tensorboard,
    top,
    trial,
    usage,
)
from gangline.cli.output.argument_mistake import UsageError, is_help, read_usage
from gangline.cli.output.terminal import clean_output, complain, say
from gangline.errors import Effect, ErrorKind, GanglineError

# Kinds with exit status 1; all others are mistakes that the user can correct.
_FAILURES = (ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT, ErrorKind.INTERNAL)

app = typer.Typer(
    name="gangline",
    epilog="Exit status: 0 success, 1 failure, 2 something to correct in what was asked, 3 not known whether it was "
    "done, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(cluster.up)
app.command()(cluster.down)
app.command()(cluster.status)
app.command()(cluster.login)
app.command()(top.top)
app.command()(tensorboard.tensorboard)
app.command()(usage.usage)
app.command("preview-search")(search.preview_search)
# Its options are those of the program that it runs, including --help.
app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    simulate.simulate
)
experiment.app.add_typer(experiment_set.app, name="set")
for _command in (experiment_removal.delete, experiment_removal.archive, experiment_removal.unarchive):
    experiment.app.command()(_command)
for _group, _name, _aliases in (
    (experiment.app, "experiment", ("e", "exp")),
    (trial.app, "trial", ()),
    (task.app, "task", ("t",)),
    (job.app, "job", ("j",)),
    (agent.app, "agent", ("a",)),
    (agent.slot_app, "slot", ("s",)),
    (checkpoint.app, "checkpoint", ("c",)),
    (fusion.app, "fusion", ()),
):
    app.add_typer(_group, name=_name)
    for _alias in _aliases:
        app.add_typer(_group, name=_alias, hidden=True)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        say([gangline.__version__])
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Trains PyTorch models on a cluster of GPU hosts."""


def run(arguments: Sequence[str]) -> int:
    """Runs the program with these arguments. Returns its exit status."""
    try:
        with clean_output():
            # Without the standalone mode typer raises its errors, and returns the code of typer.Exit.
            code = app(args=list(arguments), prog_name="gangline", standalone_mode=False)
    except GanglineError as error:
        return _show(error)
    except UsageError as error:
        return _show_usage(error)
    except typer.Abort:
        return _show(GanglineError("cli.no_answer", "the question got no answer; nothing was done", ErrorKind.INTERNAL))
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return code if isinstance(code, int) else 0


def _show_usage(error: Exception) -> int:
    """Shows the help where a group was called without a command, else the mistake. Returns the exit status."""
    if not is_help(error):
        return _show(read_usage(error))
    say(str(error).splitlines())
    return 2


def _show(error: GanglineError) -> int:
    complain("error", error.message)
    if error.request_id and error.effect is Effect.UNKNOWN:
        return 3
    return 1 if error.kind in _FAILURES else 2


def main() -> None:
    sys.exit(run(sys.argv[1:]))
