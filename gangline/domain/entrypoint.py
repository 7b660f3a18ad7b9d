"""PURE: parses an entrypoint into a trial class, a Python script or module, or any other command.

Owns also how often it runs. A trial class, and anything behind a launcher of ours, runs in every slot. Everything else
runs once on each machine. The check before the upload (gangline.config.code_check), the trial runner and the rank that
runs the entrypoint use it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_TRIAL = re.compile(r"^([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)$")
_PYTHON = re.compile(r"^(?:.*/)?python(?:3(?:\.\d+)?)?$")
# Modules that start one rank in each slot. For an entrypoint the trial runner does that in their place.
LAUNCHERS = ("gangline.launch.torch_distributed", "determined.launch.torch_distributed")
# Modules that start workers by themselves, so they are programs of their own and not code of a rank.
_STARTERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
# Launchers of Determined that Gangline does not have, and the way out.
_USE_OURS = "use determined.launch.torch_distributed with determined.pytorch"
_REFUSED = {
    "determined.launch.horovod": f"Horovod is not part of Gangline; {_USE_OURS}, whose gradients are averaged by DDP",
    "determined.launch.deepspeed": f"DeepSpeed is not part of Gangline; {_USE_OURS} and "
    "parallelism: zero1, zero2 or zero3",
    "determined.launch.tensorflow": f"TensorFlow is not part of Gangline; {_USE_OURS}",
}
_OF_DETERMINED = ("determined.launch.", "determined.exec.")
_KNOWN_PROGRAMS = ("determined.launch.torch_distributed", "determined.launch.wrap_rank")
_OPERATOR = re.compile(r"[();<>|&]")
_VARIABLE = re.compile(r"\$\w|\$[({]|`")
_SINGLE_QUOTED = re.compile(r"'[^']*'")
_RUN_MODULE = re.compile(r"(?:^|\s)-m\s*([A-Za-z_][\w.]*)")
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
    """A Python file."""

    path: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """python -m module."""

    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """Any other command, executed as it is."""

    arguments: tuple[str, ...]


Entrypoint = TrialClass | Script | Module | Command


def parse_entrypoint(text: str | Sequence[str]) -> Entrypoint:
    """Parses an entrypoint. A launcher of ours in front of it is dropped with its options, because the trial runner
    starts a rank in every slot then. A string with operators or variables of the shell is a command for the shell."""
    words = _split(text)
    if isinstance(text, str) and (_has_operator(text) or _has_variable(text)):
        return Command(words)
    launch = _split_launcher(words)
    return _parse_command(words) if launch is None else parse_launched(launch.program)


def runs_in_every_slot(text: str | Sequence[str]) -> bool:
    """Whether every slot runs the entrypoint. Otherwise it runs once on each machine, with all slots of the machine."""
    if isinstance(text, str) and _has_operator(text):
        return False
    words = _split(text)
    return _split_launcher(words) is not None or isinstance(_parse_command(words), TrialClass)


def launcher_options(text: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the options of torchrun between the launcher and its program, each with its value. The trial runner
    starts the ranks, so they have no effect. In a line for the shell the launcher itself runs with its options, so the
    result is empty."""
    launch = None if isinstance(text, str) and _has_operator(text) else _split_launcher(_split(text))
    return () if launch is None else launch.options


def refused_launcher(text: str | Sequence[str]) -> str | None:
    """Returns why an entrypoint starts a launcher that Gangline does not have; None if it starts none."""
    line = text if isinstance(text, str) else " ".join(text)
    for name in _RUN_MODULE.findall(line):
        if name in _REFUSED:
            return f"runs {name}: {_REFUSED[name]}"
        if name.startswith(_OF_DETERMINED) and name not in _KNOWN_PROGRAMS:
            return f"runs {name}, which Gangline does not have; {_USE_OURS}"
    return None


def _split(text: str | Sequence[str]) -> tuple[str, ...]:
    return _split_line(text) if isinstance(text, str) else tuple(text)


# Splitting takes a good part of the time of a check, and users submit one entrypoint again and again.
@lru_cache(maxsize=64)
def _split_line(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


@lru_cache(maxsize=64)
def _has_operator(text: str) -> bool:
    """Whether the line has more than one command for the shell, or a redirection. Quoted signs do not count."""
    if _OPERATOR.search(text) is None:
        return False
    return any(_OPERATOR.match(word) for word in shlex.shlex(text, posix=False, punctuation_chars=True))


def _has_variable(text: str) -> bool:
    """Whether the shell replaces a part of the line. Text in single quotes does not count."""
    return _VARIABLE.search(_SINGLE_QUOTED.sub("", text)) is not None


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
    """Returns the script or module among python3's arguments, else None."""
    if len(arguments) > 1 and arguments[0] == "-m":
        if arguments[1] in _STARTERS:
            return None
        return Module(arguments[1], arguments[2:])
    return Script(arguments[0], arguments[1:]) if arguments and arguments[0].endswith(".py") else None


@dataclass(frozen=True, slots=True)
class Launch:
    """The words behind a launcher."""

    options: tuple[str, ...]  # options of torchrun, each with its value
    program: tuple[str, ...]  # command that every rank runs


def _split_launcher(words: tuple[str, ...]) -> Launch | None:
    """Splits the words behind a launcher of ours; None where there is none."""
    is_python = bool(words) and _PYTHON.match(words[0]) is not None
    rest = _without_switches(words[1:])
    if not is_python or rest[:1] != ("-m",) or len(rest) < 2 or rest[1] not in LAUNCHERS:
        return None
    return split_options(rest[2:])


def split_options(words: Sequence[str]) -> Launch:
    """Splits torchrun's options from the program behind them. --trial, -m or a separator may stand before it."""
    rest = tuple(words)
    options: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in _MODULE_FLAGS:
        if rest[0] == "--":
            return Launch(tuple(options), rest[1:])
        if rest[0] == "--trial" or rest[0].startswith("--trial="):
            _, sign, name = rest[0].partition("=")
            return Launch(tuple(options), (name,) if sign else rest[1:])
        has_value = "=" not in rest[0] and rest[0] not in _FLAGS and len(rest) > 1
        options.append(f"{rest[0]}={rest[1]}" if has_value else rest[0])
        rest = rest[2:] if has_value else rest[1:]
    return Launch(tuple(options), ("-m", *rest[1:]) if rest[:1] in (("-m",), ("--module",)) else rest)


def _without_switches(words: tuple[str, ...]) -> tuple[str, ...]:
    """Drops -u and the like. They control how python prints or imports, which does not matter to a rank."""
    while words and words[0] in ("-u", "-B", "-s", "-E"):
        words = words[1:]
    return words
