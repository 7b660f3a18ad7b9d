"""Sends each agent the starts and stops that follow from the committed state.

Level-triggered by allocation: whatever led to the present state, `sync` sends each member's agent the messages that its
session has not sent yet. An agent that is not connected gets them after its hello. The store calls it after every
commit, in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gangline.domain.allocation import Allocation, ExitReport, Member
from gangline.domain.state import ExitKind, State
from gangline.protocol import wire
from gangline.v1 import agent_pb2, runner_pb2
from services.scheduler.agents.agent_session import AgentSession, Sessions
from services.scheduler.agents.reconcile import vanished_report
from services.scheduler.agents.runner_spec import SpecSource
from services.scheduler.state.records import StateChange
from services.scheduler.state.rules import Rules
from services.scheduler.state.state_store import Store
from services.scheduler.transition.exit import unended_agents
from services.scheduler.transition.stop import grace_left

OnExit = Callable[[str, ExitReport], None]
OnStart = Callable[[str, runner_pb2.RunnerSpec], None]


class Dispatch:
    """on_exit: takes the end of a member that was stopped before its agent had received the start. on_start: takes the
    id and the spec of each member that an agent is told to start.
    """

    def __init__(
        self,
        store: Store,
        sessions: Sessions,
        source: SpecSource,
        rules: Rules,
        *,
        on_exit: OnExit,
        on_start: OnStart,
    ) -> None:
        self._state = store.state
        self._epoch = store.epoch
        self._sessions = sessions
        self._source = source
        self._rules = rules
        self._on_exit = on_exit
        self._on_start = on_start

    def on_committed(self, change: StateChange) -> None:
        for allocation in change.all_of(Allocation):
            self.sync(allocation)

    def sync(self, allocation: Allocation) -> None:
        """Sends the missing starts and stops of one allocation. Calling it again sends nothing twice."""
        unended = unended_agents(allocation)
        for member in allocation.members:
            session = self._sessions.find(member.agent_id)
            if session is not None and member.agent_id in unended:
                self._sync_member(session, allocation, member)

    def end_stranger(self, session: AgentSession, allocation_id: str) -> None:
        """Stops an allocation that this agent should not have, or should not have any more."""
        session.strangers.add(allocation_id)
        reason = "the scheduler counts it as ended"
        self._send_stop(session, allocation_id, ExitKind.KILLED, self._rules.kill_grace_seconds, reason)

    def forget(self, session: AgentSession, allocation_id: str) -> None:
        """Tells the agent to forget an allocation: its end is recorded, or not needed."""
        session.drop(allocation_id)
        session.send(agent_pb2.ConnectResponse(forget=agent_pb2.ForgetAllocation(allocation_id=allocation_id)))

    def _sync_member(self, session: AgentSession, allocation: Allocation, member: Member) -> None:
        is_known = allocation.id in session.known
        if allocation.state is State.STARTING and not is_known:
            self._send_start(session, allocation, member)
        if allocation.state is not State.STOPPING:
            return
        if not is_known:
            self._on_exit(allocation.id, vanished_report(session.agent_id, allocation, time.time()))
        elif session.stop_kind_by_id.get(allocation.id) is not allocation.stop_kind:
            kind = allocation.stop_kind or ExitKind.KILLED
            grace_seconds = grace_left(allocation, self._rules.force_seconds, time.time())
            session.stop_kind_by_id[allocation.id] = kind
            self._send_stop(session, allocation.id, kind, grace_seconds, allocation.stop_reason)

    def _send_start(self, session: AgentSession, allocation: Allocation, member: Member) -> None:
        session.known.add(allocation.id)
        self._sessions.unbegun.sent(session, allocation.id)
        spec = self._source.build(self._state, allocation, member)
        self._on_start(allocation.id, spec)
        session.send(agent_pb2.ConnectResponse(start=agent_pb2.StartAllocation(epoch=self._epoch, spec=spec)))

    def _send_stop(
        self, session: AgentSession, allocation_id: str, kind: ExitKind, grace_seconds: float, reason: str
    ) -> None:
        command = agent_pb2.StopAllocation(epoch=self._epoch, allocation_id=allocation_id)
        command.kind = wire.enum_number(kind)  # type: ignore[assignment]  # an enum's number is what protobuf takes
        command.grace_seconds = grace_seconds
        command.reason = reason
        session.send(agent_pb2.ConnectResponse(stop=command))
