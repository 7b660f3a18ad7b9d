"""The files that the ranks leave behind: those of the output folder go into the storage, all others are named.

Looks at the folders of the ranks with their rights, once they and everything that they started have ended. Only if
there is output, a process of the ranks' account copies it (gangline.rank.keep_output), in a bounded time. A failure
changes nothing about the trial's outcome: the files stay on the agent, and the trial's log says where. The runner calls
`begin` before the ranks start and `settle` after their end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from gangline.domain.entrypoint import TrialClass, parse_entrypoint
from gangline.domain.state import ExitKind
from gangline.domain.storage.output import output_path_of
from gangline.v1 import rank_pb2, runner_pb2
from services.common.access.user_rights import rights_of
from services.common.concurrency import cancel
from services.common.state_folder import SharedFolder
from services.trial_runner.delivery.recorder import Recorder
from services.trial_runner.exit_file import load_stop_deadline
from services.trial_runner.gang.gang_plan import Place, settled_of, without_settings
from services.trial_runner.output_text import (
    MOST_NAMES,
    NOT_REPORTED,
    Kept,
    Left,
    Written,
    describe_kept,
    describe_lost,
)
from services.trial_runner.ranks.confinement import Confinement
from services.trial_runner.ranks.step import STEP_RANK
from services.trial_runner.stop_signal import StopRequest

# Limit for the copying. The slots stay occupied meanwhile.
KEEP_SECONDS = 600.0
# A copying process without a sign of progress for so long is killed: the storage hangs.
SILENT_SECONDS = 60.0
# Time that the copying process has beyond its own limit, and time that is kept for the runner's own last steps.
_GRACE_SECONDS = 5.0
_MARGIN_SECONDS = 2.0
_LOOK_SECONDS = 0.2
# Limits for the look at the working folder.
_MOST_EXAMINED = 5000
_EXAMINE_SECONDS = 0.2
# The kernel dates files by a clock that may be so many nanoseconds behind.
_TICK_NS = 20_000_000
# Folders that Python fills by itself.
_CACHES = ("__pycache__",)
# Variables of the account; those in the ranks' environment may be of a container.
_OF_ACCOUNT = ("HOME", "USER", "LOGNAME", "SHELL", "PATH")

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Output:
    """The output of one attempt on this machine."""

    spec: runner_pb2.RunnerSpec
    place: Place
    folder: SharedFolder
    recorder: Recorder  # writes the trial's log
    _confinement: Confinement = field(default_factory=Confinement)
    _environment: Mapping[str, str] = field(default_factory=dict)
    _began_ns: int = 0
    _dates: Mapping[str, int] = field(default_factory=dict)
    _stored: dict[str, int] = field(default_factory=dict)

    def on_message(self, message: rank_pb2.RankMessage) -> None:
        """Notes the files of the working folder that are in a checkpoint, up to a limit; ignores other messages."""
        if message.WhichOneof("message") != "stored_files":
            return
        for path, changed_ns in message.stored_files.changed_ns_by_path.items():
            # The newest ones last, so that those that are forgotten may be gone from the folder.
            self._stored.pop(path, None)
            self._stored[path] = changed_ns
        for path in list(self._stored)[:-_MOST_EXAMINED]:
            del self._stored[path]

    def begin(self, environment: Mapping[str, str], confinement: Confinement) -> None:
        """Notes the time and the dates of the code's files before the ranks start. environment: of one rank, for the
        library of the storage."""
        self._environment, self._confinement, self._began_ns = environment, confinement, time.time_ns()
        if self._is_script:
            with suppress(OSError), rights_of(confinement.user):
                self._dates, _ = read_dates(self.folder.code_path)

    async def settle(
        self, stop: StopRequest, on_copy: Callable[[], Awaitable[None]], *, has_results: bool, is_success: bool
    ) -> None:
        """Keeps the output, and writes to the trial's log what is kept, what is not, and what was not reported.

        on_copy: called before the copying, which may take long. has_results: whether metrics or a checkpoint were
        reported. is_success: whether all ranks ended well.
        """
        has_output, written, kept = False, Written(), Kept()
        try:
            with rights_of(self._confinement.user):
                has_output = _has_files(self.folder.output_path)
                if self._is_script:
                    written = find_written(self.folder.code_path, self._dates, self._began_ns, self._stored)
        except OSError as error:
            log.error("cannot look at the files of the ranks", error=str(error))
        if has_output:
            await on_copy()
            kept = await self._keep(stop)
        if text := describe_kept(kept, self.spec.trial.id):
            self.recorder.note(text)
        lost = describe_lost(kept, written, str(self.folder.forgotten_path.absolute()), self.place.agent_id)
        misses_results = is_success and not has_results and self._should_report
        if lost:
            self.recorder.warn(f"{lost}. Also, {NOT_REPORTED}" if misses_results else lost)
        elif misses_results:
            self.recorder.note(NOT_REPORTED)

    @property
    def _is_script(self) -> bool:
        entrypoint = parse_entrypoint(settled_of(self.spec).entrypoint)
        return not isinstance(entrypoint, TrialClass)

    @property
    def _should_report(self) -> bool:
        """Whether metrics or checkpoints of this machine are expected: of a training that has none from before."""
        trial = self.spec.trial
        is_new = not trial.batches_completed and not self.spec.HasField("latest_checkpoint")
        # A script that has printed nothing either has nothing to deliver, so its runner ends at once.
        return (
            is_new
            and self.recorder.has_lines
            and self.place.is_head
            and self._is_script
            and settled_of(self.spec).task is None
        )

    async def _keep(self, stop: StopRequest) -> Kept:
        if _is_killed(stop):
            return Kept(problem="the trial was killed")
        agents = load_stop_deadline(self.folder)
        seconds = min(KEEP_SECONDS, agents - time.time() - _MARGIN_SECONDS) if agents else KEEP_SECONDS
        if seconds < 1.0:
            return Kept(problem="no time was left before the end of the grace")
        try:
            return await self._copy(stop, seconds)
        except OSError as error:
            log.error("cannot start the process that keeps the output", error=str(error))
            return Kept(problem=f"{self.place.agent_id} cannot start the process that copies it: {error}")

    async def _copy(self, stop: StopRequest, seconds: float) -> Kept:
        own = without_settings(self._confinement.settle(os.environ))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "gangline.rank.keep_output"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd="/",
            env=own,
            start_new_session=True,
        )
        watch = _CopyWatch(process, lambda: _is_killed(stop), seconds)
        try:
            assert process.stdin is not None
            with suppress(ConnectionError):
                process.stdin.write(json.dumps(self._order(own, seconds)).encode())
                process.stdin.close()
            return await watch.run()
        finally:
            await watch.end()

    def _order(self, own: Mapping[str, str], seconds: float) -> dict[str, Any]:
        """Returns the order to gangline.rank.keep_output."""
        account = {name: own[name] for name in _OF_ACCOUNT if name in own}
        return {
            "confinement": self._confinement.orders(STEP_RANK),
            "environment": {**self._environment, **account},
            "folder": str(self.folder.output_path.absolute()),
            "storage_url": self.spec.storage_url,
            "marker": self.spec.storage_marker,
            "path": output_path_of(self.spec.trial.id, self.place.node_rank),
            "writer": self.spec.allocation.id,
            "limit_seconds": seconds,
        }


@dataclass(slots=True)
class _CopyWatch:
    """Reads what the copying process reports, and ends it if the trial is killed or the storage hangs."""

    process: asyncio.subprocess.Process
    is_killed: Callable[[], bool]
    seconds: float
    _num_files: int = 0
    _num_bytes: int = 0
    _num_left: int = 0
    _left: list[Left] = field(default_factory=list)
    _problem: str = ""

    async def run(self) -> Kept:
        assert self.process.stdout is not None
        now = asyncio.get_running_loop().time
        heard_at, limit_at = now(), now() + self.seconds + _GRACE_SECONDS
        reading = asyncio.ensure_future(self.process.stdout.readline())
        try:
            while not self._problem:
                await asyncio.wait({reading}, timeout=_LOOK_SECONDS)
                if reading.done():
                    if not (line := reading.result()):
                        break
                    heard_at = now()
                    self._on_line(line)
                    reading = asyncio.ensure_future(self.process.stdout.readline())
                elif self.is_killed():
                    self._problem = "the trial was killed meanwhile"
                elif now() - heard_at > SILENT_SECONDS or now() > limit_at:
                    self._problem = f"the storage did not answer for {now() - heard_at:.0f} s"
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            self._problem = f"the copying process reported what cannot be read: {error}"
        finally:
            await cancel(reading)
        if not self._problem and (code := await self.process.wait()):
            self._problem = f"the copying process ended with exit code {code}"
        return Kept(self._num_files, self._num_bytes, self._num_left, tuple(self._left), self._problem)

    async def end(self) -> None:
        """Kills the process if it lives. One that hangs in the kernel is left to its end."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()
        # Reads to the end of the pipe as well, so that nothing of it is left to the event loop.
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self.process.communicate()

    def _on_line(self, line: bytes) -> None:
        """Counts one file. The process has the rights of the ranks, so it may send anything. Raises ValueError,
        TypeError, OverflowError or RecursionError."""
        report = json.loads(line)
        if not isinstance(report, dict):
            raise ValueError(repr(line[:100]))
        if "kept" in report:
            self._num_bytes += int(report.get("bytes") or 0)
            self._num_files += 1
        elif "left" in report:
            self._num_left += 1
            if len(self._left) < MOST_NAMES:
                self._left.append(Left(str(report["left"]), str(report.get("why"))))
        elif "rest" in report:
            self._problem = str(report["rest"])


