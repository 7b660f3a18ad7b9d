"""Keeps the agents that are connected, the commands sent over each stream, and the offset of each agent's clock.

Owns the outboxes and the allocations that an agent is known to have; it decides nothing. The agent service opens and
closes sessions, the dispatcher fills their outboxes. Times that agents report are compared between machines only after
correction by the offset.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from gangline.domain.allocation import ExitReport
from gangline.domain.state import ExitKind
from gangline.errors import GanglineError
from gangline.v1 import agent_pb2

# An agent sends five heartbeats in a lease, so the estimate follows a clock that was set back about two leases later.
NUM_RECENT = 10


class AgentClock:
    """Estimates the clock offset as the smallest (received - sent) of the last NUM_RECENT messages.

    The message with the least network delay gives the best estimate, to some milliseconds. Agents of an earlier version
    send no times; their clocks are trusted.
    """

    def __init__(self) -> None:
        self._differences: deque[float] = deque(maxlen=NUM_RECENT)

    def heard(self, sent_at: float, now: float) -> None:
        """Records the times of one message.

        sent_at: by the agent's clock, 0 where the agent sent none; ignored when it is not finite. now: by the leader's
        clock.
        """
        if sent_at and math.isfinite(sent_at):
            self._differences.append(now - sent_at)

    def to_ours(self, at: float) -> float:
        """Converts a time of the agent's clock to the leader's; 0, which means never, stays 0."""
        return at + min(self._differences, default=0.0) if at else at

    def exit_to_ours(self, report: ExitReport) -> ExitReport:
        return replace(report, failed_at=self.to_ours(report.failed_at), ended_at=self.to_ours(report.ended_at))


class AgentSession:
    """Holds one stream of one agent.

    clock: estimated from the agent's messages.
    known: allocations that the agent has, or was told to start, in this session. accepted_at_by_id: those it has
    accepted. stop_kind_by_id: those it was told to stop. strangers: those it must end before its slots can be trusted.
    asks_before_commands: see AgentHello.
    """

    def __init__(self, agent_id: str, host_id: str, *, asks_before_commands: bool = False) -> None:
        self.agent_id = agent_id
        self.host_id = host_id
        self.asks_before_commands = asks_before_commands
        self.clock = AgentClock()
        self.known: set[str] = set()
        self.accepted_at_by_id: dict[str, float] = {}
        self.stop_kind_by_id: dict[str, ExitKind] = {}
        self.strangers: set[str] = set()
        self._outbox: asyncio.Queue[agent_pb2.ConnectResponse | GanglineError | None] = asyncio.Queue()
        self._is_closed = False

    def send(self, message: agent_pb2.ConnectResponse) -> None:
        if not self._is_closed:
            self._outbox.put_nowait(message)

    def tell_gateways(self, addresses: list[str]) -> None:
        """Sends where the gateways are. Without any, the agent keeps what it knows: a gateway may be cut off from etcd
        alone."""
        if addresses:
            self.send(agent_pb2.ConnectResponse(gateways=agent_pb2.Gateways(addresses=addresses)))

    def close(self, error: GanglineError | None = None) -> None:
        """Ends the stream after the messages in the outbox. error: sent to the agent."""
        if not self._is_closed:
            self._is_closed = True
            self._outbox.put_nowait(error)

    async def outgoing(self) -> AsyncIterator[agent_pb2.ConnectResponse]:
        """Yields messages until closed; raises the error with which the session was closed."""
        while True:
            message = await self._outbox.get()
            if isinstance(message, GanglineError):
                raise message
            if message is None:
                return
            yield message

    def drop(self, allocation_id: str) -> None:
        """Removes an allocation about which no more messages are sent."""
        self.known.discard(allocation_id)
        self.strangers.discard(allocation_id)
        self.accepted_at_by_id.pop(allocation_id, None)
        self.stop_kind_by_id.pop(allocation_id, None)


class Unbegun:
    """Keeps the commands that have certainly not begun, by agent. It outlives the agents' sessions.

    An agent asks the leader, by a heartbeat, after it has received a command and before it starts it. So a command was
    not started as long as its agent has sent no heartbeat and no status of it. A leader knows this only of commands
    that it has sent itself.
    """

    def __init__(self) -> None:
        self._by_agent: dict[str, set[str]] = {}

    def sent(self, session: AgentSession, allocation_id: str) -> None:
        if session.asks_before_commands:
            self._by_agent.setdefault(session.agent_id, set()).add(allocation_id)

    def asked(self, agent_id: str) -> None:
        """Takes a heartbeat on the agent's stream: all commands that it has received may begin."""
        self._by_agent.pop(agent_id, None)

    def reported(self, agent_id: str, allocation_id: str) -> None:
        """Takes a status. The agent's own word about the command counts from then on."""
        self._by_agent.get(agent_id, set()).discard(allocation_id)

    def forget(self, allocation_id: str) -> None:
        for allocation_ids in self._by_agent.values():
            allocation_ids.discard(allocation_id)

    def has(self, agent_id: str, allocation_id: str) -> bool:
        return allocation_id in self._by_agent.get(agent_id, ())


class Sessions:
    """Holds at most one session for each agent: the newest. gateways: the addresses that every session was told."""

    def __init__(self) -> None:
        self.gateways: list[str] = []
        self._by_agent: dict[str, AgentSession] = {}
        self.unbegun = Unbegun()
        self._end: GanglineError | None = None

    def __iter__(self) -> Iterator[AgentSession]:
        return iter(self._by_agent.values())

    def find(self, agent_id: str) -> AgentSession | None:
        return self._by_agent.get(agent_id)

    def add(self, session: AgentSession) -> None:
        """Adds a session, and ends an older one of the same agent. After `close_all` the new session is ended itself: a
        stream that was accepted before, and whose hello comes to be known only now, belongs to no leader."""
        if self._end is not None:
            session.close(self._end)
            return
        older = self._by_agent.get(session.agent_id)
        self._by_agent[session.agent_id] = session
        session.tell_gateways(self.gateways)
        if older is not None:
            older.close()

    def tell_gateways(self, addresses: list[str]) -> None:
        self.gateways = addresses
        for session in self:
            session.tell_gateways(addresses)

    def remove(self, session: AgentSession) -> bool:
        """Removes the session. Returns False when a newer session has replaced it."""
        if self._by_agent.get(session.agent_id) is not session:
            return False
        del self._by_agent[session.agent_id]
        return True

    def end(self, agent_id: str, error: GanglineError) -> None:
        """Ends the agent's session. Its allocations have to be compared anew, so the agent has to say hello again."""
        session = self._by_agent.pop(agent_id, None)
        if session is not None:
            session.close(error)

    def close_all(self, error: GanglineError) -> None:
        """Ends all sessions, also those that are added later."""
        self._end = error
        for session in list(self._by_agent.values()):
            session.close(error)
        self._by_agent.clear()

    def problem_of(self, agent_id: str) -> str:
        """Returns why nothing can be started on this agent now; empty when it can."""
        session = self._by_agent.get(agent_id)
        if session is None:
            return "not connected"
        return f"still ending {', '.join(sorted(session.strangers))}" if session.strangers else ""

    def clock_of(self, agent_id: str) -> AgentClock:
        """Returns the agent's clock estimate; without an offset where the agent is not connected."""
        session = self._by_agent.get(agent_id)
        return session.clock if session else AgentClock()

    def accepted_at(self, agent_id: str, allocation_id: str) -> float:
        """Returns when the agent accepted the allocation; 0 while no acceptance is known."""
        session = self._by_agent.get(agent_id)
        return session.accepted_at_by_id.get(allocation_id, 0.0) if session else 0.0
