"""Watches the machine's network interfaces, which a new hello reports, and connects the gauges to the agent's state.

Runs as one long-lived task. devices/monitor.py watches the GPUs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from gangline.domain.resource import NetworkInterface
from services.agent.agent import LocalAgent
from services.agent.connection.leader_answers import LeaderAnswers
from services.agent.connection.leader_stream import LeaderStream
from services.agent.machine import host, metrics
from services.agent.machine.link_events import LinkEvents

log = structlog.get_logger(__name__)


# Least time between two hellos because of interfaces, so that a link that flaps does not keep the agent greeting.
LEAST_SECONDS = 1.0
# Names of interfaces that are remembered, in case they go down.
MOST_KNOWN = 64


async def watch_machine(agent: LocalAgent, link: LeaderStream, period_seconds: float) -> None:
    """Watches until it is cancelled."""
    events = LinkEvents()
    had: dict[str, NetworkInterface] = {}
    note(had, agent.interfaces)
    try:
        while True:
            interfaces = host.list_interfaces()
            note(had, interfaces)
            down = find_down(had, interfaces, host.list_down_interfaces())
            if (interfaces, down) != (agent.interfaces, agent.down_interfaces):
                log.info("network interfaces changed", up=_names(interfaces), down=_names(down))
                agent.interfaces, agent.down_interfaces = interfaces, down
                link.reconnect()
                await asyncio.sleep(LEAST_SECONDS)
            await events.wait(period_seconds)
    finally:
        events.close()


def find_down(
    had: Mapping[str, NetworkInterface], up: Sequence[NetworkInterface], down: Sequence[NetworkInterface]
) -> tuple[NetworkInterface, ...]:
    """Returns the interfaces to other machines that are down: those with an address, and those that have lost address
    or device.

    had: the interfaces that were up at any time since the agent started, by name.
    """
    known = {own.name for own in (*up, *down)}
    lost = (replace(own, speed_mbit=0) for name, own in had.items() if name not in known)
    return tuple(own for own in (*down, *lost) if not own.is_virtual)


def note(had: dict[str, NetworkInterface], up: Iterable[NetworkInterface]) -> None:
    """Adds the interfaces that are up now. The oldest names go first: a tunnel may have another name each time."""
    for own in up:
        had.pop(own.name, None)
        had[own.name] = own
    for name in list(had)[: max(0, len(had) - MOST_KNOWN)]:
        del had[name]


def _names(interfaces: Sequence[NetworkInterface]) -> list[str]:
    return [own.name for own in interfaces]


def observe(agent: LocalAgent, answers: LeaderAnswers) -> None:
    """Makes the gauges read the agent's state at each scrape."""
    for state in ("free", "used", "unhealthy"):
        metrics.slots.labels(state=state).set_function(_counter(agent, state))
    metrics.journaled.set_function(lambda: len(agent.roster.records))
    metrics.leader_silence.set_function(lambda: answers.witnessed_silence_seconds)
    metrics.heartbeat_age.set_function(lambda: time.monotonic() - (answers.heartbeat_at or time.monotonic()))


def _counter(agent: LocalAgent, state: str) -> Callable[[], float]:
    def count() -> float:
        used = {slot_id for record in agent.roster.records if record.is_live for slot_id in record.slot_ids}
        unhealthy = {each.id for each in agent.slots.slots if not each.is_healthy} - used
        sizes = {"used": len(used), "unhealthy": len(unhealthy)}
        return sizes.get(state, len(agent.slots.slots) - len(used) - len(unhealthy))

    return count
