"""The runner's side of the lease of its attempt.

Owns the renewals, and the questions to schedulers and agents when renewals fail. It renews several times a lease with
the leader. The answer also says whether the attempt is over or must stop, so a runner whose agent is away still obeys.
The lease may run out while a leader may be alive and may see this host as cut off. Then this module reports it
(`on_cut`): the ranks must stop before the leader starts the next attempt. The verdict is pure (attempt_verdict.py).
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from http.client import HTTPException

import grpc
import structlog

from gangline.domain.allocation import ExitReport
from gangline.protocol.rpc import CHANNEL_OPTIONS, find_leader, raise_if_cancelled, token_metadata
from gangline.protocol.wire import to_proto
from gangline.v1 import runner_pb2, runner_pb2_grpc
from services.common.address import split_address
from services.common.concurrency import cancel
from services.trial_runner.attempt_verdict import SchedulerSign, is_leader_cut_off, is_leaderless
from services.trial_runner.delivery import metrics

# Share of the lease: the pause between renewals, and the longest duration of one renewal or one round of questions.
PERIOD_SHARE = 0.25
# Share of the lease that is left at the start: the agent heard the leader up to half a lease before it started the
# runner.
FIRST_SHARE = 0.5
# Wait after the lease, so that the event loop can kill the ranks first. It is within the margin that the leader waits.
ENFORCE_SECONDS = 0.75
# The agents' metric with the seconds since they last heard the leader; NaN for an agent without an opinion.
SILENCE_METRIC = "gangline_agent_leader_silence_seconds"
_SILENCE = re.compile(rf"^{SILENCE_METRIC} (\S+)$", re.MULTILINE)

log = structlog.get_logger(__name__)


class AttemptLease:
    """Renews the lease while the attempt lives. Without a lease in the spec (an older scheduler) it does nothing.

    on_over: called with the reason why the attempt is over.
    on_stop: called with the stop order of the attempt, at each renewal.
    on_cut: called when the lease has run out.
    """

    def __init__(
        self,
        spec: runner_pb2.RunnerSpec,
        agent_id: str,
        *,
        on_over: Callable[[str], None],
        on_stop: Callable[[runner_pb2.AttemptStop], None],
        on_cut: Callable[[str], None],
    ) -> None:
        self._request = runner_pb2.RenewAttemptRequest(allocation_id=spec.allocation.id, node_rank=spec.node_rank)
        self._token = spec.token
        self._agent_id = agent_id
        self._on_over = on_over
        self._on_stop = on_stop
        self._on_cut = on_cut
        self._addresses = list(spec.scheduler_addresses)
        self._committee = list(spec.committee)
        self._lease_seconds = spec.lease_seconds
        self._ends_at = time.monotonic() + spec.lease_seconds * FIRST_SHARE
        self._is_renewed = asyncio.Event()
        self._has_ended = threading.Event()
        # Set by the thread before it kills, so that no end of a process is called an own failure.
        self.has_killed = False
        self._has_ranks = False
        self._is_calm = True
        self._is_over = False
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._running: asyncio.Task[None] | None = None

    @property
    def covers_start(self) -> bool:
        """Whether ranks may start now. If the preparation took too long, a renewal must come first."""
        return not self._lease_seconds or time.monotonic() < self._ends_at - self._period_seconds

    async def hold(self) -> None:
        """Returns once ranks may start."""
        if not self.covers_start:
            self._begin()
            await self._is_renewed.wait()

    def start(self, pids: Callable[[], Iterable[int]]) -> None:
        """Enforces the end of the lease on the ranks from now on. May be called again.

        pids: returns the pids of the ranks, each of which leads a process group.
        """
        if not self._has_ranks and self._lease_seconds:
            self._has_ranks = True
            threading.Thread(target=self._enforce, args=(pids,), name="lease", daemon=True).start()
        self._begin()

    def _enforce(self, pids: Callable[[], Iterable[int]]) -> None:
        """Kills the ranks if the event loop does not, because it waits for a disk that hangs, for example. Runs in a
        thread."""
        while not self._has_ended.wait(max(0.0, self._ends_at - time.monotonic())):
            if time.monotonic() < self._ends_at:
                continue
            # A process that was paused as a whole first renews the lease, if it still can.
            if self._has_ended.wait(ENFORCE_SECONDS) or time.monotonic() < self._ends_at:
                continue
            self.has_killed = True
            for pid in pids():
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            return

    def _begin(self) -> None:
        if self._running is None and self._lease_seconds:
            self._running = asyncio.create_task(self._run(), name="attempt lease")

    def end_ranks(self) -> None:
        """Ends the enforcement, because the ranks have ended. The lease is renewed further until their end is
        reported."""
        self._has_ranks = False
        self._has_ended.set()

    async def tell_exit(self, report: ExitReport, limit_seconds: float) -> None:
        """Reports the exit to the leader, for a runner whose agent is gone. Otherwise the leader would give the attempt
        up and start the next one."""
        if self._running is None or self._is_over:
            return
        await cancel(self._running)
        self._request.exit.CopyFrom(to_proto(report))
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_seconds):
                while not await self._is_told():  # noqa: ASYNC110 - it waits for another process
                    await asyncio.sleep(self._period_seconds / 4)

    async def _is_told(self) -> bool:
        asked = await self._ask_all(self._addresses)
        return SchedulerSign.RENEWED in [sign for sign, _ in asked.values()]

    async def close(self) -> None:
        if self._running is not None:
            await cancel(self._running)
        for channel in self._channels.values():
            await channel.close()

    async def _run(self) -> None:
        """Renews until the attempt is over, until the lease has run out, or until it is cancelled."""
        while not self._is_over:
            began_at = time.monotonic()
            # A runner that did not get to run for long tries once more before it gives its training up.
            least_seconds = self._period_seconds / 2 if self._has_ranks else self._period_seconds
            limit_seconds = max(self._ends_at - began_at, least_seconds)
            try:
                async with asyncio.timeout(limit_seconds):
                    await self._renew_or_excuse(began_at)
            except TimeoutError:
                pass
            except Exception:
                # This is the top of a long-lived task: an error here must not end the renewals before the lease ends.
                log.exception("the lease could not be renewed")
            now = time.monotonic()
            if now >= self._ends_at and self._has_ranks:
                self._give_up()
                return
            wake_at = began_at + self._period_seconds
            if self._has_ranks:
                wake_at = min(wake_at, self._ends_at)
            await asyncio.sleep(max(0.0, wake_at - now))

    @property
    def _period_seconds(self) -> float:
        return self._lease_seconds * PERIOD_SHARE

    async def _renew_or_excuse(self, began_at: float) -> None:
        """Asks only the leader while it answers. If it does not, asks all schedulers at once, and then the
        committee."""
        if self._is_calm:
            asked = {self._addresses[0]: await self._ask(self._addresses[0])} if self._addresses else {}
        else:
            asked = await self._ask_all(self._addresses)
            asked |= await self._ask_all([named for _, named in asked.values() if named and named not in asked])
        signs = [sign for sign, _ in asked.values()]
        if SchedulerSign.RENEWED in signs:
            self._is_calm = True
        elif self._is_calm:
            self._is_calm = False
            await self._renew_or_excuse(began_at)
        elif await self._may_go_on(signs):
            self._extend(began_at)

    async def _ask_all(self, addresses: Sequence[str]) -> dict[str, tuple[SchedulerSign, str]]:
        asked = await asyncio.gather(*(self._ask(address) for address in addresses))
        return dict(zip(addresses, asked, strict=True))

    def _extend(self, since: float) -> None:
        self._ends_at = since + self._lease_seconds
        self._is_renewed.set()

    @property
    def cut_message(self) -> str:
        return f"cut off from the scheduler for {self._lease_seconds:g} s, so another attempt may start elsewhere"

    def _give_up(self) -> None:
        log.error("the lease of this attempt has run out", schedulers=self._addresses)
        self._on_cut(self.cut_message)

    async def _ask(self, address: str) -> tuple[SchedulerSign, str]:
        """Tries to renew with one scheduler. Returns its sign and the leader that it names."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        sent_at, limit_seconds = time.monotonic(), self._period_seconds / 2
        try:
            stub = runner_pb2_grpc.RunnerServiceStub(channel)
            answer = await stub.RenewAttempt(self._request, timeout=limit_seconds, metadata=token_metadata(self._token))
        except grpc.aio.AioRpcError as error:
            raise_if_cancelled()
            # A channel in its own back-off would fail without asking the host.
            self._channels.pop(address, None)
            await channel.close()
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                return SchedulerSign.STANDBY, find_leader(error)
            return await _dial(address, limit_seconds / 2), ""
        self._on_answer(address, answer, sent_at)
        return SchedulerSign.RENEWED, ""

    def _on_answer(self, address: str, answer: runner_pb2.RenewAttemptResponse, sent_at: float) -> None:
        if answer.over_reason:
            self._is_over = True
            self._on_over(answer.over_reason)
            return
        self._lease_seconds = answer.lease_seconds or self._lease_seconds
        self._committee = list(answer.committee)
        # The leader is the first address, so the next renewal goes there.
        self._addresses = list(dict.fromkeys([address, *(answer.scheduler_addresses or self._addresses)]))
        # The lease counts from the sending of the request. The leader counts from its receipt, so this side ends first.
        self._extend(sent_at)
        metrics.attempt_renewals.inc()
        if answer.HasField("stop"):
            self._on_stop(answer.stop)

    async def _may_go_on(self, signs: Sequence[SchedulerSign]) -> bool:
        """Asks the other agents of the committee how long they have not heard the leader. Returns whether the ranks may
        train on."""
        others = [witness for witness in self._committee if witness.address and witness.agent_id != self._agent_id]
        asked = await asyncio.gather(
            *(asyncio.to_thread(_ask_silence, witness.address, self._period_seconds / 2) for witness in others)
        )
        silence = {
            witness.agent_id: seconds for witness, seconds in zip(others, asked, strict=True) if seconds is not None
        }
        members = [witness.agent_id for witness in self._committee]
        return is_leaderless(signs, self._agent_id, silence, self._lease_seconds) or is_leader_cut_off(
            members, self._agent_id, silence, self._lease_seconds
        )


async def _dial(address: str, seconds: float) -> SchedulerSign:
    """Opens a TCP connection to the scheduler. Returns ABSENT if its host refuses it, STUCK if the host accepts it, and
    SILENT if nothing answers."""
    host, port = split_address(address)
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return SchedulerSign.ABSENT
    except (OSError, TimeoutError):
        return SchedulerSign.SILENT
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
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
