"""PURE: parses an entrypoint into a trial class, a Python script or module, or any other command.

The check before the upload (gangline.config.code_check), the trial runner and the rank that runs the entrypoint use it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_TRIAL = re.compile(r"^([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)$")
_PYTHON = re.compile(r"^(?:.*/)?python(?:3(?:\.\d+)?)?$")
# Modules that start the ranks elsewhere; in the cluster the trial runner does.
LAUNCHERS = (
    "gangline.launch.torch_distributed",
    "determined.launch.torch_distributed",
    "torch.distributed.run",
    "torch.distributed.launch",
)
# Options of torchrun without a value. All others have one, behind a sign of equality or as the next word.
_FLAGS = ("--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "--use-env", "--use_env")
_MODULE_FLAGS = ("-m", "--module")


@dataclass(frozen=True, slots=True)
class TrialClass:
    """module:Class, imported in the rank."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Script:
    """A Python file, run in each rank."""

    path: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """python -m module, run in each rank."""

    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """Any other command, executed as it is."""

    arguments: tuple[str, ...]


Entrypoint = TrialClass | Script | Module | Command


def parse_entrypoint(text: str | Sequence[str]) -> Entrypoint:
    """Parses an entrypoint. A launcher in front of it (Gangline's, Determined's or torchrun) is dropped with its
    options, because every slot gets its rank anyway."""
    words = _split(text) if isinstance(text, str) else tuple(text)
    launched = _without_launcher(words)
    return _parse_command(words) if launched is None else parse_launched(launched)


# Splitting takes a good part of the time of a check, and users submit one entrypoint again and again.
@lru_cache(maxsize=64)
def _split(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def parse_launched(words: Sequence[str]) -> Entrypoint:
    """Parses the words behind a launcher: an entrypoint, or in torchrun's form a Python file or -m and a module."""
    words = tuple(words)
    if words and (words[0].endswith(".py") or words[0] == "-m"):
        return _parse_python(words) or Command(words)
    return _parse_command(words)


def program_of(text: str | Sequence[str]) -> list[str]:
    """Returns the program that takes a rank's place for any other command. A string goes through the shell, a list does
    not. The result is empty for an entrypoint that Python runs in the rank itself."""
    if not isinstance(parse_entrypoint(text), Command):
        return []
    return ["/bin/sh", "-c", text] if isinstance(text, str) else list(text)


def _parse_command(words: tuple[str, ...]) -> Entrypoint:
    if len(words) == 1 and (match := _TRIAL.match(words[0])):
        return TrialClass(match.group(1), match.group(2))
    if not words or not _PYTHON.match(words[0]):
        return Command(words)
    return _parse_python(_without_switches(words[1:])) or Command(words)


def _parse_python(arguments: tuple[str, ...]) -> Entrypoint | None:
    """Returns the script or module among python3's arguments, else None. rest: these arguments."""
    if len(arguments) > 1 and arguments[0] == "-m":
        return Module(arguments[1], arguments[2:])
    return Script(arguments[0], arguments[1:]) if arguments and arguments[0].endswith(".py") else None


def _without_launcher(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """Returns the words behind the launcher; None where there is no launcher."""
    is_python = bool(words) and _PYTHON.match(words[0]) is not None
    if words[:1] == ("torchrun",):
        return _without_options(words[1:])
    if not is_python or words[1:2] != ("-m",) or words[2:3] == () or words[2] not in LAUNCHERS:
        return None
    launched = words[3:]
    if launched[:2] == ("--trial", launched[1] if len(launched) > 1 else ""):
        return launched[1:]
    return _without_options(launched)


def _without_options(words: tuple[str, ...]) -> tuple[str, ...]:
    """Drops the options of torchrun, up to the program or to a separator."""
    while words and words[0].startswith("-") and words[0] not in _MODULE_FLAGS:
        if words[0] == "--":
            return words[1:]
        has_value = "=" not in words[0] and words[0] not in _FLAGS
        words = words[2:] if has_value else words[1:]
    return ("-m", *words[1:]) if words[:1] in (("-m",), ("--module",)) else words


def _without_switches(words: tuple[str, ...]) -> tuple[str, ...]:
    """Drops -u and the like. They control how python prints or imports, which does not matter to a rank."""
    while words and words[0] in ("-u", "-B", "-s", "-E"):
        words = words[1:]
    return words
