"""Reads single keys from the terminal, without waiting for the end of a line."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Any

_NAME_BY_SEQUENCE = {
    "\x1b": "escape",
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}
# The longest sequence that a terminal sends for one key, in bytes.
_MAX_BYTES = 16


class Keyboard:
    """Delivers keys one by one inside of its context, and does not show them. Ctrl-C stays an interrupt. Where standard
    input is no terminal, no key ever arrives."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] = []

    def __enter__(self) -> Keyboard:
        if self._fd is not None:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def read(self, seconds: float) -> list[str]:
        """Waits for keys for at most this time. Returns their names: a character, or one of the names above."""
        ready, _, _ = select.select([] if self._fd is None else [self._fd], [], [], seconds)
        if not ready or self._fd is None:
            return []
        data = os.read(self._fd, _MAX_BYTES)
        if not data:
            # The terminal is gone, so no key will ever arrive.
            self._fd = None
            return []
        return name_keys(data.decode("utf-8", "ignore"))


def name_keys(text: str) -> list[str]:
    """Returns the names of the keys that a terminal has sent. Unknown sequences are left out."""
    if text.startswith("\x1b"):
        name = _NAME_BY_SEQUENCE.get(text)
        return [name] if name is not None else []
    return [_NAME_BY_SEQUENCE.get(character, character) for character in text]
