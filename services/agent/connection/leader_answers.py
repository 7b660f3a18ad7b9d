"""The heartbeats that the leader has answered: for how long it has been silent, and waits for its next answer.

Owns the times of heartbeats and answers. `leader_stream.py` reports each of them. Runners and the starts of allocations
ask, because no attempt may start for a leader that has given it up.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

from gangline.v1 import agent_pb2

Outbox = asyncio.Queue[agent_pb2.ConnectRequest]


class LeaderAnswers:
    """The answers of the current leader. outbox: messages that the stream sends; a question is put there."""

    def __init__(self, outbox: Outbox) -> None:
        # When the last heartbeat was handed to the stream, on the monotonic clock; None before the first.
        self.heartbeat_at: float | None = None
        self.is_connected = False  # whether a leader has welcomed this agent over the current stream
        self._outbox = outbox
        self._lease_seconds = 0.0
        self._has_answers = False
        self._unanswered: deque[float] = deque()
        self._answered_at = -math.inf
        self._answered = asyncio.Event()
        # When the newest heartbeat was sent that was answered. A welcome is no such answer: it comes before the orders
        # that follow from the hello.
        self._beat_answered_at = -math.inf
        self._promises_answers = False
        self._is_asking = False

    @property
    def silence_seconds(self) -> float:
        """The time since this agent sent the newest message that the leader has answered.

        Infinite before the first welcome. 0 while connected to a scheduler of an older version, which answers no
        heartbeats.
        """
        if self.is_connected and not self._has_answers:
            return 0.0
        return time.monotonic() - self._answered_at

    @property
    def witnessed_silence_seconds(self) -> float:
        """The silence that this agent reports to runners that ask whether it hears the leader; NaN without an opinion.

        The agent's event loop reads the answers. If the loop is late itself, for example beside a busy disk, it cannot
        judge whether the leader is silent.
        """
        is_late = self.is_connected and time.monotonic() - (self.heartbeat_at or 0.0) > self._lease_seconds / 4
        return math.nan if is_late else self.silence_seconds

    async def wait_until_heard(self) -> None:
        """Returns once the leader has answered a message that is at most half a lease old. A runner that starts then
        has at least half a lease left of what the leader grants."""
        while self.silence_seconds > self._lease_seconds / 2:
            self._answered.clear()
            await self._answered.wait()

    async def ask_leader(self) -> None:
        """Returns once the leader has answered a heartbeat that is sent from now on.

        Orders to end arrive before such an answer. So a command for which the leader was asked has not been given up.
        """
        asked_at = time.monotonic()
        if not self._is_asking:
            self._is_asking = True
            self._outbox.put_nowait(agent_pb2.ConnectRequest(heartbeat=agent_pb2.AgentHeartbeat()))
        while self._beat_answered_at < asked_at and (self._promises_answers or not self.is_connected):
            self._answered.clear()
            await self._answered.wait()
        await self.wait_until_heard()

    def on_welcome(self, welcome: agent_pb2.AgentWelcome, greeted_at: float) -> None:
        self._lease_seconds = welcome.lease_seconds
        self._unanswered.clear()
        self.is_connected, self._has_answers, self._is_asking = True, False, False
        self._promises_answers = welcome.answers_heartbeats
        self._answered_at = greeted_at
        self._answered.set()

    def on_lost(self) -> None:
        """Notes that the stream has ended."""
        self.is_connected = False

    def on_heartbeat(self, sent_at: float) -> None:
        """Notes a heartbeat that is about to be sent."""
        self._unanswered.append(sent_at)

    def on_question(self, sent_at: float) -> None:
        """Notes the heartbeat of `ask_leader`, which is about to be sent. The next question needs another one."""
        self._is_asking = False
        self._unanswered.append(sent_at)

    def on_answer(self) -> None:
        """Notes the answer to the oldest unanswered heartbeat: answers arrive in the order of the heartbeats."""
        if self._unanswered:
            self._answered_at = self._beat_answered_at = self._unanswered.popleft()
        self._has_answers = True
        self._answered.set()
