"""Reads the output of the ranks line by line, and keeps the last lines of each rank for the report of a failure.

Owns the reading ends of the ranks' standard output and error. It reads a bounded number of bytes at a time, so that
ranks that print without a pause leave the event loop time for everything else. What is not read yet waits in the pipe,
and a rank that fills its pipe waits as well: no line is lost.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from heapq import merge
from operator import itemgetter

# Read from one pipe before the event loop does anything else: about 100 lines, which take less than a millisecond.
READ_BYTES = 8 << 10
# A longer line is split here, so a rank that prints no newline needs bounded memory.
MAX_LINE_BYTES = 64 << 10
# Number of last lines that are kept for each rank and stream.
LAST_LINES = 20
# Number of last lines in which a traceback is looked for. Deep stacks of torch have a few hundred lines.
TRACE_LINES = 400
# A process that has printed to standard output for this long after standard error went on. So what it printed on
# standard error did not end it. A process that ends may flush its standard output a moment later.
_LATER_SECONDS = 1.0
# In characters. The last lines travel in the report of an exit into etcd, and those of a whole gang must fit into half
# a megabyte.
MAX_LAST_LINE_LENGTH = 500
# Beginnings of the lines that the C++ runtime prints for an uncaught exception. Stacks of many lines follow, so these
# lines would not be among the last ones.
_TERMINATE, _WHAT = "terminate called after throwing an instance of ", "what():"

# The arguments of a sink: the rank, "stdout" or "stderr", and the lines.
Sink = Callable[[int, str, Sequence[str]], None]


class LogPump:
    """Reads the pipes of all ranks. The sink is called with each batch of complete lines."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        # The last lines of each stream, each with the time of its arrival.
        self._last: dict[tuple[int, str], deque[tuple[float, str]]] = {}
        # Lines about uncaught exceptions, each with the number of lines of its stream up to it.
        self._uncaught: dict[tuple[int, str], deque[tuple[int, str]]] = {}
        self._num_lines: dict[tuple[int, str], int] = {}
        self._pipes: list[_LinePipe] = []

    def open_pipe(self, rank: int, stream: str) -> int:
        """Opens a pipe and starts reading it. Returns its writing end, which the caller closes."""
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        key = rank, stream
        last = self._last.setdefault(key, deque(maxlen=TRACE_LINES))
        uncaught = self._uncaught.setdefault(key, deque(maxlen=2))
        loop = asyncio.get_running_loop()

        def take(lines: Sequence[str]) -> None:
            now, before = loop.time(), self._num_lines.get(key, 0)
            last.extend((now, line[:MAX_LAST_LINE_LENGTH]) for line in lines[-TRACE_LINES:])
            uncaught.extend(
                (number, line[:MAX_LAST_LINE_LENGTH])
                for number, line in enumerate(lines, before + 1)
                if _WHAT in line[:10] or _TERMINATE in line[:200]
            )
            self._num_lines[key] = before + len(lines)
            self._sink(rank, stream, lines)

        self._pipes.append(_LinePipe(read_fd, take))
        return write_fd

    def last_lines(self, rank: int) -> tuple[str, ...]:
        """Returns the last lines of standard error, where Python prints why it ends; those of standard output if it is
        empty."""
        return self.trace_lines(rank)[-LAST_LINES:]

    def trace_lines(self, rank: int) -> tuple[str, ...]:
        """Returns as many lines as a traceback may have, of the same stream as `last_lines`."""
        return _texts(self._last.get((rank, "stderr")) or self._last.get((rank, "stdout")) or ())

    def stdout_line(self, rank: int) -> str:
        """Returns the last line of standard output where `last_lines` are those of standard error."""
        stdout = self._last.get((rank, "stdout"))
        return stdout[-1][1] if stdout and self._last.get((rank, "stderr")) else ""

    def is_stdout_later(self, rank: int) -> bool:
        """Whether the rank went on printing to standard output after its last line on standard error."""
        stdout, stderr = self._last.get((rank, "stdout")), self._last.get((rank, "stderr"))
        if not stdout or not stderr:
            return False
        return stdout[-1][0] > stderr[-1][0] + _LATER_SECONDS

    def newest_lines(self, rank: int) -> tuple[str, ...]:
        """Returns the last lines of both streams, in the order in which they arrived."""
        streams = [self._last.get((rank, stream), ()) for stream in ("stderr", "stdout")]
        return _texts(merge(*streams, key=itemgetter(0)))[-LAST_LINES:]

    def uncaught_lines(self, rank: int) -> tuple[str, ...]:
        """Returns the newest two lines about uncaught C++ exceptions; none if more lines follow than a stack has,
        because the process then went on."""
        return tuple(
            line
            for stream in ("stdout", "stderr")
            for number, line in self._uncaught.get((rank, stream), ())
            if self._num_lines[rank, stream] - number <= TRACE_LINES
        )

    async def drain(self, deadline_seconds: float) -> None:
        """Waits for the end of every pipe. A pipe ends when the last process that holds it has gone. After the deadline
        it takes what the pipes still hold, and closes them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_seconds):
                for pipe in self._pipes:
                    await pipe.ended.wait()
        for pipe in self._pipes:
            await pipe.finish()


class _LinePipe:
    """One pipe, read when it is ready. ended: set at its end, or when it is closed."""

    def __init__(self, fd: int, take: Callable[[Sequence[str]], None]) -> None:
        self._fd = fd
        self._take = take
        self._rest = b""
        self.ended = asyncio.Event()
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._read)

    async def finish(self) -> None:
        """Takes the bytes that are in the pipe now, and closes it. A process that goes on to print is not read."""
        if self.ended.is_set():
            return
        asyncio.get_running_loop().remove_reader(self._fd)
        waiting = _num_waiting(self._fd)
        while waiting > 0 and not self.ended.is_set():
            waiting -= self._read()
            await asyncio.sleep(0)
        self._close()

    def _read(self) -> int:
        """Reads once. Returns the number of bytes."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self._split(data)
        else:
            self._close()
        return len(data)

    def _split(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        if lines:
            self._take([_decode(line) for line in lines])

    def _close(self) -> None:
        if self.ended.is_set():
            return
        self.ended.set()
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        if self._rest:
            self._take([_decode(self._rest)])


def _num_waiting(fd: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    return int(count)


def _texts(lines: Iterable[tuple[float, str]]) -> tuple[str, ...]:
    return tuple(line for _, line in lines)


def _decode(line: bytes) -> str:
    """Returns the visible part of a line. A progress bar overwrites itself with carriage returns, so only the text
    after the last one counts."""
    visible = line.rstrip(b"\r").rpartition(b"\r")[2]
    return visible.decode("utf-8", errors="backslashreplace").replace("\0", "\\x00")
