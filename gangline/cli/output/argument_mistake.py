"""Words a mistake in the arguments of a command as one line that names the argument, the mistake and the help.

typer shows such a mistake as a box with the command's usage, in its own sentences. This module replaces
the box. typer has no public names for most of its errors, so they are told apart by their attributes and texts; an
unknown one keeps typer's text. Called by gangline.cli.main.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

import typer

from gangline.errors import GanglineError, invalid

# typer.BadParameter is public, its base for all wrong arguments is not.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def is_help(error: Exception) -> bool:
    """Returns whether the error shows the help of a group that was called without a command."""
    return type(error).__name__ == "NoArgsIsHelpError"


def read_usage(error: Exception) -> GanglineError:
    """Converts a mistake in the arguments to the error that the CLI prints."""
    context: Any = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "gangline"
    words = _words_of(error, context)
    return invalid("cli.usage", f"{words}{'' if words.endswith('?') else ';'} see {command} --help")


def _words_of(error: Any, context: Any) -> str:
    text = str(error.message or "")
    parameter = getattr(error, "param", None)
    if type(error).__name__ == "MissingParameter":
        return f"{_name_of(error, parameter)} is missing"
    if parameter is not None or getattr(error, "param_hint", None):
        return f"{_name_of(error, parameter)}: {_value_words(error)}"
    if hasattr(error, "possibilities"):
        advice = f"; did you mean {' or '.join(sorted(error.possibilities))}?" if error.possibilities else ""
        return f"there is no option {error.option_name}{advice}"
    if hasattr(error, "option_name"):
        return f"{error.option_name} {'takes no value' if 'not take' in text else 'needs a value'}"
    unknown = re.match(r"No such command '(.*?)'\.", text)
    if unknown is not None:
        names = [name for name, command in getattr(context.command, "commands", {}).items() if not command.hidden]
        nearest = difflib.get_close_matches(unknown[1], names, n=1)
        advice = f"did you mean {nearest[0]}?" if nearest else f"the commands are {', '.join(names)}"
        return f"there is no command {unknown[1]!r}; {advice}"
    further = re.match(r"Got unexpected extra arguments? ?(?:\(s\))? ?\((.*)\)", text)
    return f"too many arguments: {further[1]}" if further is not None else _sentence(text)


def _name_of(error: Any, parameter: Any) -> str:
    if error.param_hint is not None or parameter is None:
        hint = error.param_hint
        return hint if isinstance(hint, str) else " / ".join(hint or ())
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.metavar or parameter.name.upper()).strip("[]").removesuffix("...")


# The types by typer's names, which has a range after the name of a number that has limits.
_EXPECTED = {"int": "an integer", "integer": "an integer", "float": "a number", "boolean": "true or false"}


def _value_words(error: Any) -> str:
    """Returns our own words for a value that typer has refused; its words where they are as plain."""
    text = str(error.message)
    wrong_type = re.match(r"('.*') is not a valid (\w+)( range)?\b", text, re.DOTALL)
    if wrong_type is not None and wrong_type[2] in _EXPECTED:
        return f"expected {_EXPECTED[wrong_type[2]]}, not {wrong_type[1][:200]}"
    beyond = re.match(r"(\S+) is not in the range (.*?)\.?$", text)
    if beyond is not None:
        return f"{_limit(float(beyond[1]), beyond[2])}, not {beyond[1].removesuffix('.0')}"
    path = re.match(r"\w+ ('.*') is a (file|directory)\.?$", text)
    if path is None:
        return _sentence(text)
    return f"{path[1]} is a {'file; give a folder' if path[2] == 'file' else 'folder; give a file'}"


def _limit(value: float, limits: str) -> str:
    """Returns the limit that the value breaks. limits: as in 0<=x<=10, x>=0 or x<=10."""
    low = re.match(r"(\S+?)<=?x", limits) or re.search(r"x>=?(\S+)", limits)
    high = re.search(r"x<=?(\S+)", limits)
    if high is not None and (low is None or value >= float(low[1])):
        return f"must be at most {high[1]}"
    return f"must be at least {low[1]}" if low is not None else f"must be in {limits}"


def _sentence(text: str) -> str:
    return (text[:1].lower() + text[1:]).removesuffix(".")
