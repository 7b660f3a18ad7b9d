"""PURE: for how long agents and attempts count as alive without being heard.

Kept in memory only: a new leader grants every lease anew. All times are seconds of the monotonic clock, so that no
step of the wall clock ends a lease.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gangline.domain.resource import Agent
from gangline.domain.state import AgentState

# A runner looks at its own deadline this much late at worst, and SIGKILL takes effect within it.
STOP_MARGIN_SECONDS = 1.5
# Enough that the loss of a few agents decides nothing, few enough that a runner can ask all of them in a second.
MAX_COMMITTEE = 9


class Leases:
    """lease_seconds: since the last word of an agent. A new leader gives all of them grace_seconds more."""

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
        """Nobody could be listened to for a while: every agent has a whole lease again."""
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
        """More than a heartbeat on a busy host, less than the silence that an agent bears witness of."""
        return self.lease_seconds * 3 / 8


@dataclass(frozen=True, slots=True)
class Grant:
    """What the runner of one member may count on. committee: the agents that it asks once its lease has run out."""

    renewed_at: float
    committee: frozenset[str]


class AttemptLeases:
    """Until when the runner of each member may train without an answer of the leader.

    The runner counts its lease from the moment at which it sends a request, the leader from the moment at which it
    receives it; so the runner's lease ends first. A member without a grant in this term may hold a lease of the
    previous leader: that one counts from the beginning of the term.

    silence_seconds: after so long a member is given up even if the leader hears no majority of the committee.
    committee: the one at the beginning of the term.
    """

    def __init__(self, lease_seconds: float, silence_seconds: float, committee: Iterable[str], now: float) -> None:
        self.lease_seconds = lease_seconds
        self._silence_seconds = silence_seconds
        self._first = Grant(now, frozenset(committee))
        self._grants: dict[str, dict[int, Grant]] = {}

    def renew(self, allocation_id: str, node_rank: int, committee: Iterable[str], now: float) -> None:
        """The runner is told this committee together with its lease."""
        self._grants.setdefault(allocation_id, {})[node_rank] = Grant(now, frozenset(committee))

    def forget(self, allocation_id: str) -> None:
        self._grants.pop(allocation_id, None)

    def forgive(self, now: float) -> None:
        """No runner could be answered for a while; they may train on, as no other attempt was started meanwhile."""
        self._first = replace(self._first, renewed_at=now)
        for grants in self._grants.values():
            for node_rank, grant in grants.items():
                grants[node_rank] = replace(grant, renewed_at=now)

    def grant_of(self, allocation_id: str, node_rank: int) -> Grant:
        return self._grants.get(allocation_id, {}).get(node_rank, self._first)

    def end_of(self, grant: Grant, lost_at: float, has_majority: bool) -> float:
        """When the member of a lost agent is given up. Its ranks have stopped by then.

        lost_at: when the lease of its agent ran out. has_majority: whether the leader hears the majority of the grant's
        committee; without it the leader may itself be the one that is cut off, so it waits longer.
        """
        silent_since = max(grant.renewed_at, lost_at - self.lease_seconds)
        wait = self.lease_seconds + STOP_MARGIN_SECONDS
        return silent_since + (wait if has_majority else max(wait, self._silence_seconds))


def committee_of(agents: Iterable[Agent]) -> tuple[Agent, ...]:
    """Returns the agents that bear witness of who is cut off: up to MAX_COMMITTEE live ones, chosen by a stable hash so
    that they do not all stand in one rack."""
    alive = (agent for agent in agents if agent.state is AgentState.ALIVE)
    return tuple(sorted(alive, key=lambda agent: hashlib.sha256(agent.id.encode()).digest())[:MAX_COMMITTEE])


def is_majority(num_heard: int, num_members: int) -> bool:
    """Whether the leader, with a vote of its own, and the committee members that it hears outvote the rest.

    A runner goes on in silence only where at least half of all votes (num_members + 1) confirm that they do not hear
    the leader either; so both sides of a cut network never win.
    """
    return 2 * (num_heard + 1) > num_members + 1
