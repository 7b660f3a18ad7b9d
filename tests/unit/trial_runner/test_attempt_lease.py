"""The runner's lease where its event loop, or a witness, does not do what it should."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from gangline.launch.lease_record import boot_seconds
from gangline.v1 import runner_pb2, runner_pb2_grpc, types_pb2
from services.trial_runner import attempt_lease
from services.trial_runner.attempt_lease import AttemptLease
from tests.support.wait import until

LEASE_SECONDS = 1.0
# For tests in which a busy machine must not end the lease.
LONG_LEASE_SECONDS = 4.0


def _lease(
    cuts: list[str],
    committee: tuple[runner_pb2.Witness, ...] = (),
    scheduler_addresses: tuple[str, ...] = (),
    lease_seconds: float = LEASE_SECONDS,
) -> AttemptLease:
    spec = runner_pb2.RunnerSpec(
        allocation=types_pb2.Allocation(id="7.1.1"),
        lease_seconds=lease_seconds,
        committee=committee,
        scheduler_addresses=scheduler_addresses,
        token="t",
    )
    return AttemptLease(spec, "a1", on_over=lambda _: None, on_stop=lambda _: None, on_cut=cuts.append)


async def test_ranks_end_with_the_lease_also_where_the_event_loop_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_lease, "ENFORCE_SECONDS", 0.1)
    rank = _sleeper()
    lease = _lease([])
    try:
        lease.start(lambda: [rank.pid])
        # The loop stands still, as beside a disk that hangs; nothing else can end the rank.
        rank.wait(10)
        assert rank.returncode == -9
    finally:
        rank.kill()
        await lease.close()


async def test_a_lease_that_ends_in_order_kills_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_lease, "ENFORCE_SECONDS", 0.0)
    rank = _sleeper()
    lease = _lease([])
    try:
        lease.start(lambda: [rank.pid])
        lease.end_ranks()
        with pytest.raises(subprocess.TimeoutExpired):
            rank.wait(2 * LEASE_SECONDS)
    finally:
        rank.kill()
        rank.wait()
        await lease.close()


async def test_a_busy_event_loop_delays_no_renewal() -> None:
    with _leader(LONG_LEASE_SECONDS) as leader:
        cuts: list[str] = []
        lease = _lease(cuts, scheduler_addresses=(leader.address,), lease_seconds=LONG_LEASE_SECONDS)
        try:
            lease.start(list)
            # Without a renewal the first lease, which is half as long, ends meanwhile.
            _compute(0.75 * LONG_LEASE_SECONDS)
            assert leader.num_renewals >= 2
            await asyncio.sleep(0)
            assert cuts == []
        finally:
            await lease.close()


async def test_renewals_are_due_at_the_same_times_for_all_processes() -> None:
    period_seconds = LONG_LEASE_SECONDS * attempt_lease.PERIOD_SHARE
    with _leader(LONG_LEASE_SECONDS) as leader:
        times: list[float] = []
        leader.on_renewal = lambda: times.append(boot_seconds())
        lease = _lease([], scheduler_addresses=(leader.address,), lease_seconds=LONG_LEASE_SECONDS)
        try:
            # The first one follows the start, in the middle of a period.
            await asyncio.sleep((period_seconds / 2 - boot_seconds()) % period_seconds)
            lease.start(list)
            await until(lambda: len(times) >= 4, "four renewals")
        finally:
            await lease.close()
    late_seconds = [at % period_seconds for at in times[1:4]]
    assert min(late_seconds) < period_seconds / 5, late_seconds


async def test_a_late_answer_renews_from_the_time_of_its_request() -> None:
    with _leader(LONG_LEASE_SECONDS, LONG_LEASE_SECONDS / 4) as leader, _witness("0.1") as address:
        cuts: list[str] = []
        # The witness hears the leader, so the lease is not extended without an answer.
        committee = (runner_pb2.Witness(agent_id="a1"), runner_pb2.Witness(agent_id="a2", address=address))
        leader.committee = committee
        lease = _lease(cuts, committee, (leader.address,), LONG_LEASE_SECONDS)
        try:
            lease.start(list)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(LONG_LEASE_SECONDS):
                    await until(lambda: bool(cuts), "the end of the lease", 60)
        finally:
            await lease.close()


@pytest.mark.parametrize("num_pauses", [1, 3])
async def test_a_pause_in_the_middle_of_a_renewal_ends_no_training(
    num_pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a machine that was suspended. The questions after a first pause may wait through another one."""
    clock = _Clock()
    monkeypatch.setattr(attempt_lease, "boot_seconds", clock.now)
    with _leader(LONG_LEASE_SECONDS) as leader:
        cuts: list[str] = []
        lease = _lease(cuts, scheduler_addresses=(leader.address,), lease_seconds=LONG_LEASE_SECONDS)
        leader.on_renewal = lambda: clock.jump(3 * LONG_LEASE_SECONDS if leader.num_renewals <= num_pauses else 0.0)
        try:
            lease.start(list)
            await until(lambda: leader.num_renewals > num_pauses + 1 or bool(cuts), "a renewal behind the pauses")
            # The leader does not wait for ever.
            assert len(cuts) == (num_pauses > 1)
        finally:
            await lease.close()


