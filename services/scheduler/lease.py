"""PURE: until when each agent counts as alive without being heard. In memory only: a fail-over must not end agents.

All times are of the monotonic clock, so that no step of the wall clock loses a cluster's agents.
"""

from __future__ import annotations

from collections.abc import Iterable


class Leases:
    """lease_seconds: since the last word of an agent. A new leader gives all of them grace_seconds more."""

    def __init__(self, agent_ids: Iterable[str], lease_seconds: float, grace_seconds: float, now: float) -> None:
        self.lease_seconds = lease_seconds
        self._end_by_agent = dict.fromkeys(agent_ids, now + lease_seconds + grace_seconds)

    def renew(self, agent_id: str, now: float) -> None:
        self._end_by_agent[agent_id] = now + self.lease_seconds

    def end(self, agent_id: str) -> None:
        self._end_by_agent.pop(agent_id, None)

    def forgive(self, now: float) -> None:
        """Nobody could be listened to for a while: every agent has a whole lease again."""
        self._end_by_agent = {
            agent_id: max(end, now + self.lease_seconds) for agent_id, end in self._end_by_agent.items()
        }

    def is_over(self, agent_id: str, now: float) -> bool:
        return self._end_by_agent.get(agent_id, now) <= now

    def expired(self, now: float) -> list[str]:
        return [agent_id for agent_id, end in self._end_by_agent.items() if end <= now]

    @property
    def next_end(self) -> float | None:
        return min(self._end_by_agent.values(), default=None)
