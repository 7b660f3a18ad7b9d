"""Enforces time limits: leases of agents, attempts on lost agents, deadlines, exclusions of agents.

Owns when a member on a lost agent is given up: its runner may continue to train while its agent is away, so the leader
waits until the runner's own lease has ended. The rules themselves are pure (lease_table.py, transition/deadline.py).
The term calls it before each scheduling cycle.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from gangline.domain.allocation import Allocation, ExitReport, Member, Request
from gangline.domain.resource import Agent
from gangline.domain.state import AgentState, ExitKind
from gangline.errors import ErrorKind, GanglineError, unavailable
from services.common.election import Leadership
from services.scheduler.agents.agent_session import Sessions
from services.scheduler.agents.dispatch import Dispatch
from services.scheduler.agents.intake import Intake
from services.scheduler.agents.lease_table import STOP_MARGIN_SECONDS, AttemptLeases, Leases, is_majority
from services.scheduler.state import metrics
from services.scheduler.state.records import SchedulerState, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.state_store import Store
from services.scheduler.transition.availability import lost, unended_on
from services.scheduler.transition.deadline import expired, next_deadline, overdue, to_readmit
from services.scheduler.transition.exclusion import readmitted
from services.scheduler.transition.exit import unended_agents

_log = structlog.get_logger(__name__)

# Between two checks of a lost agent's members: whether the leader hears a majority may change without an event.
HELD_SECONDS = 1.0
# Between two tries to write the same end.
RETRY_SECONDS = 1.0


@dataclass
class Expiry:
    """Enforces the time limits of one term."""

    leadership: Leadership
    store: Store
    sessions: Sessions
    leases: Leases
    attempts: AttemptLeases
    intake: Intake
    dispatch: Dispatch
    rules: Rules
    patient_until: float  # no deadline of an allocation is enforced before this time, in Unix seconds
    _lost_at: dict[str, float] = field(default_factory=dict)
    _stale_at: float = float("-inf")
    _next_give_up: float | None = None
    _retry_at: dict[str, float] = field(default_factory=dict)

    @property
    def _state(self) -> SchedulerState:
        return self.store.state

    async def expire(self, now: float) -> None:
        """Runs one pass over everything that may have expired. now: Unix seconds."""
        for agent_id in self.leases.expired(time.monotonic()):
            await _alone(self._lose_agent(agent_id, now), agent_id)
        await self._give_up_lost(now)
        for trial_id in to_readmit(self._state.all_of(Request), now):
            await _alone(self.store.commit(_readmission(trial_id, now)), trial_id)
        for allocation_id in overdue(self._state.all_of(Allocation), now, self.patient_until):
            if self._retry_at.get(allocation_id, 0.0) <= time.monotonic():
                self._retry_at[allocation_id] = time.monotonic() + RETRY_SECONDS
                await _alone(self._end_overdue(get(self._state, Allocation, allocation_id), now), allocation_id)
        self._retry_at = {allocation_id: at for allocation_id, at in self._retry_at.items() if at > time.monotonic()}

    def seconds_to_next(self) -> float | None:
        """Returns the time until the next pass has something to do without an event; None when nothing is due."""
        now = time.time()
        requests, agents = self._state.all_of(Request), self._state.all_of(Agent)
        allocations = [
            allocation for allocation in self._state.all_of(Allocation) if allocation.id not in self._retry_at
        ]
        deadline = next_deadline(allocations, requests, now, self.patient_until, agents)
        ends = [end for end in (self.leases.next_end, self._next_give_up) if end is not None]
        ends += self._retry_at.values()
        waits = [] if deadline is None else [deadline - now]
        waits += [end - time.monotonic() for end in ends]
        return max(0.0, min(waits)) if waits else None

    async def _lose_agent(self, agent_id: str, now: float) -> None:
        """Marks the agent as lost, unless it is heard again before that can be written."""
        await self.store.commit(
            lambda records: (
                lost(records, agent_id, now) if self.leases.is_over(agent_id, time.monotonic()) else StateChange()
            )
        )
        agent = self._state.find(Agent, agent_id)
        if agent is not None and agent.state is AgentState.ALIVE:
            return
        self.leases.end(agent_id)
        self._lost_at[agent_id] = time.monotonic()
        _log.warning("agent lost", agent_id=agent_id, lease_seconds=self.leases.lease_seconds)
        # The agent may be alive with all its work. Only a hello shows that, and makes the agent usable again.
        self.sessions.end(agent_id, unavailable("agent.lost", f"{self._silence()}; say hello again"))

    async def _give_up_lost(self, now: float) -> None:
        """Ends the members on lost agents whose runners must have stopped by now, and keeps the others."""
        lost_agents = [agent.id for agent in self._state.all_of(Agent) if agent.state is AgentState.LOST]
        self._lost_at = {agent_id: at for agent_id, at in self._lost_at.items() if agent_id in lost_agents}
        held_members = [
            (allocation.id, member)
            for agent_id in lost_agents
            for allocation in unended_on(self._state, agent_id)
            for member in allocation.members
            if member.agent_id == agent_id
        ]
        metrics.HELD_MEMBERS.set(len(held_members))
        self._next_give_up = time.monotonic() + HELD_SECONDS if held_members else None
        for allocation_id, member in held_members:
            if self._is_due(allocation_id, member):
                await _alone(self._give_up_member(allocation_id, member, now), allocation_id)

    def _is_due(self, allocation_id: str, member: Member) -> bool:
        """Returns whether the leases show that the ranks of this member have stopped. Evaluated again within the
        commit.
        """
        now = time.monotonic()
        if not self.leadership.is_fresh:
            # Without etcd no lease is renewed, and runners rightly train on.
            self._stale_at = now
        if now - self._stale_at <= self.leases.lease_seconds + STOP_MARGIN_SECONDS:
            return False
        grant = self.attempts.grant_of(allocation_id, member.node_rank)
        num_heard = sum(self.leases.is_steady(agent_id, now) for agent_id in grant.committee)
        has_majority = is_majority(num_heard, len(grant.committee))
        lost_at = self._lost_at.get(member.agent_id, grant.renewed_at)
        end = self.attempts.end_of(grant, lost_at, has_majority)
        if end > now and self._next_give_up is not None:
            self._next_give_up = min(self._next_give_up, end)
        return end <= now

    async def _give_up_member(self, allocation_id: str, member: Member, now: float) -> None:
        """Ends the member with the exit that its runner reported while its agent could not report one, else as
        AGENT_LOST.
        """
        lost = ExitReport(
            member.agent_id,
            ExitKind.AGENT_LOST,
            self._silence(),
            failed_at=now,
            ended_at=now,
            has_not_begun=self.sessions.unbegun.has(member.agent_id, allocation_id),
        )
        report = self.intake.told_exits.get((allocation_id, member.node_rank), lost)
        await self.intake.exit(allocation_id, report, lambda: self._is_due(allocation_id, member))

    async def _end_overdue(self, allocation: Allocation, now: float) -> None:
        agents = [member.agent_id for member in allocation.members]
        there = frozenset(agent_id for agent_id in agents if self.sessions.accepted_at(agent_id, allocation.id))
        unbegun = frozenset(agent_id for agent_id in agents if self.sessions.unbegun.has(agent_id, allocation.id))
        if await self.store.commit(_expiry(allocation.id, there, unbegun, self.rules, now)):
            _log.warning("allocation overdue", allocation_id=allocation.id, state=str(allocation.state))
        if self._state.find(Allocation, allocation.id) is not None:
            return
        # Its slots are free in the records, but these agents may still run it. They must report its end before they
        # get new work.
        for agent_id in unended_agents(allocation):
            session = self.sessions.find(agent_id)
            if session is not None:
                self.dispatch.end_stranger(session, allocation.id)

    def _silence(self) -> str:
        return f"the agent was not heard of for {self.leases.lease_seconds:g} s"


async def _alone(work: Awaitable[object], what: str) -> None:
    """Runs one change by itself: a change that cannot be written, as of a record that is too large, must not stop the
    others.
    """
    try:
        await work
    except GanglineError as error:
        if error.kind is not ErrorKind.INVALID:
            raise
        _log.error("what is due cannot be written", what=what, reason=error.message)


def _expiry(
    allocation_id: str, accepted_agents: frozenset[str], unbegun_agents: frozenset[str], rules: Rules, now: float
) -> Callable[..., StateChange]:
    return lambda records: expired(records, allocation_id, accepted_agents, unbegun_agents, rules=rules, now=now)


def _readmission(trial_id: str, now: float) -> Callable[..., StateChange]:
    return lambda records: readmitted(records, trial_id, now)
