"""The ranks of this machine: started together, watched, and ended together.

Owns what is known of each rank and carries out what `kill_deadline.py` decides. The nursery reports that a rank started
or ended. The ranks' link reports failures and finished trainings, and the gang reports a failure elsewhere. The runner
orders stops. `gang/outcome.py` judges from `ends()` why the ranks ended.

Counts the processes that the kernel killed for want of memory, read before the ranks start and after one was killed.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from gangline.domain.state import ExitKind
from gangline.errors import unavailable
from gangline.protocol.wire import enum_member
from gangline.v1 import rank_pb2
from services.common.concurrency import cancel
from services.trial_runner.delivery import metrics
from services.trial_runner.gang.gang_plan import Place
from services.trial_runner.gang.outcome import MAX_CODE_LENGTH, FailureRecord, RankEnd, find_cause, first_cause
from services.trial_runner.ranks.kill_deadline import SETTLE_SECONDS, Orders, RankView, plan_kills
from services.trial_runner.ranks.log_pump import LAST_LINES, LogPump
from services.trial_runner.ranks.nursery_client import NurseryClient
from services.trial_runner.ranks.traceback_fold import fold_tracebacks

# Wait for a rank to end after SIGKILL. A rank that survives it is stuck in the kernel (a hung GPU, a dead network
# disk), so a longer wait changes nothing.
GIVE_UP_SECONDS = 10.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Rank:
    end: RankEnd
    is_alive: bool = True
    finished_at: float = 0.0
    failed_at: float = 0.0
    killed_at: float = 0.0
    was_asked: bool = False
    pid: int = 0
    # Whether its process may exist, or may have existed.
    has_begun: bool = False


@dataclass(slots=True)
class RankGroup:
    """Starts, watches and ends the ranks of one machine."""

    place: Place
    nursery: NurseryClient
    pump: LogPump
    # called with the cause as soon as there is one, and again if a better one is known
    on_failure: Callable[[FailureRecord], None]
    # returns whether the end of the lease has killed the ranks, which the nursery does not see
    is_cut: Callable[[], bool] = lambda: False
    lost: str = ""  # why the nursery died while ranks lived; empty if it did not
    _directory: str = ""
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _orders: Orders = field(default_factory=Orders)
    _told: FailureRecord | None = None
    _timer: asyncio.TimerHandle | None = None
    _oom_kills_before: int = 0
    _up: asyncio.Future[float] | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _watching: asyncio.Task[None] | None = None
    _end_began_at: float | None = None
    _ended_at: float | None = None

    async def start(
        self,
        environments: Mapping[int, Mapping[str, str]],
        directory: str,
        num_threads: int,
        program: Sequence[str] = (),
    ) -> float:
        """Starts every rank. Returns the time at which the last one was up.

        program: the command that replaces each rank's process; empty for Python. Raises GanglineError `runner.no_rank`.
        """
        self._directory = directory
        self._up = asyncio.get_running_loop().create_future()
        # The kernel only counts its kills. A higher count after a SIGKILL means that memory ran out.
        self._oom_kills_before = count_oom_kills()
        self._watching = asyncio.create_task(self._watch())
        for rank, environment in environments.items():
            fds = [self.pump.open_pipe(rank, stream) for stream in ("stdout", "stderr")]
            self._ranks[rank] = _Rank(RankEnd(rank))
            try:
                self.nursery.start(
                    rank, environment, directory=directory, num_threads=num_threads, fds=fds, program=program
                )
                self._ranks[rank].has_begun = True
            finally:
                for fd in fds:
                    os.close(fd)
        metrics.ranks.set(len(self._ranks))
        return await self._up

    @property
    def has_begun(self) -> bool:
        """Whether the process of any rank may have started."""
        return any(rank.has_begun for rank in self._ranks.values())

    async def wait_ended(self) -> None:
        """Returns when every rank has ended, or when the remaining ones survive SIGKILL."""
        await self._ended.wait()

    async def close(self) -> None:
        """Cancels the timer and the watch. Called only after `wait_ended`, or when the nursery is closed too."""
        if self._timer is not None:
            self._timer.cancel()
        if self._watching is not None:
            await cancel(self._watching)

    def describe_end(self, *, was_ordered: bool) -> str:
        """Returns a sentence with the duration of the end, on the monotonic clock.

        The duration begins when this runner learned of the failure, or received the order to end its ranks at once. It
        ends when the last rank was gone. The sentence is empty if there was no such moment.
        """
        if self._end_began_at is None or self._ended_at is None:
            return ""
        seconds = max(0.0, self._ended_at - self._end_began_at)
        since = "they had to end" if was_ordered else "the failure was noticed"
        return f"all ranks of {self.place.agent_id} were gone {seconds:.3f} s after {since}"

    @property
    def living(self) -> list[int]:
        """Ranks that have not ended, without those that reported that their training is over."""
        return [rank for rank, state in self._ranks.items() if state.is_alive and not state.finished_at]

    @property
    def pids(self) -> list[int]:
        """The pids of all ranks, also of ended ones; 0 for a rank that is not up yet."""
        return [rank.pid for rank in self._ranks.values()]

    @property
    def living_pids(self) -> list[int]:
        """The pids of the ranks whose end was not reported yet."""
        return [rank.pid for rank in self._ranks.values() if rank.is_alive]

    def ends(self) -> list[RankEnd]:
        """Returns how each rank ended, with its last lines. The lines are complete once the log pump is drained."""
        return [
            replace(
                rank.end,
                last_lines=self.pump.last_lines(rank.end.rank),
                report_lines=self._report_lines(rank.end.rank),
                trace_lines=self.pump.trace_lines(rank.end.rank),
                stdout_line=self.pump.stdout_line(rank.end.rank),
                is_stdout_later=self.pump.is_stdout_later(rank.end.rank),
                uncaught_lines=self.pump.uncaught_lines(rank.end.rank),
            )
            for rank in sorted(self._ranks.values(), key=lambda rank: rank.end.rank)
        ]

    def _report_lines(self, rank: int) -> tuple[str, ...]:
        """Returns the last lines for a user to read, in which tracebacks show the user's code."""
        if self.pump.is_stdout_later(rank):
            return self.pump.newest_lines(rank)
        folders = (self._directory, os.path.realpath(self._directory))
        return tuple(fold_tracebacks(self.pump.trace_lines(rank), folders)[-LAST_LINES:])

    def on_message(self, rank: int, message: rank_pb2.RankMessage) -> None:
        """Takes the messages in which a rank, or a worker that it has started, reports its own end; ignores all
        others."""
        state = self._ranks.get(self.place.process_of(rank))
        if state is None:
            return
        match message.WhichOneof("message"):
            case "failure":
                state.end = replace(state.end, failure=_to_failure(rank, self.place.agent_id, message.failure))
                state.failed_at = time.time()
                self._begin_end()
            case "finished":
                state.end = replace(state.end, is_finished=True)
                state.finished_at = time.time()
            case "worker_failure":
                told = _to_failure(rank, self.place.agent_id, message.worker_failure)
                earlier = state.end.worker_failure
                # A worker that only notices the end of another one is not the cause.
                is_new = earlier is None or earlier.is_consequence or not told.is_consequence
                state.end = replace(state.end, worker_failure=told if is_new else earlier)
            case "stopping":
                state.end = replace(state.end, is_preempted=True)
            case _:
                return
        self._act()

    def on_peer_failure(self) -> None:
        """Ends the ranks of this machine, because another member has failed."""
        if self._orders.peer_failed_at is None:
            self._orders = replace(self._orders, peer_failed_at=time.time())
            self._begin_end()
            self._act()

    def stop(self, deadline_at: float, has_link: frozenset[int]) -> None:
        """Ends all ranks by `deadline_at`.

        has_link: the ranks that were asked to stop over their link. The others are plain commands; they get SIGTERM if
        there is time left to react to it.
        """
        self._orders = replace(self._orders, stop_at=min(deadline_at, self._orders.stop_at or deadline_at))
        if deadline_at <= time.time():
            self._begin_end()
        asked = set(map(self.place.process_of, has_link))
        deaf = [rank for rank, state in self._ranks.items() if state.is_alive and rank not in asked]
        if deaf and deadline_at > time.time():
            for rank in deaf:
                self._ranks[rank].was_asked = True
            self.nursery.signal(deaf, signal.SIGTERM)
        self._act()

    async def _watch(self) -> None:
        while (event := await self.nursery.events.get()) is not None:
            self._on_event(event)
        self._on_nursery_lost()

    def _on_event(self, event: dict[str, Any]) -> None:
        state = self._ranks.get(event["rank"])
        if state is None:
            return
        match event["event"]:
            case "started":
                state.pid = event["pid"]
                if self._up is not None and not self._up.done() and all(self.pids):
                    self._finish_start()
            case "start_failed":
                state.is_alive = state.has_begun = False
                if self._up is not None and not self._up.done():
                    self._up.set_exception(unavailable("runner.no_rank", f"cannot start a rank: {event['error']}"))
            case "exited":
                self._on_exit(state, event)

    def _finish_start(self) -> None:
        assert self._up is not None
        if len(self._ranks) == len(self.place.ranks):
            self._up.set_result(time.time())

    def _on_exit(self, state: _Rank, event: dict[str, Any]) -> None:
        number = event["signal"]
        exceeded_memory = event["exit_code"] != 0 and self.nursery.confinement.exceeded_memory(event["rank"])
        state.is_alive = False
        state.end = replace(
            state.end,
            exit_code=event["exit_code"],
            signal=number,
            ended_at=event["at"],
            # A command that ends after SIGTERM, with any code, has obeyed.
            was_killed=((event["was_killed"] or self.is_cut()) and number == signal.SIGKILL) or state.was_asked,
            was_out_of_memory=exceeded_memory
            or (event["exit_code"] != 0 and count_oom_kills() > self._oom_kills_before),
            exceeded_memory=exceeded_memory,
        )
        if not state.end.is_success:
            self._begin_end()
        log.info("a rank ended", rank=state.end.rank, exit_code=event["exit_code"], signal=number)
        metrics.ranks.dec()
        self._act()

    def _on_nursery_lost(self) -> None:
        living = [state for state in self._ranks.values() if state.is_alive]
        if living:
            self.lost = f"the process that holds the ranks (pid {self.nursery.pid}) died, and its ranks with it"
        for state in living:
            state.is_alive = False
        if self._up is not None and not self._up.done():
            self._up.set_exception(unavailable("runner.no_rank", self.lost or "the process that forks ranks died"))
        self._act()

    def _act(self) -> None:
        """Carries out what is due now, and sets a timer for the next deadline."""
        self.tell(time.time() - SETTLE_SECONDS)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ranks and not any(state.is_alive for state in self._ranks.values()):
            self._ended_at = self._ended_at or time.monotonic()
            self._ended.set()
            return
        now = time.time()
        kills = plan_kills([_view(state) for state in self._ranks.values()], self._orders)
        due = [rank for rank, at in kills.items() if at <= now and not self._ranks[rank].killed_at]
        if due:
            self._kill(due, now)
        if any(state.killed_at and now - state.killed_at >= GIVE_UP_SECONDS for state in self._living()):
            log.error("ranks survive SIGKILL; going on without them")
            self._ended.set()
            return
        later = [at for rank, at in kills.items() if not self._ranks[rank].killed_at]
        later += [state.killed_at + GIVE_UP_SECONDS for state in self._living() if state.killed_at]
        if self._told is None:
            ended = [state.end for state in self._ranks.values() if not state.is_alive]
            later += [end.ended_at + SETTLE_SECONDS for end in ended if not end.is_success and not _has_said_all(end)]
        if later:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, min(later) - now), self._act)

    def _begin_end(self) -> None:
        if self._end_began_at is None:
            self._end_began_at = time.monotonic()

    def _living(self) -> list[_Rank]:
        return [state for state in self._ranks.values() if state.is_alive]

    def _kill(self, ranks: list[int], now: float) -> None:
        log.info("killing ranks", ranks=ranks)
        for rank in ranks:
            self._ranks[rank].killed_at = now
        self.nursery.signal(ranks, signal.SIGKILL)

    def tell(self, silent_before: float) -> None:
        """Reports the cause to `on_failure`, if there is one that was not reported yet.

        silent_before: ranks that ended later than this, and whose last lines name the cause, are skipped. Their lines
        may still be in the pipe.
        """
        heard = [end for end in self.ends() if _has_said_all(end) or end.ended_at <= silent_before]
        cause = find_cause(heard)
        if cause is None or (self._told is not None and first_cause(self._told, cause) is self._told):
            return
        self._told = replace(cause, agent_id=self.place.agent_id)
        self.on_failure(self._told)


