"""The options that select lines of a log, and the printing of the lines. `experiment logs` and `trial logs` share them,
and the logs of tasks have a part of them.

Owns the meaning of --since and --until: an age counts from the start of the command, and a time without a zone is one
of the user's zone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.terminal import say_json, say_log
from gangline.cli.shared import MOST_ID, connect, warn
from gangline.errors import invalid

if TYPE_CHECKING:
    from gangline.client import LogEntry

_TIMES = "an age such as 30s, 10m, 2h or 1d, or an ISO time such as 2026-11-23T09:00 or 2026-11-23T09:00:00Z"
Since = Annotated[
    str, typer.Option(metavar="TIME", help=f"Only lines of this time or later: {_TIMES}; without a zone in yours.")
]
Until = Annotated[str, typer.Option(metavar="TIME", help="Only lines before this time, written as for --since.")]
Ranks = Annotated[
    list[str] | None,
    typer.Option("--rank", metavar="N", help="Only lines of this rank; repeat it, or write 0,2, for several."),
]
Level = Annotated[
    str,
    typer.Option(help="Only lines of this level and of more severe ones: debug, info, warning, error or critical."),
]
Agents = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="ID", help="Only lines from this agent; repeat it for several."),
]
Grep = Annotated[
    str,
    typer.Option(metavar="PATTERN", help="Only lines in which this pattern of RE2 is found; (?i) ignores the case."),
]
Tail = Annotated[
    int, typer.Option(help="Only the last so many of the lines that match; 0 for all.", min=0, max=MOST_ID)
]

_AGE = re.compile(r"([0-9]{1,9})\s*([smhdw])")
_SECONDS_BY_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
# Five letters each, so that the texts of a log stand in one column.
_SHOWN_LEVELS = {"DEBUG": "DEBUG", "INFO": "INFO ", "WARNING": "WARN ", "ERROR": "ERROR", "CRITICAL": "CRIT "}
_NO_TIME = "-" * len("2026-11-23 09:14:22.123")


@dataclass(frozen=True)
class LineSelection:
    """The options of a command that prints lines of all ranks."""

    tail: Tail = 0
    since: Since = ""
    until: Until = ""
    rank: Ranks = None
    level: Level = ""
    agent: Agents = None
    grep: Grep = ""

    @property
    def is_selective(self) -> bool:
        """Returns whether a line may be left out for what it is."""
        return bool(self.since or self.until or self.rank or self.level or self.agent or self.grep)


def print_logs(experiment_id: int, trial_id: str, selection: LineSelection, *, follow: bool, is_json: bool) -> None:
    """Prints the lines that match all options, oldest first. A warning on standard error follows when none did."""
    now = time.time()
    times = {
        name: parse_time(name, text, now) for name, text in (("--since", selection.since), ("--until", selection.until))
    }
    numbers = parse_ranks(selection.rank or ())
    with connect() as client:
        entries = client.stream_logs(
            experiment_id,
            trial_id,
            selection.tail,
            follow,
            since=times["--since"],
            until=times["--until"],
            ranks=numbers,
            level=selection.level,
            agents=selection.agent or (),
            pattern=selection.grep,
        )
        num_lines = _print(entries, is_json, flush=follow)
    if selection.is_selective and not num_lines:
        warn(f"no line of {f'trial {trial_id}' if trial_id else f'experiment {experiment_id}'} matches")


def parse_time(option: str, text: str, now: float) -> float | None:
    """Returns Unix seconds; None for an empty text. Raises GanglineError `logs.time`."""
    if not text:
        return None
    age = _AGE.fullmatch(text.strip())
    if age is not None:
        return now - int(age.group(1)) * _SECONDS_BY_UNIT[age.group(2)]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise invalid("logs.time", f"{option} {text[:50]!r} is no time; write {_TIMES}") from None


def parse_ranks(texts: Iterable[str]) -> tuple[int, ...]:
    """Returns the ranks that texts such as "0" and "2,3" name. Raises GanglineError `logs.rank`."""
    ranks: list[int] = []
    for text in texts:
        for part in text.split(","):
            number = part.strip()
            if not (number.isascii() and number.isdigit()) or len(number) > 9:
                raise invalid("logs.rank", f"--rank {text[:50]!r} is no rank; ranks are numbers from 0, as in 0 or 0,2")
            ranks.append(int(number))
    return tuple(dict.fromkeys(ranks))


def _print(entries: Iterable[LogEntry], is_json: bool, *, flush: bool) -> int:
    """Returns the number of printed entries."""
    num_lines = 0
    for num_lines, entry in enumerate(entries, 1):  # noqa: B007 - the number of the last one is the result
        if is_json:
            say_json(entry, None, flush=flush)
        else:
            head = f"{format_instant(entry.at)} {_SHOWN_LEVELS[entry.level]} "
            say_log(head + _source(entry.trial_id, entry.rank, entry.stream), entry.text, flush=flush)
    return num_lines


def format_instant(at: float) -> str:
    """Returns the time in the user's zone, with milliseconds. Returns dashes for a number that is no time, which
    earlier versions stored as a program reported it."""
    try:
        seconds, milliseconds = divmod(round(at * 1000), 1000)
        return f"{_format_second(seconds)}.{milliseconds:03d}"
    except (ValueError, OverflowError, OSError):
        return _NO_TIME


# Most lines of a log have the second and the source of a line just before them.
@lru_cache(maxsize=64)
def _format_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


@lru_cache(maxsize=1024)
def _source(trial_id: str, rank: int | None, stream: str) -> str:
    return f"[{trial_id} {f'rank {rank}' if rank is not None else stream or 'runner'}]"
