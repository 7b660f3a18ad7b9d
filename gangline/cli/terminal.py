"""The only way from a command to standard output, standard error and the terminal.

Names, reasons, log lines and names of metrics come from other users' programs. Nothing of them may act on the reader's
terminal or add a line that looks like one of ours, whether the output is a terminal or not. Commands hand over whole
lines, in which a newline is shown as an escape; the streams replace what is left by any other way. A test keeps print,
sys.stdout, sys.stderr and rich's Console out of the other modules of this package. JSON needs none of it: it is ASCII.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from gangline.cli.text import to_json
from gangline.printable import to_line, to_printable


class CleanStream:
    """A text stream that shows control characters as escapes. raw: the stream below, for what draws by itself."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        self.raw.write(to_printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def clean_output() -> Iterator[None]:
    """While the program runs: everything that is written, also by libraries, is clean."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = CleanStream(sys.stdout), CleanStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def say(lines: Iterable[str], *, flush: bool = False) -> None:
    """Whole lines for a person."""
    for line in lines:
        sys.stdout.write(to_line(line) + "\n")
    if flush:
        sys.stdout.flush()


def say_log(source: str, text: str, *, flush: bool = False) -> None:
    """Each line of the text has its source in front, so that none can pass for another one's. Tabs stay."""
    for line in text.split("\n"):
        sys.stdout.write(f"{to_line(source)} {to_printable(line)}\n")
    if flush:
        sys.stdout.flush()


def say_json(value: Any, indent: int | None = 1, *, flush: bool = False) -> None:
    sys.stdout.write(to_json(value, indent) + "\n")
    if flush:
        sys.stdout.flush()


def say_document(text: str) -> None:
    """A JSON document as it is."""
    sys.stdout.write(text)


def complain(word: str, text: str) -> None:
    """error: what went wrong, in one line."""
    mention(f"{word}: {text}")


def mention(line: str) -> None:
    """One line on standard error, as how far a command is."""
    sys.stderr.write(to_line(line) + "\n")
    sys.stderr.flush()


def is_terminal() -> bool:
    return sys.stdout.isatty()


def can_ask() -> bool:
    """Whether a person is there to answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def raw_output() -> TextIO:
    """For a program that draws on the terminal with escape sequences of its own."""
    return sys.stdout.raw if isinstance(sys.stdout, CleanStream) else sys.stdout
