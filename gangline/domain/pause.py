"""PURE: in words, why and until when an agent is out of use, for all trials or for one."""

from __future__ import annotations

from datetime import UTC, datetime

from gangline.domain.allocation import Exclusion
from gangline.domain.resource import Agent


def describe_exclusion(exclusion: Exclusion) -> str:
    return f"excluded for this trial until {clock_time(exclusion.until_at)}: {exclusion.reason}"


def describe_quarantine(agent: Agent) -> str:
    return f"out of use until {clock_time(agent.quarantined_until_at)}: {agent.quarantine_reason}"


def clock_time(at: float) -> str:
    """Of Unix seconds: "2026-01-31 14:05:06 UTC"."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
