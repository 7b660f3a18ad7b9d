"""Lines out of pipes, whatever is written into them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from services.trial_runner.ranks.log_pump import (
    LAST_LINES,
    MAX_LAST_LINE_LENGTH,
    MAX_LINE_BYTES,
    READ_BYTES,
    LogPump,
)


async def pump(*writes: bytes, stream: str = "stderr") -> tuple[list[str], tuple[str, ...]]:
    """All lines that reached the sink, and the last ones of the rank."""
    received: list[str] = []

    def sink(rank: int, name: str, lines: Sequence[str]) -> None:
        assert (rank, name) == (3, stream)
        received.extend(lines)

    pumped = LogPump(sink)
    fd = pumped.open_pipe(3, stream)
    for content in writes:
        await asyncio.to_thread(os.write, fd, content)
    os.close(fd)
    await pumped.drain(5)
    return received, pumped.last_lines(3)


async def test_lines_and_a_rest_without_an_end() -> None:
    assert (await pump(b"one\ntw", b"o\n\nthree"))[0] == ["one", "two", "", "three"]


async def test_a_progress_bar_is_one_line() -> None:
    assert (await pump(b"10%\r20%\r100%\ndone\r\n"))[0] == ["100%", "done"]


async def test_what_is_no_utf8_is_shown_and_nul_too() -> None:
    assert (await pump(b"a\xffb\0c\n"))[0] == ["a\\xffb\\x00c"]


async def test_a_line_without_an_end_is_cut() -> None:
    lines, _ = await pump(b"x" * 60_000, b"y" * 20_000)
    assert [len(line) for line in lines] == [MAX_LINE_BYTES, 80_000 - MAX_LINE_BYTES]
    assert "".join(lines) == "x" * 60_000 + "y" * 20_000


async def test_the_last_lines_of_standard_error_are_kept() -> None:
    _, last = await pump(b"".join(b"%d\n" % number for number in range(100)))
    assert last == tuple(str(number) for number in range(100 - LAST_LINES, 100))


async def test_long_last_lines_are_cut_for_the_report_and_whole_in_the_log() -> None:
    lines, last = await pump(b"x" * 30_000 + b"\nend\n")
    assert [len(line) for line in lines] == [30_000, 3]
    assert last == ("x" * MAX_LAST_LINE_LENGTH, "end")


async def test_standard_output_stands_in_where_standard_error_is_empty() -> None:
    assert (await pump(b"only this\n", stream="stdout"))[1] == ("only this",)


async def test_a_pipe_that_somebody_keeps_open_does_not_hold_up_the_end() -> None:
    pumped = LogPump(lambda _rank, _stream, _lines: None)
    fd = pumped.open_pipe(0, "stdout")
    await pumped.drain(0.05)
    os.close(fd)


async def test_lines_that_wait_in_the_pipe_at_the_deadline_are_taken() -> None:
    received: list[str] = []

    def take(_rank: int, _stream: str, lines: Sequence[str]) -> None:
        # As slow as a runner that rarely gets to run.
        time.sleep(0.02)
        received.extend(lines)

    pumped = LogPump(take)
    fd = pumped.open_pipe(0, "stdout")
    # A pipe takes 64 KiB. A process that the rank left behind keeps it open.
    os.write(fd, b"".join(b"%07d\n" % number for number in range(8192)))
    await pumped.drain(0.01)
    os.close(fd)
    assert [int(line) for line in received] == list(range(8192))


async def test_a_full_pipe_leaves_the_event_loop_time() -> None:
    batches: list[int] = []
    pumped = LogPump(lambda _rank, _stream, lines: batches.append(len(lines)))
    fd = pumped.open_pipe(0, "stdout")
    os.write(fd, b"x\n" * 32_000)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    # The loop came back before the pipe was empty.
    assert sum(batches) < 32_000
    os.close(fd)
    await pumped.drain(5)
    assert sum(batches) == 32_000
    assert max(batches) <= READ_BYTES / 2
