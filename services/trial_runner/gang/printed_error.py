"""PURE: the exception whose traceback ends a process's output, and the quotation of its last lines.

Only such a traceback counts as the cause of an exit. A line that merely looks like an error may report one that the
code has handled, so it is quoted as the last line and decides nothing. Lines that launchers and torch print after the
traceback of a worker do not hide it. `outcome.py` calls this for processes that report no exception of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Longest quoted line, in characters.
_MAX_QUOTE_LENGTH = 300
# Marks of torch.distributed and of wrap_rank before each line of a worker.
_MARK = re.compile(r"^(?:\[rank=?\d+\]:? ?)+")
_HEADER = re.compile(r"^[\s|+]*(?:Original |Exception Group )?Traceback \(most recent call last\):$")
# The line with which a traceback ends, also in the frame of an exception group.
_EXCEPTION = re.compile(r"^(?:\s*\| )?((?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?:: .*|:?))$")
# Lines of loggers and warnings that follow a traceback while a process or a launcher ends: glog's and torch's prefixes
# with the level, and Python's warnings.
_NOISE = re.compile(
    r"^\[?[IWEF]\d{4} \d\d:\d\d|^\[[IWEF]\d* ?\S*\.(?:cpp|h|hpp|cc):\d+\]|^\[W\S* |\S+:\d+: \w*Warning: "
)
# Exceptions that pass on the end of another process; its own traceback is above them.
_PASSED_ON = {"SystemExit", "ChildFailedError"}
_CHAINED = "another exception occurred:"
_RULE = re.compile(r"^=+$")


class PrintedError(NamedTuple):
    """An exception in an output."""

    text: str  # the exception's line
    name: str  # its class, without the module


@dataclass(frozen=True, slots=True)
class _Traceback:
    """A traceback in an output."""

    start: int  # index of its header
    end: int  # index behind the exception's line and the indented lines that follow it
    error: PrintedError


def find_final_error(lines: Sequence[str]) -> PrintedError | None:
    """Returns the exception whose traceback ends the output; None if other lines follow the last traceback, or if
    there is none."""
    lines = _own_lines(lines)
    if not lines:
        return None
    # Workers print at the same time. Each one's lines have its mark, so they are read apart; the last one counts.
    mark = _mark_of(lines[-1])
    own = [_MARK.sub("", line) for line in lines if _mark_of(line) == mark]
    found = _last_traceback(own)
    return found.error if found is not None and found.end == len(own) else None


def find_last_error(lines: Sequence[str]) -> PrintedError | None:
    """Returns the exception of the last traceback, whatever follows it."""
    found = _last_traceback([_MARK.sub("", line) for line in _own_lines(lines)])
    return found.error if found is not None else None


def quote_last_line(lines: Sequence[str], stdout_line: str = "") -> str:
    """Returns a clause with the last line that has a word; empty without one.

    stdout_line: the last line of standard output where lines are those of standard error. The order of two streams is
    not certain, so both lines are quoted.
    """
    worded = [line.strip() for line in _own_lines(lines) if _has_word(line)]
    streams = [(worded[-1], "standard error")] if worded else []
    streams += [(stdout_line.strip(), "standard output")] if _has_word(stdout_line) else []
    if len(streams) == 1:
        return f"its last line was {_quote(streams[0][0])}"
    return " and ".join(f"its last line on {stream} was {_quote(line)}" for line, stream in streams)


def _own_lines(lines: Sequence[str]) -> list[str]:
    """Returns the lines without what launchers, loggers and a SystemExit print when a process ends."""
    kept = list(lines)
    while kept and (not kept[-1].strip() or _is_noise(kept)):
        kept.pop()
    found = _last_traceback(kept)
    if found is None or found.error.name not in _PASSED_ON:
        return kept
    # torchrun's report below its exception ends with a line of equals signs.
    is_report = found.error.name == "ChildFailedError" and _RULE.match(kept[-1].strip())
    if found.end < len(kept) and not is_report:
        return kept
    above = kept[: found.start]
    is_chained = any(line.endswith(_CHAINED) for line in above[-2:])
    # The code has handled the error above, and then called sys.exit.
    return [] if is_chained else _own_lines(above)


def _is_noise(lines: Sequence[str]) -> bool:
    line = lines[-1]
    # A warning of Python shows its line of code below.
    is_code = line.startswith("  ") and len(lines) > 1 and "Warning: " in lines[-2]
    return bool(_NOISE.match(line)) or (is_code and bool(_NOISE.match(lines[-2])))


def _last_traceback(lines: Sequence[str]) -> _Traceback | None:
    starts = [place for place, line in enumerate(lines) if _HEADER.match(line)]
    if not starts:
        return None
    for place in range(starts[-1] + 1, len(lines)):
        match = _EXCEPTION.match(lines[place])
        if match is not None:
            end = place + 1
            while end < len(lines) and (not lines[end].strip() or lines[end][0].isspace()):
                end += 1
            return _Traceback(starts[-1], end, PrintedError(match[1], match[2]))
        if lines[place] and not lines[place][0].isspace():
            return None
    return None


def _mark_of(line: str) -> str:
    match = _MARK.match(line)
    return match[0].strip() if match is not None else ""


def _has_word(line: str) -> bool:
    return any(char.isalnum() for char in line)


def _quote(line: str) -> str:
    return f'"{line[:_MAX_QUOTE_LENGTH]}{"..." if len(line) > _MAX_QUOTE_LENGTH else ""}"'