def read_dates(folder: Path) -> tuple[dict[str, int], bool]:
    """Returns the time of each file's last change below a folder in nanoseconds, by its path, and whether all of the
    folder was examined. Examines a bounded number of entries, so that a short command is not delayed.

    The time of the inode's change counts: a program may set the time of the content, as tar does, and a code archive
    may have files of the future.
    """
    dates: dict[str, int] = {}
    give_up_at = time.monotonic() + _EXAMINE_SECONDS
    for number, entry in enumerate(_walk(folder)):
        if number >= _MOST_EXAMINED or time.monotonic() > give_up_at:
            return dates, False
        with suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                dates[entry.path] = entry.stat(follow_symlinks=False).st_ctime_ns
    return dates, True


def find_written(folder: Path, before: Mapping[str, int], since_ns: int, stored: Mapping[str, int]) -> Written:
    """Returns the files below a folder that were made or changed since `read_dates` returned the dates before, which
    was at since_ns by time.time_ns. stored: when those that are in a checkpoint had last been changed, by their path
    below the folder; they are left out unless they have changed since."""
    dates, is_whole = read_dates(folder)
    # The dates before may lack files of a large folder, which are older.
    changed = [
        (os.path.relpath(path, folder), date)
        for path, date in dates.items()
        if (date != before[path] if path in before else date > since_ns - _TICK_NS)
    ]
    written = [path for path, date in changed if stored.get(path) != date]
    return Written(len(written), tuple(sorted(written[:MOST_NAMES])), is_whole)


def _has_files(folder: Path) -> bool:
    """Whether there is anything but folders. A folder with very many folders counts as output."""
    for number, entry in enumerate(_walk(folder)):
        with suppress(OSError):
            if number >= _MOST_EXAMINED or not entry.is_dir(follow_symlinks=False):
                return True
    return False


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yields the entries of a folder and of those below it, and follows no link."""
    waiting = [str(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False) and entry.name not in _CACHES:
                    waiting.append(entry.path)


def _is_killed(stop: StopRequest) -> bool:
    return stop.stop is not None and stop.stop.kind is ExitKind.KILLED
