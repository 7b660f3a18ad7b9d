"""PURE: the level of each line that a rank prints.

The trial runner grades the lines, because it reads each stream in order, and the further lines of a traceback or of a
message have the level of the first one. docs/logs.md explains the rules to users.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gangline.domain.state import LogLevel
from gangline.printable import without_style

# In characters. A level stands at the head of a line; in JSON it may stand behind the message.
_HEAD_LENGTH = 300
_JSON_LENGTH = 8000

_LEVELS_BY_NAME = {
    "TRACE": LogLevel.DEBUG,
    "DEBUG": LogLevel.DEBUG,
    "INFO": LogLevel.INFO,
    "NOTICE": LogLevel.INFO,
    "SUCCESS": LogLevel.INFO,
    "WARN": LogLevel.WARNING,
    "WARNING": LogLevel.WARNING,
    "ERROR": LogLevel.ERROR,
    "EXCEPTION": LogLevel.ERROR,
    "CRITICAL": LogLevel.CRITICAL,
    "FATAL": LogLevel.CRITICAL,
}
_LEVELS_BY_LETTER = {
    "D": LogLevel.DEBUG,
    "I": LogLevel.INFO,
    "V": LogLevel.DEBUG,
    "W": LogLevel.WARNING,
    "E": LogLevel.ERROR,
    "F": LogLevel.CRITICAL,
    "C": LogLevel.CRITICAL,
}
_NAME = "(" + "|".join(sorted(_LEVELS_BY_NAME, key=len, reverse=True)) + ")"
_LOWER_NAME = "(" + "|".join(sorted(map(str.lower, _LEVELS_BY_NAME), key=len, reverse=True)) + ")"
# Characters that stand around the level's name. Words and separators share no character, so no search goes back.
_BETWEEN, _WORD = r"[\s\[\]()<>|:]", r"[^\s\[\]()<>|:]"

# torch puts the rank in front of the lines of uncaught exceptions and of its own messages.
_RANK_PREFIX = re.compile(r"\[rank\d+\]:\s?")
# logging.basicConfig() prints LEVEL:name:message; other usual formats begin with LEVEL, [LEVEL] or [LEVEL|file:line].
_AT_START = re.compile(rf"[\[(<]?{_NAME}(?:[\])>|: ,]|\s*$)")
_TIME = re.compile(
    r"[\[(]?(?:\d{2,4}[-/.]\d\d[-/.]\d{2,4}[ T,])?\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?(?=[\s\])|:,-])"
)
# After a time, up to eight words such as the logger's name, the process and the line may precede the level.
_AFTER_TIME = re.compile(rf"{_BETWEEN}*(?:{_WORD}+{_BETWEEN}+){{0,8}}?{_NAME}(?={_BETWEEN}|,|-|$)")
# structlog's console format: [info     ] event.
_STRUCTLOG = re.compile(rf"\s*\[{_LOWER_NAME}\s*\](?:\s|$)")
_KEY_VALUE = re.compile(
    rf"(?:^|[\s{{,])[\"']?(?:level|levelname|severity)[\"']?\s*[=:]\s*[\"']?{_NAME}\b", re.IGNORECASE
)
# glog's format, which torch's C++ code uses: W1123 09:14:22.123 123 file.cpp:12], or the older [W socket.cpp:663].
_GLOG = re.compile(r"\[?([DIVWEFC])(?:\d{4} \d\d:\d\d:\d\d| [\w./-]+:\d+\])")
_NCCL = re.compile(r"\S+:\d+:\d+ \[\d+\] (?:\S+ )?NCCL (INFO|WARN)\b")
_TRACEBACK = re.compile(r"[\s|+]*(?:Exception Group )?Traceback \(most recent call last\):")
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_FATAL = ("Fatal Python error: ", "terminate called ", "Segmentation fault")
# tqdm's bar: 10%|###       | 1/10 [00:00<00:09]
_PROGRESS_BAR = re.compile(r"\d%\|[^|]*\| *\d")


class LineGrader:
    """Grades the lines of one stream, "stdout" or "stderr", in their order. It remembers the level of the last message
    for its further lines, and whether a traceback is being printed."""

    def __init__(self, stream: str) -> None:
        # Runtimes, CUDA and libraries complain on standard error without a level.
        self._default = LogLevel.WARNING if stream == "stderr" else LogLevel.INFO
        self._last = self._default
        self._is_in_traceback = False

    def grade(self, lines: Sequence[str]) -> list[LogLevel]:
        """Returns the level of each line."""
        return [self._grade_line(line) for line in lines]

    def _grade_line(self, line: str) -> LogLevel:
        head = without_style(line[:_JSON_LENGTH])
        prefix = _RANK_PREFIX.match(head)
        if prefix is not None:
            head = head[prefix.end() :]
        if _TRACEBACK.match(head):
            self._is_in_traceback = True
            return self._note(LogLevel.ERROR)
        if self._is_in_traceback:
            # Indented lines are frames. The first other line is the exception, with which the traceback ends.
            self._is_in_traceback = not head or head[0].isspace()
            return self._note(LogLevel.ERROR if self._is_in_traceback else find_level(head) or LogLevel.ERROR)
        if not head or head[0].isspace():
            # An indented line belongs to the message above it.
            return self._last
        if head in _CHAINED:
            return self._note(LogLevel.ERROR)
        if head.startswith(_FATAL):
            return self._note(LogLevel.CRITICAL)
        return self._note(find_level(head) or self._unmarked(head))

    def _unmarked(self, head: str) -> LogLevel:
        is_bar = "%|" in head and _PROGRESS_BAR.search(head[:_HEAD_LENGTH]) is not None
        return LogLevel.INFO if is_bar else self._default

    def _note(self, level: LogLevel) -> LogLevel:
        self._last = level
        return level


def find_level(head: str) -> LogLevel | None:
    """Returns the level that the line names in the form of a known logger; None where it names none. head: the line
    without colours."""
    start = head[:_HEAD_LENGTH]
    match = _AT_START.match(start)
    if match is not None:
        return _LEVELS_BY_NAME[match.group(1)]
    time = _TIME.match(start)
    rest = start[time.end() :] if time is not None else start
    match = _STRUCTLOG.match(rest) or (_AFTER_TIME.match(rest) if time is not None else None)
    if match is not None:
        return _LEVELS_BY_NAME[match.group(1).upper()]
    match = _GLOG.match(start)
    if match is not None:
        return _LEVELS_BY_LETTER[match.group(1)]
    if "NCCL " in start and (match := _NCCL.match(start)) is not None:
        return _LEVELS_BY_NAME[match.group(1)]
    return _find_key_value(head)


def _find_key_value(head: str) -> LogLevel | None:
    """Returns the level of a line in JSON or in logfmt, as structlog and other structured loggers write it."""
    if "level" not in head and "severity" not in head:
        return None
    match = _KEY_VALUE.search(head)
    return _LEVELS_BY_NAME[match.group(1).upper()] if match is not None else None
