"""PURE: finds the command that a user means where the program has none of this name, or where an id is of another kind.

Users type the words of other systems (`ps`, `squeue`), leave out the group (`logs 6`), or give a trial's id to a
command of experiments. Called by gangline.cli.main when typer has refused the arguments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

# Words of other systems, and the commands that do the same here.
_SYNONYMS: dict[str, tuple[str, ...]] = {
    "help": ("--help",),
    "version": ("--version",),
    "ps": ("experiment list", "task list"),
    "submit": ("experiment create",),
    "sbatch": ("experiment create",),
    "srun": ("cmd run",),
    "run": ("experiment create", "cmd run"),
    "exec": ("cmd run",),
    "stop": ("experiment cancel",),
    "scancel": ("experiment cancel",),
    "resume": ("experiment activate",),
    "queue": ("job list",),
    "squeue": ("job list",),
    "sinfo": ("agent list",),
    "nodes": ("agent list",),
    "start": ("up",),
}
# Where many groups have a command of the name, the first ones are named.
_MOST_NAMED = 3
_MOST_CHARACTERS = 100


def find_command(arguments: Sequence[str], commands_by_group: Mapping[str, Sequence[str]]) -> str | None:
    """Returns the sentence that names the nearest command; None where no other command is near.

    commands_by_group: the visible commands of each group, the groups in the order of the help. A command without a
    group is a group without commands.
    """
    if not arguments or arguments[0].startswith("-"):
        return None
    word, rest = arguments[0], arguments[1:]
    if word not in commands_by_group:
        found = _of_groups(word, rest, commands_by_group) or _SYNONYMS.get(word, ())
        return f"there is no command {word!r}; {_question(found, rest)}" if found else None
    given = [argument for argument in rest[1:] if not argument.startswith("-")]
    if word == "experiment" and given and _is_trial(given[0]) and rest[0] in commands_by_group.get("trial", ()):
        return f"{given[0]} is a trial and no experiment; {_question([f'trial {rest[0]}'], rest[1:])}"
    return None


def _of_groups(word: str, rest: Sequence[str], commands_by_group: Mapping[str, Sequence[str]]) -> list[str]:
    groups = [group for group, commands in commands_by_group.items() if word in commands]
    kinds = [_kind_of(argument) for argument in rest]
    for group in groups:
        if group in kinds:
            return [f"{group} {word}"]
    return [f"{group} {word}" for group in groups[:_MOST_NAMED]]


def _kind_of(argument: str) -> str:
    if argument.isascii() and argument.isdigit():
        return "experiment"
    return "trial" if _is_trial(argument) else ""


def _is_trial(argument: str) -> bool:
    return re.fullmatch(r"\d+\.\d+", argument, re.ASCII) is not None


def _question(commands: Sequence[str], rest: Sequence[str]) -> str:
    """Repeats the arguments where one command alone is meant."""
    if len(commands) > 1:
        return f"did you mean {' or '.join(f'gangline {command}' for command in commands)}?"
    line = shlex.join(["gangline", *commands[0].split(), *rest])
    return f"did you mean {line if len(line) <= _MOST_CHARACTERS else f'gangline {commands[0]}'}?"
