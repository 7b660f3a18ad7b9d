"""A pseudo terminal for programs whose output depends on one: the command line's lists and its live view."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CLI = (sys.executable, "-m", "gangline.cli")


@dataclass(frozen=True, slots=True)
class Shown:
    """Holds the exit status and the bytes that reached the terminal."""

    status: int
    raw: str

    @property
    def lines(self) -> list[str]:
        """Returns the lines without escape sequences."""
        return [line.rstrip("\r") for line in _ESCAPE.sub("", self.raw).rstrip("\r\n").split("\n")]


class Terminal:
    """Runs one program on a terminal of its own, whose standard streams are all the terminal."""

    def __init__(
        self, arguments: tuple[str, ...], environment: Mapping[str, str], *, columns: int = 80, rows: int = 24
    ) -> None:
        self._output = b""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        # setsid makes it the controlling terminal, so that a typed Ctrl-C interrupts the program. A Python function
        # in the child would do the same, but is not safe beside the threads of grpc.
        command = ("setsid", "--ctty", *arguments)
        self._process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=dict(environment))
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)

    @property
    def raw(self) -> str:
        return self._output.decode("utf-8", "replace")

    def read_until(self, is_enough: Callable[[str], bool], seconds: float = 60.0) -> str:
        """Returns the output so far once the condition holds for it. Fails when it does not hold in time."""
        deadline = time.monotonic() + seconds
        while not is_enough(self.raw):
            assert time.monotonic() < deadline, f"not shown in {seconds:g} s; the output was: {self.raw!r}"
            assert self._read(0.5), f"the program ended; its output was: {self.raw!r}"
        return self.raw

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self, seconds: float = 60.0) -> Shown:
        """Reads until the program ends."""
        deadline = time.monotonic() + seconds
        while self._read(0.5):
            assert time.monotonic() < deadline, f"still runs after {seconds:g} s; the output was: {self.raw!r}"
        return Shown(self._process.wait(seconds), self.raw)

    def _read(self, seconds: float) -> bool:
        """Reads what arrives within this time. Returns False at the end of the output."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self._ours, 1 << 16)
        except OSError:  # Linux reports the end of a pseudo terminal as EIO.
            return False
        self._output += piece
        return bool(piece)


def run_on_terminal(
    arguments: tuple[str, ...], environment: Mapping[str, str], *, columns: int = 80, rows: int = 24
) -> Shown:
    with Terminal(arguments, environment, columns=columns, rows=rows) as terminal:
        return terminal.end()
