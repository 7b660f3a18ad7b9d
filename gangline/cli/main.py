"""The program `gangline`: assembles the groups of commands, and turns errors into one line and an exit status.

Exit status: 0 for success; 2 for mistakes that the user can correct (arguments, configuration, an id that does not
exist, a wrong token); 1 for a failure (the cluster is away, the experiment did not complete); 3 for a change of which
it is not known whether it was made; 130 for Ctrl-C.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NamedTuple

import typer

import gangline
from gangline.cli.nearest_command import find_command
from gangline.cli.output.argument_mistake import UsageError, is_help, read_usage
from gangline.cli.output.terminal import clean_output, complain, say
from gangline.errors import Effect, ErrorKind, GanglineError, invalid

# Kinds with exit status 1; all others are mistakes that the user can correct.
_FAILURES = (ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT, ErrorKind.INTERNAL)


class _Entry(NamedTuple):
    """Describes a command of the program, or a group of commands."""

    module: str
    name: str  # the function or the variable with the group, in this module of gangline.cli
    is_group: bool = False
    aliases: tuple[str, ...] = ()
    further_modules: tuple[str, ...] = ()  # modules that add commands to the group when they are imported


_ENTRIES = {
    "up": _Entry("cluster", "up"),
    "down": _Entry("cluster", "down"),
    "status": _Entry("cluster", "status"),
    "login": _Entry("cluster", "login"),
    "open": _Entry("open", "open_page"),
    "top": _Entry("top", "top"),
    "tensorboard": _Entry("tensorboard", "tensorboard"),
    "usage": _Entry("usage", "usage"),
    "audit": _Entry("account.audit", "audit"),
    "preview-search": _Entry("creation.preview", "preview_search"),
    "plan": _Entry("plan", "plan"),
    "migrate": _Entry("migrate", "app", True),
    "simulate": _Entry("simulate", "simulate"),
    "experiment": _Entry(
        "experiment",
        "app",
        True,
        ("e", "exp"),
        ("experiment_set", "experiment_action", "experiment_restart", "project.move"),
    ),
    "trial": _Entry("trial", "app", True),
    "task": _Entry("task.task", "app", True, ("t",)),
    "cmd": _Entry("task.command", "app", True, ("command",)),
    "notebook": _Entry("task.notebook", "app", True),
    "shell": _Entry("task.shell", "app", True),
    "job": _Entry("job", "app", True, ("j",)),
    "agent": _Entry("agent", "app", True, ("a",)),
    "slot": _Entry("agent", "slot_app", True, ("s",)),
    "checkpoint": _Entry("checkpoint", "app", True, ("c",)),
    "fusion": _Entry("fusion", "app", True),
    "workspace": _Entry("project.workspace", "app", True, ("w",)),
    "project": _Entry("project.project", "app", True, ("p",)),
    "model": _Entry("project.model", "app", True, ("m",)),
    "template": _Entry("project.template", "app", True, ("tpl",)),
    "user": _Entry("account.user", "app", True, ("u",)),
    "quota": _Entry("account.quota", "app", True),
    "group": _Entry("account.group", "app", True),
    "role": _Entry("account.role", "app", True),
    "token": _Entry("account.token", "app", True, ("tkn",)),
    "certs": _Entry("certs", "app", True),
}
# The options of these are those of the program that they run, including --help.
_OPTIONS_OF_OTHERS = ("simulate",)


def assemble(arguments: Sequence[str] = ()) -> typer.Typer:
    """Makes the program for these arguments: with all commands, or only with the one whose name they begin with.

    To load every module and to read the options of every command takes 80 ms, a third of what a command takes.
    """
    program = typer.Typer(
        name="gangline",
        epilog="Exit status: 0 success, 1 failure, 2 something to correct in what was asked, 3 not known whether it "
        "was done, 130 interrupted.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    program.callback()(_options)
    called = {name: entry for name, entry in _ENTRIES.items() if arguments and arguments[0] in (name, *entry.aliases)}
    for name, entry in (called or _ENTRIES).items():
        command = getattr(import_module(f"gangline.cli.{entry.module}"), entry.name)
        for module in entry.further_modules:
            import_module(f"gangline.cli.{module}")
        if entry.is_group:
            command = _narrow(command, arguments[1:2]) if called else command
            program.add_typer(command, name=name)
            for alias in entry.aliases:
                program.add_typer(command, name=alias, hidden=True)
        elif name in _OPTIONS_OF_OTHERS:
            settings = {"allow_extra_args": True, "ignore_unknown_options": True}
            program.command(name, add_help_option=False, context_settings=settings)(command)
        else:
            program.command(name)(command)
    return program


def _narrow(group: typer.Typer, word: Sequence[str]) -> typer.Typer:
    """Returns the group with nothing but the command of this name, if it has one. word: one, or none."""
    commands = [command for command in group.registered_commands if [_name_of(command)] == list(word)]
    if not commands:
        return group
    narrowed = copy.copy(group)
    narrowed.registered_commands, narrowed.registered_groups = commands, []
    return narrowed


def _name_of(command: typer.models.CommandInfo) -> str:
    return command.name or (command.callback.__name__.replace("_", "-") if command.callback else "")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        say([gangline.__version__])
        raise typer.Exit


def _options(
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
            code = assemble(arguments)(args=list(arguments), prog_name="gangline", standalone_mode=False)
    except GanglineError as error:
        return _show(error)
    except UsageError as error:
        return _show_usage(error, arguments)
    except typer.Abort:
        return _show(GanglineError("cli.no_answer", "the question got no answer; nothing was done", ErrorKind.INTERNAL))
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return code if isinstance(code, int) else 0


def _show_usage(error: Exception, arguments: Sequence[str]) -> int:
    """Shows the help where a group was called without a command, else the mistake. Returns the exit status."""
    if not is_help(error):
        nearest = find_command(_without_alias(arguments), _commands_by_group())
        return _show(invalid("cli.usage", nearest) if nearest else read_usage(error))
    say(str(error).splitlines())
    return 2


def _without_alias(arguments: Sequence[str]) -> Sequence[str]:
    names = [name for name, entry in _ENTRIES.items() if arguments and arguments[0] in entry.aliases]
    return [*names, *arguments[1:]] if names else arguments


def _commands_by_group() -> dict[str, list[str]]:
    """Returns the visible commands of each group. It loads all modules, so only a mistake may call it."""
    commands_by_group: dict[str, list[str]] = {name: [] for name in _ENTRIES}
    for group in assemble().registered_groups:
        if group.name in commands_by_group and group.typer_instance is not None:
            commands = [command for command in group.typer_instance.registered_commands if not command.hidden]
            commands_by_group[group.name] = [_name_of(command) for command in commands]
    return commands_by_group


def _show(error: GanglineError) -> int:
    complain("error", error.message)
    if error.request_id and error.effect is Effect.UNKNOWN:
        return 3
    return 1 if error.kind in _FAILURES else 2
