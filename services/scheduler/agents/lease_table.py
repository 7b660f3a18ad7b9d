"""PURE: decides how long agents and attempts count as alive without a message.

Leases are kept in memory only: a new leader grants every lease anew. All times are seconds of the monotonic clock, so
that no step of the wall clock ends a lease.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gangline.domain.resource import Agent
from gangline.domain.state import AgentState

# A runner checks its own deadline at most this late, and SIGKILL takes effect within the same margin.
STOP_MARGIN_SECONDS = 1.5
# Large enough that the loss of a few agents decides nothing, small enough that a runner can ask all of them in 1 s.
MAX_COMMITTEE = 9


class Leases:
    """lease_seconds: counted from the last message of an agent. A new leader gives all agents grace_seconds more."""

    def __init__(self, agent_ids: Iterable[str], lease_seconds: float, grace_seconds: float, now: float) -> None:
        self.lease_seconds = lease_seconds
        self._end_by_agent = dict.fromkeys(agent_ids, now + lease_seconds + grace_seconds)
        self._heard_at: dict[str, float] = {}
        self._steady_since: dict[str, float] = {}

    def renew(self, agent_id: str, now: float) -> None:
        self._end_by_agent[agent_id] = now + self.lease_seconds
        if now - self._heard_at.get(agent_id, -math.inf) >= self._gap_seconds:
            self._steady_since[agent_id] = now
        self._heard_at[agent_id] = now

    def end(self, agent_id: str) -> None:
        self._end_by_agent.pop(agent_id, None)

    def forgive(self, now: float) -> None:
        """Gives every agent a whole lease again, after a time in which the leader could read no messages."""
        self._end_by_agent = {
            agent_id: max(end, now + self.lease_seconds) for agent_id, end in self._end_by_agent.items()
        }

    def is_over(self, agent_id: str, now: float) -> bool:
        return self._end_by_agent.get(agent_id, now) <= now

    def is_steady(self, agent_id: str, now: float) -> bool:
        """Whether the agent was heard without a longer gap for as long as a runner may count on its silence.

        An agent says of itself that it does not hear the leader after half a lease, and a runner that believes it goes
        on for one lease more. A gap here is shorter than that half lease, so a steady agent has said no such thing.
        """
        since = self._steady_since.get(agent_id, math.inf)
        is_heard = now - self._heard_at.get(agent_id, -math.inf) < self._gap_seconds
        return is_heard and now - since >= self.lease_seconds + STOP_MARGIN_SECONDS

    def expired(self, now: float) -> list[str]:
        return [agent_id for agent_id, end in self._end_by_agent.items() if end <= now]

    @property
    def next_end(self) -> float | None:
        return min(self._end_by_agent.values(), default=None)

    @property
    def _gap_seconds(self) -> float:
        """Returns the longest gap between messages of a steady agent: more than a heartbeat interval on a busy host,
        less than the silence that an agent may confirm to a runner.
        """
        return self.lease_seconds * 3 / 8


@dataclass(frozen=True, slots=True)
class Grant:
    """Holds the lease of one member's runner."""

    renewed_at: float
    committee: frozenset[str]  # agents that the runner asks once its lease has ended


class AttemptLeases:
    """Keeps the time until which the runner of each member may train without an answer of the leader.

    The runner counts its lease from the moment at which it sends a request, the leader from the moment at which it
    receives it; so the runner's lease ends first. A member without a grant in this term may have a lease of the
    previous leader, which counts from the beginning of the term.
    silence_seconds: after this time a member is given up even if the leader hears no majority of the committee.
    committee: the one at the beginning of the term.
    """

    def __init__(self, lease_seconds: float, silence_seconds: float, committee: Iterable[str], now: float) -> None:
        self.lease_seconds = lease_seconds
        self._silence_seconds = silence_seconds
        self._first = Grant(now, frozenset(committee))
        self._grants: dict[str, dict[int, Grant]] = {}

    def renew(self, allocation_id: str, node_rank: int, committee: Iterable[str], now: float) -> None:
        """Renews a member's lease. The runner receives this committee together with its lease."""
        self._grants.setdefault(allocation_id, {})[node_rank] = Grant(now, frozenset(committee))

    def forget(self, allocation_id: str) -> None:
        self._grants.pop(allocation_id, None)

    def forgive(self, now: float) -> None:
        """Renews all leases after a time in which no runner could be answered. They may train on, as no other attempt
        was started meanwhile.
        """
        self._first = replace(self._first, renewed_at=now)
        for grants in self._grants.values():
            for node_rank, grant in grants.items():
                grants[node_rank] = replace(grant, renewed_at=now)

    def grant_of(self, allocation_id: str, node_rank: int) -> Grant:
        return self._grants.get(allocation_id, {}).get(node_rank, self._first)

    def end_of(self, grant: Grant, lost_at: float, has_majority: bool) -> float:
        """Returns when the member of a lost agent is given up. Its ranks have stopped by then.

        lost_at: when the lease of its agent ended. has_majority: whether the leader hears the majority of the grant's
        committee. Without it the leader itself may be cut off, so it waits longer.
        """
        silent_since = max(grant.renewed_at, lost_at - self.lease_seconds)
        wait = self.lease_seconds + STOP_MARGIN_SECONDS
        return silent_since + (wait if has_majority else max(wait, self._silence_seconds))


def committee_of(agents: Iterable[Agent]) -> tuple[Agent, ...]:
    """Returns the agents that confirm to runners which side of a network is cut off.

    At most MAX_COMMITTEE live agents, chosen by a stable hash so that they are not all in one rack.
    """
    alive = (agent for agent in agents if agent.state is AgentState.ALIVE)
    return tuple(sorted(alive, key=lambda agent: hashlib.sha256(agent.id.encode()).digest())[:MAX_COMMITTEE])


def is_majority(num_heard: int, num_members: int) -> bool:
    """Returns whether the leader's own vote and the committee members that it hears outvote the rest.

    A runner continues in silence only where at least half of all votes (num_members + 1) confirm that they do not hear
    the leader either; so both sides of a cut network never win.
    """
    return 2 * (num_heard + 1) > num_members + 1
