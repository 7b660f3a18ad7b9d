"""The gang at run time: a link from every member's runner to that of node rank 0, over the chosen network.

The links carry the store's port, the progress of the ranks, a hang, and the message that a member is done. They also
carry the first failure of any rank, so all machines end within a second and all know the cause. If a link breaks before
its member was done, the member counts as lost. This module starts and ends no ranks: it reports to the runner what
happened elsewhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from gangline.domain.state import ExitKind
from gangline.v1 import runner_pb2
from services.trial_runner.gang import member_link
from services.trial_runner.gang.link_tls import LinkTls
from services.trial_runner.gang.member_link import MemberServer, Wire
from services.trial_runner.gang.outcome import FailureRecord
from services.trial_runner.gang.rendezvous import RendezvousFailed

log = structlog.get_logger(__name__)

# Limit in seconds for linking all members, once the network is chosen.
LINK_SECONDS = 20.0
OnBeats = Callable[[int, Sequence[Sequence[int]], Sequence[Sequence[int]]], None]


class GangLinks:
    """Links this member to the others and passes their messages on.

    on_failure: called with each failure that another member reports, and with each lost member.
    on_beats: called on node rank 0 with a member's node rank and the progress of its ranks.
    on_hang: called with the failure that node rank 0 reports for a hang.
    tls: None for plain text.
    """

    def __init__(
        self,
        token: str,
        node_rank: int,
        agent_ids: tuple[str, ...],
        *,
        on_failure: Callable[[FailureRecord], None],
        on_beats: OnBeats,
        on_hang: Callable[[FailureRecord], None],
        tls: LinkTls | None = None,
    ) -> None:
        self._on_failure = on_failure
        self._on_beats = on_beats
        self._on_hang = on_hang
        self._token = token
        self._node_rank = node_rank
        self._agent_ids = agent_ids
        self._tls = tls
        self._server = MemberServer(token, node_rank, self._on_link, tls)
        self._wires: dict[int, Wire] = {}
        self._done: set[int] = set()
        self._changed = asyncio.Event()
        self._store_port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._receiving: list[asyncio.Task[None]] = []
        self._is_closed = False

    @property
    def is_secure(self) -> bool:
        """Whether the links are by TLS."""
        return self._tls is not None

    async def listen(self) -> int:
        """Answers probes and links from now on. Returns the port."""
        return await self._server.start()

    async def link(self, candidate: runner_pb2.NetworkCandidate) -> None:
        """Returns when this member is linked: node rank 0 with all others, any other member with node rank 0. Node rank
        0 closes its port then.

        Raises RendezvousFailed with the names of the missing members.
        """
        try:
            async with asyncio.timeout(LINK_SECONDS):
                if self._node_rank == 0:
                    await self._wait_for_links()
                else:
                    await self._connect(candidate)
        except (TimeoutError, OSError, member_link.GreetingRefused) as error:
            message = self._describe_unlinked(candidate, error)
            raise RendezvousFailed(ExitKind.NETWORK, message, self._find_suspects()) from error
        if self._node_rank == 0:
            self._server.close()

    def share_store(self, port: int) -> None:
        """Sends the port of the store from node rank 0 to all others."""
        self._broadcast({"store_port": port})

    async def wait_store(self) -> int:
        """Waits on every other member for the store's port. Raises RendezvousFailed if the link to node rank 0 is lost
        first."""
        return await self._store_port

    def tell_failure(self, failure: FailureRecord) -> None:
        """Sends a failure of this member to the others. May be called again if a better cause is known."""
        self._broadcast(_to_message(failure))

    def tell_beats(self, beats: list[list[int]], details: list[list[int]]) -> None:
        """Sends the progress and the places of this member's ranks to node rank 0. watchdog/beats.py has the rows."""
        self._broadcast({"beats": beats, "beat_details": details})

    def tell_hang(self, failure: FailureRecord) -> None:
        """Sends from node rank 0 that the gang hangs, and in which rank. All members end then, in any order."""
        self._broadcast({"hang": _to_message(failure)["failure"]})
        self._expect_ends()

    def tell_done(self) -> None:
        """Sends that this member's ranks have ended well. The loss of its link is no failure afterwards."""
        self._broadcast({"done": self._node_rank})

    async def wait_done(self) -> None:
        """Returns when all others are done or lost. Node rank 0 leaves last, because it hosts the store."""
        while self._node_rank == 0 and set(self._wires) - self._done:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        self._is_closed = True
        for wire in self._wires.values():
            await wire.flush()
            wire.close()
        self._server.close()
        for task in self._receiving:
            task.cancel()

    async def _wait_for_links(self) -> None:
        while len(self._wires) < len(self._agent_ids) - 1:
            self._changed.clear()
            await self._changed.wait()

    async def _connect(self, candidate: runner_pb2.NetworkCandidate) -> None:
        head, own = candidate.endpoints[0], candidate.endpoints[self._node_rank]
        address = (head.address, head.port)
        wire = await member_link.connect(
            self._token, "link", self._node_rank, 0, address=address, own_address=own.address, tls=self._tls
        )
        self._wires[0] = wire
        self._receiving.append(asyncio.create_task(self._receive(0, wire)))

    async def _on_link(self, peer: int, wire: Wire) -> None:
        if not 0 < peer < len(self._agent_ids):
            log.error("a member links with a node rank that this gang does not have", node_rank=peer)
            return
        self._wires[peer] = wire
        self._changed.set()
        await self._receive(peer, wire)

    async def _receive(self, peer: int, wire: Wire) -> None:
        while (message := await wire.receive()) is not None:
            self._on_message(peer, message)
        # A member that linked again has another wire by now.
        if self._is_closed or self._wires.get(peer) is not wire:
            return
        if peer not in self._done:
            self._on_lost(peer)
        self._done.add(peer)
        self._changed.set()

    def _on_message(self, peer: int, message: dict[str, Any]) -> None:
        if "store_port" in message and not self._store_port.done():
            self._store_port.set_result(int(message["store_port"]))
            # All members are linked, so no further probe will arrive.
            self._server.close()
        if "done" in message:
            self._done.add(peer)
            self._changed.set()
        if "beats" in message:
            self._on_beats(peer, message["beats"], message.get("beat_details", ()))
        if "hang" in message:
            self._expect_ends()
            self._on_hang(_to_failure(message["hang"]))
        if "failure" in message:
            # The member has reported its cause, so the loss of its link is no failure.
            self._done.add(peer)
            self._changed.set()
            self._broadcast(message, but=peer)
            self._on_failure(_to_failure(message["failure"]))

    def _expect_ends(self) -> None:
        """Marks all members as done, so no member that leaves from now on counts as lost."""
        self._done.update(self._wires)
        self._changed.set()

    def _on_lost(self, peer: int) -> None:
        failure = FailureRecord(ExitKind.RUNNER_LOST, f"the trial runner of agent {self._agent_ids[peer]} is gone")
        self._broadcast(_to_message(failure), but=peer)
        if not self._store_port.done():
            self._store_port.set_exception(RendezvousFailed(ExitKind.PEER_FAILED, failure.message))
            self._store_port.exception()
        self._on_failure(failure)

    def _broadcast(self, message: dict[str, Any], but: int = -1) -> None:
        for peer, wire in self._wires.items():
            if peer != but:
                wire.send(message)

    def _find_suspects(self) -> tuple[str, ...]:
        """Returns the agents of which one has no network. Node rank 0 knows which, if it is linked to others."""
        own, head = self._agent_ids[self._node_rank], self._agent_ids[0]
        if self._node_rank:
            return (head, own)
        missing = [agent for peer, agent in enumerate(self._agent_ids) if peer and peer not in self._wires]
        if len(missing) > 1:
            return (own,)
        return tuple(missing) if self._wires else (own, *missing)

    def _describe_unlinked(self, candidate: runner_pb2.NetworkCandidate, error: Exception) -> str:
        own = candidate.endpoints[self._node_rank]
        if self._node_rank == 0:
            missing = [agent for peer, agent in enumerate(self._agent_ids) if peer and peer not in self._wires]
            return f"{', '.join(missing)} did not link to {own.agent_id} over {own.interface} port {own.port}"
        head = candidate.endpoints[0]
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error) or "no answer"
        return (
            f"{own.agent_id} cannot link to {head.agent_id} at {head.address} port {head.port} "
            f"over {own.interface}: {reason}"
        )


def _to_message(failure: FailureRecord) -> dict[str, Any]:
    return {
        "failure": {
            "kind": failure.kind.value if failure.kind else None,
            "message": failure.message,
            "remark": failure.remark,
            "rank": failure.rank,
            "agent_id": failure.agent_id,
            "failed_at": failure.failed_at,
        }
    }


def _to_failure(values: dict[str, Any]) -> FailureRecord:
    kind = values.get("kind")
    return FailureRecord(
        kind=ExitKind(kind) if kind in set(ExitKind) else None,
        message=str(values.get("message", "")),
        remark=str(values.get("remark", "")),
        rank=values.get("rank"),
        agent_id=str(values.get("agent_id", "")),
        failed_at=float(values.get("failed_at", 0.0)),
    )
