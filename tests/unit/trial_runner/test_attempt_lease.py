"""The runner's lease where its event loop, or a witness, does not do what it should."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gangline.v1 import runner_pb2, runner_pb2_grpc, types_pb2
from services.trial_runner import attempt_lease
from services.trial_runner.attempt_lease import AttemptLease
from tests.support.dropping_call import DroppingCall
from tests.support.wait import until, within

LEASE_SECONDS = 1.0


def _lease(
    cuts: list[str],
    committee: tuple[runner_pb2.Witness, ...] = (),
    scheduler_addresses: tuple[str, ...] = (),
) -> AttemptLease:
    spec = runner_pb2.RunnerSpec(
        allocation=types_pb2.Allocation(id="7.1.1"),
        lease_seconds=LEASE_SECONDS,
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


async def test_a_witness_that_answers_nonsense_is_no_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    with _nonsense() as address:
        cuts: list[str] = []
        lease = _lease(cuts, (runner_pb2.Witness(agent_id="a1"), runner_pb2.Witness(agent_id="a2", address=address)))
        try:
            lease.start(list)
            await until(lambda: bool(cuts), "the end of the lease", 10)
        finally:
            await lease.close()


async def test_renewals_end_although_a_failing_call_drops_their_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    dropping = DroppingCall()
    monkeypatch.setattr(runner_pb2_grpc, "RunnerServiceStub", lambda _: dropping)
    lease = _lease([], scheduler_addresses=("127.0.0.1:1",))
    lease.start(list)
    await within(10, dropping.has_begun.wait())
    await within(10, lease.close())


def _sleeper() -> subprocess.Popen[bytes]:
    """A process in the place of a rank; like a rank, it leads its own session."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)


@contextmanager
def _nonsense() -> Iterator[str]:
    """A port on which something else than an agent answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"SSH-2.0-x\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
