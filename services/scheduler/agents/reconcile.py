"""PURE: compares an agent's journal with the allocations that the leader's records assign to it.

Level-triggered: the answer follows from the two lists alone, whatever messages were sent before. So it serves the first
hello, a restarted agent and a new leader alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gangline.domain.allocation import Allocation, ExitReport
from gangline.domain.state import ExitKind, State


@dataclass(frozen=True, slots=True)
class Reported:
    """One allocation in an agent's journal."""

    allocation_id: str
    state: State
    accepted_at: float = 0.0
    exit: ExitReport | None = None  # set if it is TERMINAL


@dataclass(frozen=True, slots=True)
class AgentDifference:
    """A STARTING allocation that is not present needs no entry: it is started."""

    present: tuple[Reported, ...]  # live allocations that the agent is right to have
    ended: tuple[tuple[str, ExitReport], ...]  # reports to record, after which the agent forgets them
    vanished: tuple[tuple[str, ExitReport], ...]  # reports about allocations that should be there and are not
    # allocations that the agent must end: their member counts as ended, or the records have no such allocation
    strangers: tuple[str, ...]
    forgettable: tuple[str, ...]  # ended strangers


def compare(agent_id: str, journal: Iterable[Reported], expected: Iterable[Allocation], now: float) -> AgentDifference:
    """Returns the difference. expected: live allocations that wait for the end of their member on this agent."""
    expected_by_id = {allocation.id: allocation for allocation in expected}
    reported_by_id = {entry.allocation_id: entry for entry in journal}
    expected_entries = [entry for entry in reported_by_id.values() if entry.allocation_id in expected_by_id]
    unexpected_entries = [entry for entry in reported_by_id.values() if entry.allocation_id not in expected_by_id]
    return AgentDifference(
        present=tuple(entry for entry in expected_entries if entry.exit is None),
        ended=tuple((entry.allocation_id, entry.exit) for entry in expected_entries if entry.exit is not None),
        vanished=_vanished(agent_id, expected_by_id, reported_by_id, now),
        strangers=tuple(entry.allocation_id for entry in unexpected_entries if entry.exit is None),
        forgettable=tuple(entry.allocation_id for entry in unexpected_entries if entry.exit is not None),
    )


def _vanished(
    agent_id: str, expected: Mapping[str, Allocation], reported: Mapping[str, Reported], now: float
) -> tuple[tuple[str, ExitReport], ...]:
    return tuple(
        (allocation.id, vanished_report(agent_id, allocation, now))
        for allocation in expected.values()
        if allocation.id not in reported and allocation.state is not State.STARTING
    )


def vanished_report(agent_id: str, allocation: Allocation, now: float) -> ExitReport:
    """Returns the end of a member that its agent does not know. A member of a stopping allocation counts as stopped."""
    if allocation.state is State.STOPPING:
        message = "stopped before its agent had started it"
        kind = allocation.stop_kind or ExitKind.KILLED
        has_not_begun = not allocation.timeline.accepted_at
        return ExitReport(agent_id, kind, message, ended_at=now, has_not_begun=has_not_begun)
    message = "its agent has come back without it; was the agent's journal deleted?"
    return ExitReport(agent_id, ExitKind.RUNNER_LOST, message, failed_at=now, ended_at=now)
