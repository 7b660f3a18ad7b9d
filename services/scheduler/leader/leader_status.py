"""The leader as this process knows it: its own term, or the other scheduler to which clients are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from services.common.leader_probe import not_leader
from services.scheduler.leader.term import Term
from services.scheduler.state.directory import Directory
from services.scheduler.transition.account.user_change import check_active

# Longest wait of a call while no leader is known. Shorter than the deadlines of all callers.
HOLD_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class KnownLeader:
    """The leader as far as this process knows."""

    epoch: int = 0  # 0 while no leader is known
    address: str = ""  # empty while no leader is known


class LeaderStatus:
    """is_ready: set once this process leads, or stands by so that it takes over at once when the leader dies."""

    def __init__(self, own_id: str, directory: Directory) -> None:
        self.is_ready = asyncio.Event()
        self._own_id = own_id
        self._directory = directory
        self._term: Term | None = None
        self._is_closing = False

    def take(self, term: Term) -> None:
        self._term = term
        self.is_ready.set()
        self._directory.notify()

    def leave(self) -> None:
        self._term = None
        self._directory.notify()

    def close(self) -> None:
        """Answers all calls that wait for a leader, because this process ends."""
        self._is_closing = True
        self._directory.notify()

    @property
    def leader(self) -> KnownLeader:
        """Returns the known leader; this process counts only once its term is open."""
        if self._term is not None:
            return KnownLeader(self._term.store.epoch, self._term.context.own_address)
        leader = self._directory.leader
        if leader is None or leader.id == self._own_id:
            return KnownLeader()
        return KnownLeader(self._directory.leader_epoch, leader.grpc_address)

    @property
    def scheduler_addresses(self) -> list[str]:
        """Returns the addresses of all schedulers that are alive, oldest first."""
        return self._directory.addresses_of("scheduler")

    def require(self, user: str = "") -> Term:
        """Returns this process's term. user: for whom the call is made; empty where a service calls for itself.

        Raises GanglineError `scheduler.not_leader`, naming the leader, where it has none, and `auth.inactive` for a
        user who has been deactivated. A gateway that is cut off from etcd does not know that yet.
        """
        if self._term is None:
            raise not_leader(self.leader.address)
        check_active(self._term.state, user)
        return self._term

    async def reach(self) -> Term:
        """Returns this process's term, like `require`, but waits up to HOLD_SECONDS where no leader is known. A waiting
        caller is answered as soon as there is a leader, and does not have to poll.
        """
        await self._wait(lambda: self.leader.epoch > 0, HOLD_SECONDS)
        return self.require()

    async def find_leader(self, newer_than: int, known_addresses: Collection[str], seconds: float) -> KnownLeader:
        """Returns the known leader once its epoch is newer, or other schedulers are alive than those at the known
        addresses, or the time is over.
        """
        await self._wait(
            lambda: self.leader.epoch > newer_than or set(self.scheduler_addresses) != set(known_addresses), seconds
        )
        return self.leader

    async def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        """Waits until the condition is true, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition() and not self._is_closing:
                    await self._directory.changed.wait()
