"""PURE: whether the ranks may train on although the leader does not renew the lease of their attempt.

The leader starts the next attempt only after the lease of this one has run out. So ranks may train on without a
renewal in two cases: no scheduler leads, or the leader is the one that is cut off. Source of the second rule:
services/scheduler/agents/lease_table.py, which applies its counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum


class SchedulerSign(StrEnum):
    """The result of one call to one scheduler.

    RENEWED: it leads, and answered the call. ABSENT: its host refuses the connection, so no scheduler listens there.
    STANDBY: it answers that it does not lead. STUCK: its host accepts the connection, so the network works, but nothing
    answers the call. SILENT: nothing answers at all.
    """

    RENEWED = "RENEWED"
    ABSENT = "ABSENT"
    STANDBY = "STANDBY"
    STUCK = "STUCK"
    SILENT = "SILENT"


def is_leaderless(
    signs: Sequence[SchedulerSign], own_agent_id: str, silence_by_agent: Mapping[str, float], lease_seconds: float
) -> bool:
    """Whether no scheduler can lead and see this host as cut off.

    A silent scheduler can do both. So can one whose host seems to refuse the connection, because a firewall on the way
    may answer in its place. In that case an agent that hears the leader shows that there is one.
    """
    is_heard = any(
        seconds < lease_seconds / 2 for agent_id, seconds in silence_by_agent.items() if agent_id != own_agent_id
    )
    return bool(signs) and SchedulerSign.SILENT not in signs and not is_heard


def is_leader_cut_off(
    committee: Sequence[str], own_agent_id: str, silence_by_agent: Mapping[str, float], lease_seconds: float
) -> bool:
    """Whether at least half of all votes, the leader's own among them, do not hear the leader.

    silence_by_agent: for how long each agent that answered and has an opinion has not heard the leader, in seconds. The
    agent of this host does not hear it, because its runner does not.
    """
    deaf = {agent_id for agent_id, seconds in silence_by_agent.items() if seconds >= lease_seconds / 2}
    num_deaf = len((deaf | {own_agent_id}) & set(committee))
    return 2 * num_deaf >= len(committee) + 1