async def test_an_event_loop_that_is_dead_renews_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_lease, "STALLED_SECONDS", LEASE_SECONDS)
    rank = _sleeper()
    with _leader() as leader:
        lease = _lease([], scheduler_addresses=(leader.address,))
        try:
            began_at = time.monotonic()
            lease.start(lambda: [rank.pid])
            rank.wait(20)
            # It renewed for as long as the loop might have come back, and then the lease ran out.
            assert time.monotonic() - began_at > 2 * LEASE_SECONDS
            assert leader.num_renewals >= 2
            assert rank.returncode == -9
        finally:
            rank.kill()
            await lease.close()


async def test_a_witness_that_answers_nonsense_is_no_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    with _answering(b"SSH-2.0-x\r\n") as address:
        cuts: list[str] = []
        lease = _lease(cuts, (runner_pb2.Witness(agent_id="a1"), runner_pb2.Witness(agent_id="a2", address=address)))
        try:
            lease.start(list)
            await until(lambda: bool(cuts), "the end of the lease", 10)
        finally:
            await lease.close()


def _sleeper() -> subprocess.Popen[bytes]:
    """A process in the place of a rank; like a rank, it leads its own session."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)


def _compute(seconds: float) -> None:
    """Computes in Python without a pause, as a runner does that takes many lines."""
    until_at = time.monotonic() + seconds
    while time.monotonic() < until_at:
        sum(range(1000))


class _Clock:
    """The clock of a machine that may be suspended."""

    def __init__(self) -> None:
        self._jumped_seconds = 0.0

    def now(self) -> float:
        return boot_seconds() + self._jumped_seconds

    def jump(self, seconds: float) -> None:
        self._jumped_seconds += seconds


class _Leader(runner_pb2_grpc.RunnerServiceServicer):
    """A leader that is not on the event loop of the test."""

    def __init__(self, lease_seconds: float, answer_seconds: float) -> None:
        self.address = ""
        self.num_renewals = 0
        self.committee: tuple[runner_pb2.Witness, ...] = ()
        self.on_renewal: Callable[[], None] = lambda: None
        self._lease_seconds = lease_seconds
        self._answer_seconds = answer_seconds

    def RenewAttempt(self, _request: Any, _context: Any) -> runner_pb2.RenewAttemptResponse:  # noqa: N802 - grpc's name
        self.num_renewals += 1
        self.on_renewal()
        time.sleep(self._answer_seconds)
        return runner_pb2.RenewAttemptResponse(lease_seconds=self._lease_seconds, committee=self.committee)


@contextmanager
def _leader(lease_seconds: float = LEASE_SECONDS, answer_seconds: float = 0.0) -> Iterator[_Leader]:
    leader = _Leader(lease_seconds, answer_seconds)  # type: ignore[abstract]  # nothing makes its other calls
    server = grpc.server(ThreadPoolExecutor(8))
    runner_pb2_grpc.add_RunnerServiceServicer_to_server(leader, server)
    leader.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield leader
    finally:
        server.stop(None).wait()


@contextmanager
def _witness(silence: str) -> Iterator[str]:
    """An agent that has not heard the leader for so many seconds."""
    with _answering(f"HTTP/1.0 200 OK\r\n\r\n{attempt_lease.SILENCE_METRIC} {silence}\n".encode()) as address:
        yield address


@contextmanager
def _answering(answer: bytes) -> Iterator[str]:
    """A port at which everybody gets this answer."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
