"""The runner's side of the lease of its attempt.

Owns the renewals, and the questions to schedulers and agents when renewals fail. It renews several times a lease with
the leader. The answer also says whether the attempt is over or must stop, so a runner whose agent is away still obeys.
The lease may run out while a leader may be alive and may see this host as cut off. Then this module reports it
(`on_cut`): the ranks must stop before the leader starts the next attempt. The verdict is pure (attempt_verdict.py).

All of this happens in threads of its own: an event loop that reads many lines, or waits for a disk, delays no renewal.
The threads must not keep an attempt alive whose loop has stopped for good. So renewals cease when the loop has shown no
activity for STALLED_SECONDS.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from typing import Any

import grpc
import structlog

from gangline.domain.allocation import ExitReport
from gangline.launch.lease_record import LeaseRecord, boot_seconds
from gangline.protocol.dialer import PLAIN, Dialer
from gangline.protocol.rpc import SMALL_MESSAGE_OPTIONS, find_leader, token_metadata
from gangline.protocol.wire import to_proto
from gangline.v1 import runner_pb2, runner_pb2_grpc
from services.common.address import split_address
from services.common.timer_grid import seconds_until_due
from services.trial_runner.attempt_verdict import SchedulerSign, is_leader_cut_off, is_leaderless
from services.trial_runner.delivery import metrics
from services.trial_runner.ranks.nursery_client import NurseryClient

# Share of the lease: the pause between renewals, and the longest duration of one renewal or one round of questions.
PERIOD_SHARE = 0.25
# Share of the lease that is left at the start: the agent heard the leader up to half a lease before it started the
# runner.
FIRST_SHARE = 0.5
# Wait after the lease, so that the event loop can kill the ranks first. It is within the margin that the leader waits.
ENFORCE_SECONDS = 0.75
# Silence of the event loop after which it counts as dead. A working disk needs less time for one write, however busy.
STALLED_SECONDS = 30.0
# Time after which the renewals begin for what has just started. A command that has ended by then is reported by its
# exit alone, and its process, which has no other thread, can take the next command.
QUIET_SECONDS = 0.2
# The nice value of the threads, so that ranks on all cores do not delay a renewal.
PRIORITY = -10
# Calls and questions of one round that run at the same time: the schedulers, or the agents of a committee.
MAX_PARALLEL = 12
# A channel shares no connection with others: one that is in its back-off would fail without asking the host.
_OPTIONS = [*SMALL_MESSAGE_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
# The agents' metric with the seconds since they last heard the leader; NaN for an agent without an opinion.
SILENCE_METRIC = "gangline_agent_leader_silence_seconds"
_SILENCE = re.compile(rf"^{SILENCE_METRIC} (\S+)$", re.MULTILINE)

log = structlog.get_logger(__name__)


class AttemptLease:
    """Renews the lease while the attempt lives. Without a lease in the spec (an older scheduler) it does nothing.

    Made and called on the event loop, where the callbacks are called too, but for `start`.
    on_over: called with the reason why the attempt is over.
    on_stop: called with the stop order of the attempt, at each renewal.
    on_cut: called when the lease has run out.
    dialer: opens the channels; it has opened one before, or was asked for its version.
    """

    def __init__(
        self,
        spec: runner_pb2.RunnerSpec,
        agent_id: str,
        *,
        on_over: Callable[[str], None],
        on_stop: Callable[[runner_pb2.AttemptStop], None],
        on_cut: Callable[[str], None],
        dialer: Dialer = PLAIN,
    ) -> None:
        self._request = runner_pb2.RenewAttemptRequest(allocation_id=spec.allocation.id, node_rank=spec.node_rank)
        self._metadata = token_metadata(spec.token)
        self._agent_id = agent_id
        self._dialer = dialer
        self._on_over = on_over
        self._on_stop = on_stop
        self._on_cut = on_cut
        self._addresses = list(spec.scheduler_addresses)
        self._committee = list(spec.committee)
        self._lease_seconds = spec.lease_seconds
        # Of the clock that goes on while the machine is suspended, as the leader's does meanwhile.
        self._ends_at = boot_seconds() + spec.lease_seconds * FIRST_SHARE
        self._record: LeaseRecord | None = None
        self._loop = asyncio.get_running_loop()
        self._starting: threading.Timer | None = None
        self._is_renewed = asyncio.Event()
        self._loop_probe = _LoopProbe(self._loop)
        self._lock = threading.Lock()
        self._pids: Callable[[], Iterable[int]] = list
        # Set by the thread before it kills, so that no end of a process is called an own failure.
        self.has_killed = False
        self._has_ranks = False
        self._have_ended = threading.Event()
        self._is_calm = True
        self._is_over = False
        self._is_cut = False
        self._is_closing = threading.Event()
        self._channels: dict[str, grpc.Channel] = {}
        self._pool: ThreadPoolExecutor | None = None

    @property
    def covers_start(self) -> bool:
        """Whether ranks may start now. If the preparation took too long, a renewal must come first."""
        return not self._lease_seconds or boot_seconds() < self._ends_at - self._period_seconds

    async def hold(self) -> None:
        """Returns once ranks may start."""
        if not self.covers_start:
            self._begin()
            await self._is_renewed.wait()

    def guard(self, nursery: NurseryClient) -> None:
        """Has the nursery end its ranks with the lease, even if this process is stopped. Called before ranks start.

        From now on the lease must be renewed: the next call is `start_soon` or `start`.
        """
        if not self._lease_seconds:
            return
        with self._lock:
            self._record = LeaseRecord(self._ends_at)
            reader = self._record.open_reader()
        try:
            nursery.hold_lease(reader, self._on_unrenewed)
        finally:
            os.close(reader)

    def _on_unrenewed(self) -> None:
        text = f"no renewal for {self._lease_seconds:g} s, because the trial runner was stopped or did not get to run"
        self._on_cut(f"{text}; its ranks were ended, so another attempt may start elsewhere")

    def start(self, pids: Callable[[], Iterable[int]]) -> None:
        """Enforces the end of the lease on the ranks from now on. May be called again, and from any thread.

        pids: returns the pids of the ranks, each of which leads a process group. Called in a thread.
        """
        self._pids, self._has_ranks = pids, True
        self._begin()

    def start_soon(self, pids: Callable[[], Iterable[int]]) -> None:
        """Calls `start` in QUIET_SECONDS, counted from the last call, unless the ranks have ended by then. A thread
        waits for that time, because the event loop may hang in the ranks' first line."""
        self._cancel_start()
        self._starting = threading.Timer(QUIET_SECONDS, self.start, (pids,))
        self._starting.daemon = True
        self._starting.start()

    def _cancel_start(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            # It has ended, or does so at once: the process may have to have no other thread.
            self._starting.join()

    def _begin(self) -> None:
        with self._lock:
            if self._pool is not None or not self._lease_seconds:
                return
            self._pool = ThreadPoolExecutor(MAX_PARALLEL, "lease")
        threading.Thread(target=self._run, args=(self._pool,), name="lease", daemon=True).start()

    def end_ranks(self) -> None:
        """Ends the enforcement, because the ranks have ended. The lease is renewed further until their end is
        reported."""
        self._cancel_start()
        self._has_ranks = False
        self._have_ended.set()

    async def tell_exit(self, report: ExitReport, limit_seconds: float) -> None:
        """Reports the exit to the leader, for a runner whose agent is gone. Otherwise the leader would give the attempt
        up and start the next one."""
        if self._pool is None or self._is_over:
            return
        self._is_closing.set()
        request = runner_pb2.RenewAttemptRequest(exit=to_proto(report))
        request.MergeFrom(self._request)
        self._request = request
        await asyncio.to_thread(self._tell_exit, self._pool, time.monotonic() + limit_seconds)

    def _tell_exit(self, pool: ThreadPoolExecutor, give_up_at: float) -> None:
        while (left := give_up_at - time.monotonic()) > 0:
            asked = self._ask_all(pool, self._addresses, min(left, self._period_seconds / 2))
            if SchedulerSign.RENEWED in [sign for sign, _ in asked.values()]:
                return
            time.sleep(max(0.0, min(self._period_seconds / 4, give_up_at - time.monotonic())))

    async def close(self) -> None:
        """Ends the renewals. The threads end as soon as their calls do, which are cancelled."""
        self._cancel_start()
        self._is_closing.set()
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
            record, self._record = self._record, None
        for channel in channels:
            channel.close()
        if record is not None:
            record.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, pool: ThreadPoolExecutor) -> None:
        """Renews until the attempt is over, until the lease has run out, or until it is closed. Runs in a thread."""
        with suppress(OSError):
            # The priority changes for this thread and the pool's alone, which are started from here. A runner without
            # the right to change it continues without.
            os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        tries_again = False
        while not (self._is_over or self._is_closing.is_set()):
            began_at = boot_seconds()
            # A runner that did not get to run for long tries once more before it gives its training up.
            least_seconds = self._period_seconds / 2 if self._has_ranks else self._period_seconds
            limit_seconds = max(self._ends_at - began_at, least_seconds)
            if self._loop_probe.is_stalled():
                log.error("no renewal: the event loop makes no progress", stalled_seconds=STALLED_SECONDS)
            else:
                self._run_round(pool, began_at, limit_seconds)
            now = boot_seconds()
            # It did not get to run within the round, whose limit has passed without a question.
            tries_again = not tries_again and now - began_at > limit_seconds + least_seconds
            if now >= self._ends_at and self._has_ranks:
                if tries_again:
                    continue
                self._is_cut = True
                self._give_up()
                break
            wake_at = began_at + seconds_until_due(self._period_seconds, began_at)
            if self._has_ranks:
                wake_at = min(wake_at, self._ends_at)
            self._is_closing.wait(max(0.0, wake_at - now))
        if self._is_cut or self._is_over:
            self._enforce()

    def _run_round(self, pool: ThreadPoolExecutor, began_at: float, limit_seconds: float) -> None:
        """Runs one round of questions, or leaves it to itself after the limit: its answers count whenever they come."""
        is_done = threading.Event()
        try:
            asking = pool.submit(self._renew_or_excuse, pool, began_at)
        except RuntimeError:
            # The pool was shut down.
            return
        asking.add_done_callback(partial(self._note_round, is_done))
        is_done.wait(limit_seconds)

    def _note_round(self, is_done: threading.Event, asking: Future[None]) -> None:
        is_done.set()
        if not asking.cancelled() and (error := asking.exception()) is not None and not self._is_closing.is_set():
            log.error("the lease could not be renewed", exc_info=error)

    def _enforce(self) -> None:
        """Kills the ranks if the event loop does not, because it waits for a disk that hangs, for example."""
        if self._have_ended.wait(ENFORCE_SECONDS):
            return
        self.has_killed = True
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    @property
    def _period_seconds(self) -> float:
        return self._lease_seconds * PERIOD_SHARE

    def _renew_or_excuse(self, pool: ThreadPoolExecutor, began_at: float) -> None:
        """Asks only the leader while it answers. If it does not, asks all schedulers at once, and then the
        committee."""
        limit_seconds = self._period_seconds / 2
        if self._is_calm and self._addresses:
            sign, _ = self._ask(self._addresses[0], limit_seconds)
            if sign is SchedulerSign.RENEWED:
                return
        self._is_calm = False
        asked = self._ask_all(pool, self._addresses, limit_seconds)
        named = [leader for _, leader in asked.values() if leader and leader not in asked]
        asked |= self._ask_all(pool, named, limit_seconds)
        signs = [sign for sign, _ in asked.values()]
        if SchedulerSign.RENEWED not in signs and self._may_go_on(pool, signs):
            self._extend(began_at)

    def _ask_all(
        self, pool: ThreadPoolExecutor, addresses: Sequence[str], limit_seconds: float
    ) -> dict[str, tuple[SchedulerSign, str]]:
        return dict(zip(addresses, pool.map(partial(self._ask, limit_seconds=limit_seconds), addresses), strict=True))

    def _extend(self, since: float) -> None:
        with self._lock:
            ends_at = since + self._lease_seconds
            if self._is_cut or ends_at <= self._ends_at:
                return
            self._ends_at = ends_at
            if self._record is not None:
                self._record.write(ends_at)
        self._call(self._is_renewed.set)

    @property
    def cut_message(self) -> str:
        return f"cut off from the scheduler for {self._lease_seconds:g} s, so another attempt may start elsewhere"

    def _give_up(self) -> None:
        log.error("the lease of this attempt has run out", schedulers=self._addresses)
        self._call(self._on_cut, self.cut_message)

    def _call(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Calls on the event loop, unless the runner has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _ask(self, address: str, limit_seconds: float) -> tuple[SchedulerSign, str]:
        """Tries to renew with one scheduler. Returns its sign and the leader that it names.

        A leader that is busy may answer after the limit; that answer counts as well.
        """
        channel = self._open_channel(address)
        sent_at = boot_seconds()
        try:
            stub = runner_pb2_grpc.RunnerServiceStub(channel)
            call = stub.RenewAttempt.future(self._request, timeout=self._lease_seconds, metadata=self._metadata)
            answer = call.result(limit_seconds)
        except grpc.FutureTimeoutError:
            self._forget_channel(address, channel)
            call.add_done_callback(partial(self._on_late_answer, address, channel, sent_at))
        except (grpc.FutureCancelledError, ValueError):
            # The channel was closed, by another round or because the runner ends.
            self._forget_channel(address, channel)
        except grpc.RpcError as error:
            self._forget_channel(address, channel)
            channel.close()
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                return SchedulerSign.STANDBY, find_leader(error)
        else:
            self._on_answer(address, answer, sent_at)
            return SchedulerSign.RENEWED, ""
        return SchedulerSign.SILENT if self._is_closing.is_set() else _dial(address, limit_seconds / 2), ""

    def _open_channel(self, address: str) -> grpc.Channel:
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = self._dialer.open(address, _OPTIONS)
            return channel

    def _forget_channel(self, address: str, channel: grpc.Channel) -> None:
        """Has the next question go over a new connection."""
        with self._lock:
            if self._channels.get(address) is channel:
                del self._channels[address]

    def _on_late_answer(self, address: str, channel: grpc.Channel, sent_at: float, call: Any) -> None:
        if not call.cancelled() and call.exception() is None:
            self._on_answer(address, call.result(), sent_at)
        channel.close()

    def _on_answer(self, address: str, answer: runner_pb2.RenewAttemptResponse, sent_at: float) -> None:
        if answer.over_reason:
            self._is_over = True
            self._call(self._on_over, answer.over_reason)
            return
        self._is_calm = True
        self._lease_seconds = answer.lease_seconds or self._lease_seconds
        self._committee = list(answer.committee)
        # The leader is the first address, so the next renewal goes there.
        self._addresses = list(dict.fromkeys([address, *(answer.scheduler_addresses or self._addresses)]))
        # The lease counts from the sending of the request. The leader counts from its receipt, so this side ends first.
        self._extend(sent_at)
        metrics.attempt_renewals.inc()
        if answer.HasField("stop"):
            self._call(self._on_stop, answer.stop)

    def _may_go_on(self, pool: ThreadPoolExecutor, signs: Sequence[SchedulerSign]) -> bool:
        """Asks the other agents of the committee how long they have not heard the leader. Returns whether the ranks may
        train on."""
        others = [witness for witness in self._committee if witness.address and witness.agent_id != self._agent_id]
        ask = partial(_ask_silence, seconds=self._period_seconds / 2)
        asked = pool.map(ask, [witness.address for witness in others])
        silence = {
            witness.agent_id: seconds for witness, seconds in zip(others, asked, strict=True) if seconds is not None
        }
        members = [witness.agent_id for witness in self._committee]
        return is_leaderless(signs, self._agent_id, silence, self._lease_seconds) or is_leader_cut_off(
            members, self._agent_id, silence, self._lease_seconds
        )


class _LoopProbe:
    """Finds out from a thread whether the event loop still runs: it calls back on the loop, one call at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked_at: float | None = None

    def is_stalled(self) -> bool:
        """Whether the loop has not answered for STALLED_SECONDS. The monotonic clock stops with a suspended machine, on
        which the loop could not answer."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._answer)
            return False
        return time.monotonic() - self._asked_at >= STALLED_SECONDS

    def _answer(self) -> None:
        self._asked_at = None


def _dial(address: str, seconds: float) -> SchedulerSign:
    """Opens a TCP connection to the scheduler. Returns ABSENT if its host refuses it, STUCK if the host accepts it, and
    SILENT if nothing answers. Blocks."""
    try:
        socket.create_connection(split_address(address), timeout=seconds).close()
    except ConnectionRefusedError:
        return SchedulerSign.ABSENT
    except OSError:
        return SchedulerSign.SILENT
    return SchedulerSign.STUCK


def _ask_silence(address: str, seconds: float) -> float | None:
    """Returns for how many seconds the agent has not heard the leader. Blocks.

    The result is None if the agent does not answer, or has no opinion because it is late itself.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/metrics?name[]={SILENCE_METRIC}", timeout=seconds) as response:
            match = _SILENCE.search(response.read(1 << 16).decode(errors="replace"))
        silence = float(match[1]) if match else math.nan
    except (OSError, ValueError, HTTPException):
        return None
    return None if math.isnan(silence) else silence
