"""PURE: sentences for why and until when an agent is out of use, for all trials or for one."""

from __future__ import annotations

from gangline.domain.allocation import Exclusion
from gangline.domain.resource import Agent


def describe_exclusion(exclusion: Exclusion) -> str:
    return f"excluded for this trial until {clock_time(exclusion.until_at)}: {exclusion.reason}"


def describe_quarantine(agent: Agent) -> str:
    return f"out of use until {clock_time(agent.quarantined_until_at)}: {agent.quarantine_reason}"


def troubles_of(agent: Agent, now: float) -> list[str]:
    """Returns why no work starts on the agent, beside what operators set; empty when it has no trouble."""
    quarantine = describe_quarantine(agent) if agent.quarantined_until_at > now else ""
    return [trouble for trouble in (agent.problem, quarantine) if trouble]


def clock_time(at: float) -> str:
    """Returns the time of day of Unix seconds: "14:05:06 UTC"."""
    minutes, seconds = divmod(int(at) % 86400, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02} UTC"