def _has_said_all(end: RankEnd) -> bool:
    """Whether the rank's last lines add nothing to what is known of its end. A process prints its cause before
    abort()."""
    return end.failure is not None or (end.signal is not None and end.signal != signal.SIGABRT)


def _view(state: _Rank) -> RankView:
    return RankView(state.end, state.is_alive, state.finished_at, state.failed_at)


def _to_failure(rank: int, agent_id: str, message: rank_pb2.RankFailure) -> FailureRecord:
    return FailureRecord(
        kind=enum_member(ExitKind, message.kind),
        message=message.message,
        rank=rank,
        agent_id=agent_id,
        failed_at=message.failed_at,
        details=message.traceback,
        error_code=message.error_code[:MAX_CODE_LENGTH],
    )


_OOM_KILLS = re.compile(r"^oom_kill (\d+)", re.MULTILINE)
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def count_oom_kills() -> int:
    """Returns the number of kills up to now."""
    count = _read_count(_own_cgroup() / "memory.events")
    return (_read_count(Path("/proc/vmstat")) or 0) if count is None else count


def _own_cgroup() -> Path:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return _CGROUP_ROOT
    paths = [line.partition("::")[2] for line in lines if line.startswith("0::")]
    return _CGROUP_ROOT / paths[0].lstrip("/") if paths else _CGROUP_ROOT


def _read_count(path: Path) -> int | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    match = _OOM_KILLS.search(text)
    return int(match[1]) if match else None
