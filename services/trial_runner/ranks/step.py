"""Runs a program that the user has chosen and waits for it, before the ranks start: an interpreter, most of all.

The nursery starts it, as it starts ranks: as their user, within their limits, and with everything that it leaves behind
ended at the attempt's end. So nothing that a user names ever runs with the rights of the runner.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gangline.errors import unavailable
from services.trial_runner.ranks.log_pump import LAST_LINES, LogPump
from services.trial_runner.ranks.nursery_client import NurseryClient

# The number of such a program among the nursery's processes; ranks have 0 and more.
STEP_RANK = -1
# Limit for the end of a program that was killed.
KILL_SECONDS = 10.0
# Limit for reading what an ended program has printed; a process that it left may hold its pipe.
_OUTPUT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How a step ended."""

    exit_code: int | None  # None for a step that never ran or that a signal killed
    signal: int | None = None
    problem: str = ""  # why it did not run to its end; empty if it did
    is_overdue: bool = False  # whether the limit ended it


async def wait_step(nursery: NurseryClient, limit_seconds: float, on_up: Callable[[int], None]) -> StepEnd:
    """Waits for the program of STEP_RANK that was just started; kills it at the limit. on_up: called with its pid."""
    try:
        async with asyncio.timeout(limit_seconds):
            return await _wait_end(nursery, on_up)
    except TimeoutError:
        nursery.signal([STEP_RANK], signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await _wait_end(nursery, lambda _: None)
        return StepEnd(None, None, f"no answer within {limit_seconds:g} s", is_overdue=True)


async def _wait_end(nursery: NurseryClient, on_up: Callable[[int], None]) -> StepEnd:
    while (event := await nursery.events.get()) is not None:
        match event["event"]:
            case "started":
                on_up(event["pid"])
            case "start_failed":
                return StepEnd(None, problem=str(event["error"]))
            case "exited":
                return StepEnd(event["exit_code"], event["signal"])
    raise unavailable("runner.no_nursery", "the process that started it died")


async def run_step(
    nursery: NurseryClient, command: Sequence[str], environment: Mapping[str, str], directory: str, limit_seconds: float
) -> tuple[str, str]:
    """Runs a command. Returns what it printed last, and why it failed: empty if it did not.

    Raises GanglineError `environment.no_answer` and `runner.no_nursery` if the machine is the cause: it is too slow, or
    out of memory. The command may be a good one then.
    """
    printed: dict[str, deque[str]] = {stream: deque(maxlen=LAST_LINES) for stream in ("stdout", "stderr")}
    pump = LogPump(lambda _, stream, lines: printed[stream].extend(lines[-LAST_LINES:]))
    fds = [pump.open_pipe(STEP_RANK, stream) for stream in printed]
    try:
        nursery.start(STEP_RANK, environment, directory=directory, num_threads=1, fds=fds, program=command)
    finally:
        for fd in fds:
            os.close(fd)
    end = await wait_step(nursery, limit_seconds, lambda _: None)
    await pump.drain(_OUTPUT_SECONDS)
    if end.is_overdue or end.signal == signal.SIGKILL:
        why = end.problem or "killed (SIGKILL) before it had answered"
        raise unavailable("environment.no_answer", f"{command[0]}: {why}")
    problem = end.problem
    if not problem and end.exit_code != 0:
        said = [line for line in printed["stderr"] if line.strip()]
        fallback = f"signal {end.signal}" if end.signal is not None else f"exit code {end.exit_code}"
        problem = said[-1] if said else fallback
    return "\n".join(printed["stdout"]).strip(), problem
