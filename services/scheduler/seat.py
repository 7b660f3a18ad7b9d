"""Who leads, as this process knows it: its own term, or the other scheduler that clients are sent to."""

from __future__ import annotations

import asyncio

from services.scheduler.directory import Directory
from services.scheduler.store import not_leader
from services.scheduler.term import Term


class Seat:
    """is_taken: set while this process leads."""

    def __init__(self, own_id: str, directory: Directory) -> None:
        self.is_taken = asyncio.Event()
        self._own_id = own_id
        self._directory = directory
        self._term: Term | None = None

    def take(self, term: Term) -> None:
        self._term = term
        self.is_taken.set()

    def leave(self) -> None:
        self._term = None
        self.is_taken.clear()

    def require(self) -> Term:
        """This process's term. Raises GanglineError `scheduler.not_leader`, naming the leader, where it has none."""
        if self._term is not None:
            return self._term
        leader = self._directory.leader
        is_other = leader is not None and leader.id != self._own_id
        raise not_leader(leader.grpc_address if leader is not None and is_other else None)

    async def wait_until_known(self) -> None:
        """Returns once this process leads or knows who does: from then on its answers are of use."""
        while True:
            await self._directory.has_leader.wait()
            leader = self._directory.leader
            if self._term is not None or (leader is not None and leader.id != self._own_id):
                return
            await self.is_taken.wait()
