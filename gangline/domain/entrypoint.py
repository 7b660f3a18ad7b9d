"""PURE: what an entrypoint names: a trial class, a Python script or module, or any other command.

The check before the upload (gangline.config.code_check), the trial runner and the rank that runs it read an entrypoint
with this.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_TRIAL = re.compile(r"^([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)$")
_PYTHON = re.compile(r"^(?:.*/)?python(?:3(?:\.\d+)?)?$")
LAUNCHERS = ("gangline.launch.torch_distributed", "determined.launch.torch_distributed")


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
    """Anything else, executed as it is."""

    arguments: tuple[str, ...]


Entrypoint = TrialClass | Script | Module | Command


def parse_entrypoint(text: str | Sequence[str]) -> Entrypoint:
    """A launcher of torch in front (ours or Determined's) is dropped: every slot gets its rank anyway."""
    words = _split(text) if isinstance(text, str) else tuple(text)
    launched = _without_launcher(words)
    return _parse_command(words) if launched is None else parse_launched(launched)


# Splitting takes a good part of the time of a check, and users submit one entrypoint again and again.
@lru_cache(maxsize=64)
def _split(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def parse_launched(words: Sequence[str]) -> Entrypoint:
    """What stands behind a launcher: as an entrypoint, and as torchrun has it, a Python file or -m and a module."""
    words = tuple(words)
    if words and (words[0].endswith(".py") or words[0] == "-m"):
        return _parse_python(words) or Command(words)
    return _parse_command(words)


def program_of(text: str | Sequence[str]) -> list[str]:
    """What takes a rank's place for any other command: a line goes through the shell, a list does not. Empty for what
    Python runs in the rank itself."""
    if not isinstance(parse_entrypoint(text), Command):
        return []
    return ["/bin/sh", "-c", text] if isinstance(text, str) else list(text)


def _parse_command(words: tuple[str, ...]) -> Entrypoint:
    if len(words) == 1 and (match := _TRIAL.match(words[0])):
        return TrialClass(match.group(1), match.group(2))
    if not words or not _PYTHON.match(words[0]):
        return Command(words)
    return _parse_python(_without_switches(words[1:])) or Command(words)


def _parse_python(rest: tuple[str, ...]) -> Entrypoint | None:
    """rest: what python3 is called with."""
    if len(rest) > 1 and rest[0] == "-m":
        return Module(rest[1], rest[2:])
    return Script(rest[0], rest[1:]) if rest and rest[0].endswith(".py") else None


def _without_launcher(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """None where there is none."""
    is_python = bool(words) and _PYTHON.match(words[0]) is not None
    if not is_python or words[1:2] != ("-m",) or words[2:3] == () or words[2] not in LAUNCHERS:
        return None
    rest = words[3:]
    if rest[:2] == ("--trial", rest[1] if len(rest) > 1 else ""):
        rest = rest[1:]
    return rest[1:] if rest[:1] == ("--",) else rest


def _without_switches(words: tuple[str, ...]) -> tuple[str, ...]:
    """-u and the like say how python prints; they do not matter to a rank."""
    while words and words[0] in ("-u", "-B", "-s", "-E"):
        words = words[1:]
    return words
