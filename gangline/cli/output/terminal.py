"""Writes to standard output, standard error and the terminal, for all commands.

Names, reasons, log lines and names of metrics come from other users' programs. No such text may act on the reader's
terminal, or add a line that looks like one of Gangline's. This holds whether the output is a terminal or not. Commands
pass whole lines, in which a newline is shown as an escape. The streams replace control characters that arrive in any
other way. A test keeps print, sys.stdout, sys.stderr and rich's Console out of the other modules of this package. JSON
needs no such care, because it is ASCII.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from gangline.cli.output.table_layout import ELLIPSIS, GAP, Cell, Column, lay_out, line_of, painted
from gangline.cli.output.text import to_json
from gangline.printable import to_line, to_printable


class CleanStream:
    """A text stream that shows control characters as escapes. raw: the stream below, for code that draws by itself."""

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
    """Replaces the standard streams while the program runs, so that all output is clean, also that of libraries."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = CleanStream(sys.stdout), CleanStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def say(lines: Iterable[str], *, flush: bool = False) -> None:
    """Prints whole lines for the user."""
    for line in lines:
        sys.stdout.write(to_line(line) + "\n")
    if flush:
        sys.stdout.flush()


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[Any]], *, indent: int = 0) -> list[str]:
    """Returns a table that is part of a text, without colours: as wide as the terminal, whole where there is none."""
    width = terminal_width()
    lines = lay_out(columns, rows, None if width is None else width - indent, _ellipsis())
    return [" " * indent + line_of(cells) for cells in lines]


def say_table(columns: Sequence[Column], rows: Sequence[Sequence[Any]], *, is_wide: bool = False) -> None:
    """Prints a table, as wide as the terminal at most. is_wide: whole, even if its lines wrap. It is whole as well
    where the output is no terminal, because another program may read it."""
    lines = lay_out(columns, rows, None if is_wide else terminal_width(), _ellipsis())
    if not has_color():
        say(map(line_of, lines))
        return
    for cells in lines:
        # The cells hold no control characters, so only the sequences of the colours reach the terminal unchanged.
        raw_output().write(GAP.join(_painted(cell) for cell in cells).rstrip() + "\n")


def say_log(source: str, text: str, *, flush: bool = False) -> None:
    """Prints each line of the text with its source in front, so that no line can pass for another source's. Tabs
    stay."""
    for line in text.split("\n"):
        sys.stdout.write(f"{to_line(source)} {to_printable(line)}\n")
    if flush:
        sys.stdout.flush()


def say_json(value: Any, indent: int | None = 1, *, flush: bool = False) -> None:
    sys.stdout.write(to_json(value, indent) + "\n")
    if flush:
        sys.stdout.flush()


def say_document(text: str) -> None:
    """Prints a document, such as JSON or CSV, unchanged."""
    sys.stdout.write(text)


def complain(word: str, text: str) -> None:
    """Prints one line on standard error. word: "error" or "warning"."""
    mention(f"{word}: {text}")


def mention(line: str) -> None:
    """Prints one line on standard error, such as a command's progress."""
    sys.stderr.write(to_line(line) + "\n")
    sys.stderr.flush()


def is_terminal() -> bool:
    return sys.stdout.isatty()


def terminal_width() -> int | None:
    """Returns the columns of the terminal, or COLUMNS where it is set; None where the output is no terminal."""
    return shutil.get_terminal_size().columns if is_terminal() else None


def has_color() -> bool:
    """Returns whether colours may be used: on a terminal that has them, unless NO_COLOR is set (no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def can_draw() -> bool:
    """Returns whether standard output is a terminal that can redraw a part of its screen."""
    return is_terminal() and os.environ.get("TERM") not in ("dumb", "unknown")


def can_ask() -> bool:
    """Returns whether a user is there to answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def raw_output() -> TextIO:
    """Returns the stream for a program that draws on the terminal with escape sequences of its own."""
    return _raw(sys.stdout)


def raw_errors() -> TextIO:
    """Returns the stream for a bar that is drawn beside the result."""
    return _raw(sys.stderr)


def is_error_terminal() -> bool:
    return sys.stderr.isatty()


def _raw(stream: TextIO | CleanStream) -> TextIO:
    return stream.raw if isinstance(stream, CleanStream) else stream


def _painted(cell: Cell) -> str:
    shown = cell.text.rstrip()
    return painted(shown, cell.state) + cell.text[len(shown) :]


def _ellipsis() -> str:
    """Returns three periods for a stream whose encoding has no ellipsis, such as Latin-1."""
    try:
        ELLIPSIS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "..."
    return ELLIPSIS
