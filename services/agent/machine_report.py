"""Watches the machine's network interfaces, which a new hello reports, and connects the gauges to the agent's state.

Runs as one long-lived task. devices/monitor.py watches the GPUs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from services.agent.agent import Agent
from services.agent.connection.leader_stream import LeaderStream
from services.agent.machine import host, metrics


async def watch_machine(agent: Agent, link: LeaderStream, period_seconds: float) -> None:
    """Watches until it is cancelled."""
    observe(agent, link)
    while True:
        await asyncio.sleep(period_seconds)
        interfaces = host.list_interfaces()
        if interfaces != agent.interfaces:
            agent.interfaces = interfaces
            link.reconnect()


def observe(agent: Agent, link: LeaderStream) -> None:
    """Makes the gauges read the agent's state at each scrape."""
    for state in ("free", "used", "unhealthy"):
        metrics.slots.labels(state=state).set_function(_counter(agent, state))
    metrics.journaled.set_function(lambda: len(agent.roster.records))
    metrics.leader_silence.set_function(lambda: link.witnessed_silence_seconds)
    metrics.heartbeat_age.set_function(lambda: time.monotonic() - (link.heartbeat_at or time.monotonic()))


def _counter(agent: Agent, state: str) -> Callable[[], float]:
    def count() -> float:
        used = {slot_id for record in agent.roster.records if record.is_live for slot_id in record.slot_ids}
        unhealthy = {each.id for each in agent.slots.slots if not each.is_healthy} - used
        sizes = {"used": len(used), "unhealthy": len(unhealthy)}
        return sizes.get(state, len(agent.slots.slots) - len(used) - len(unhealthy))

    return count
